"""Zeroconf: what others on the network are told of the server, seen by the library that Home Assistant has, too."""

import logging
import socket
from collections.abc import Iterator

import pytest
from zeroconf import ServiceBrowser, ServiceListener, Zeroconf

from megatalker.errors import SettingsError
from megatalker.serving.server.address import bind_wyoming
from megatalker.serving.server.announcement import SERVICE, Announcement
from megatalker.settings import ServerSettings
from waiting import eventually

HERE = "127.0.0.1"


class FoundServers(ServiceListener):
    """All servers that are announced, by name."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[list[str], int | None]] = {}

    def add_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        info = zc.get_service_info(type_, name)
        assert info is not None
        self.found[name] = info.parsed_addresses(), info.port

    def remove_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        self.found.pop(name, None)

    def update_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        pass


@pytest.fixture
def listener() -> Iterator[FoundServers]:
    heard = FoundServers()
    network = Zeroconf([HERE])
    ServiceBrowser(network, SERVICE, heard)
    yield heard
    network.close()


@pytest.fixture
def bound() -> Iterator[socket.socket]:
    wyoming = bind_wyoming(ServerSettings(wyoming=f"tcp://{HERE}:0", announce=True))
    assert wyoming is not None
    with wyoming:
        yield wyoming


def test_a_server_is_found_until_it_ends(listener: FoundServers, bound: socket.socket) -> None:
    announcement, place = Announcement(bound), ([HERE], bound.getsockname()[1])
    announcement.begin()
    eventually(lambda: place in listener.found.values(), "it is announced")
    announcement.close()
    eventually(lambda: place not in listener.found.values(), "it is taken back")


def test_a_server_for_the_network_tells_of_addresses_that_others_reach(listener: FoundServers) -> None:
    with socket.create_server(("0.0.0.0", 0)) as everywhere:
        announcement, port = Announcement(everywhere), everywhere.getsockname()[1]
        announcement.begin()
        eventually(lambda: port in {told for _, told in listener.found.values()}, "it is announced")
        ((addresses, _),) = [one for one in listener.found.values() if one[1] == port]
        assert HERE not in addresses
        announcement.close()


def test_two_servers_of_one_machine_are_told_apart(listener: FoundServers, bound: socket.socket) -> None:
    with socket.create_server((HERE, 0)) as other:
        announcements = [Announcement(one) for one in (bound, other)]
        for one in announcements:
            one.begin()
        ports = {one.getsockname()[1] for one in (bound, other)}
        eventually(lambda: ports <= {port for _, port in listener.found.values()}, "both are there")
        for one in announcements:
            one.close()


def test_one_that_never_began_is_closed(bound: socket.socket) -> None:
    Announcement(bound).close()


def test_a_network_that_does_not_allow_it_is_told_of(
    bound: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError(19, "No such device")

    monkeypatch.setattr("megatalker.serving.server.announcement.Zeroconf", fail)
    announcement = Announcement(bound)
    with caplog.at_level(logging.WARNING):
        announcement.begin()
        announcement.close()
    assert "No such device" in caplog.text
    assert "enter its address by hand" in caplog.text


def test_what_is_to_be_announced_must_be_there() -> None:
    with pytest.raises(SettingsError, match=r"server.announce tells of server.wyoming, which is not set"):
        bind_wyoming(ServerSettings(announce=True))
