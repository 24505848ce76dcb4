"""Processes that share a socket: how many connections each may have, and who takes the next one."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from megatalker.serving.server.accepting import AHEAD_PAUSE_S, SharedSocketServer
from megatalker.serving.server.places import MOST_AHEAD, SLOTS, Places
from waiting import HANG_S


@pytest.fixture
def file(tmp_path: Path) -> Path:
    Places.create(tmp_path / "places")
    return tmp_path / "places"


def test_a_single_process_has_all_places() -> None:
    places = Places(10)
    places.hold(7)
    assert places.limit == 10
    assert not places.is_ahead(1000)


def test_a_process_may_have_what_others_leave_and_its_share_in_any_case(file: Path) -> None:
    one, two, three = (Places(30, 3, file, number) for number in (1, 2, 3))
    assert one.limit == 30, "others serve nobody yet"
    two.hold(4)
    three.hold(0)
    assert one.limit == 26
    two.hold(25)
    assert one.limit == 10
    one.hold(10)
    assert (two.limit, three.limit) == (20, 10)


@pytest.mark.parametrize("end", ["closed", "forgotten"])
def test_a_process_that_is_over_has_no_connections(file: Path, end: str) -> None:
    one, two = Places(10, 2, file, 1), Places(10, 2, file, 2)
    one.hold(0)
    two.hold(8)
    assert one.limit == 5
    if end == "closed":
        two.close()
        two.hold(7)  # those that it had end
    else:
        Places.forget(file, 2)
    assert one.limit == 10
    assert not one.is_ahead(1000)


def test_numbers_of_processes_go_on_for_ever(file: Path) -> None:
    one, later = Places(10, 2, file, 1), Places(10, 2, file, 2 + 5 * SLOTS)
    one.hold(3)
    later.hold(1)
    assert (one.limit, later.limit) == (9, 7)


def test_a_process_is_ahead_of_the_one_that_has_fewest(file: Path) -> None:
    one, two, three = (Places(1000, 3, file, number) for number in (1, 2, 3))
    for places, count in ((one, 9), (two, 5), (three, 50)):
        places.hold(count)
    assert not one.is_ahead(5 + MOST_AHEAD)
    assert one.is_ahead(5 + MOST_AHEAD + 1)


class Greeting(asyncio.Protocol):
    """Says one word and ends; counts itself among ``made``."""

    def __init__(self, made: list[object]) -> None:
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._made.append(self)
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"!")
        transport.close()


@pytest.fixture
def bound() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        yield listening


@pytest.fixture
def client(bound: socket.socket) -> Iterator[Callable[[], socket.socket]]:
    """Makes a connection to the socket."""
    with ExitStack() as opened:
        yield lambda: opened.enter_context(socket.create_connection(bound.getsockname(), HANG_S))


def test_of_those_that_wait_one_is_taken_in_each_turn_of_the_loop(
    bound: socket.socket, client: Callable[[], socket.socket]
) -> None:
    waiting = [client() for _ in range(12)]

    async def turns() -> list[int]:
        made = list[object]()
        server = SharedSocketServer(bound, lambda: Greeting(made), None, made, Places(100))
        seen = []
        async with asyncio.timeout(HANG_S):
            while len(made) < len(waiting):
                await asyncio.sleep(0)
                seen.append(len(made))
        server.close()
        return [later - earlier for earlier, later in zip([0, *seen], seen, strict=False)]

    assert max(asyncio.run(turns())) == 1
    assert {one.recv(1) for one in waiting} == {b"!"}


@pytest.mark.parametrize("other_is_there", [True, False])
def test_a_process_that_is_ahead_leaves_a_connection_to_another_and_takes_it_in_the_end(
    bound: socket.socket, client: Callable[[], socket.socket], file: Path, other_is_there: bool
) -> None:
    async def run() -> tuple[int, float]:
        made = list[object](range(MOST_AHEAD + 1))
        places, other = Places(100, 2, file, 1), Places(100, 2, file, 2)
        other.hold(0)
        server = SharedSocketServer(bound, lambda: Greeting(made), None, made, places)
        loop = asyncio.get_running_loop()
        asking = client()
        asking.setblocking(False)
        began = loop.time()
        if other_is_there:
            while server._pause is None:
                await asyncio.sleep(0)
            with bound.accept()[0] as taken:
                taken.send(b"?")
        async with asyncio.timeout(HANG_S):
            first = await loop.sock_recv(asking, 1)
        took = loop.time() - began
        await asyncio.sleep(2 * AHEAD_PAUSE_S)
        assert first == (b"?" if other_is_there else b"!")
        server.close()
        return len(made) - (MOST_AHEAD + 1), took

    made, took = asyncio.run(run())
    assert made == (0 if other_is_there else 1)
    assert other_is_there or took >= AHEAD_PAUSE_S / 2


def test_a_closed_server_takes_none_and_may_be_closed_again(bound: socket.socket, file: Path) -> None:
    async def run() -> None:
        places = Places(100, 2, file, 1)
        server = SharedSocketServer(bound, asyncio.Protocol, None, set(), places)
        server.close()
        server.close()
        await server.wait_closed()

    asyncio.run(run())
    assert Places(100, 2, file, 2).limit == 100
    assert bound.fileno() < 0


def test_connections_wait_where_no_more_files_may_be_open(
    bound: socket.socket,
    client: Callable[[], socket.socket],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("megatalker.serving.server.accepting.FULL_PAUSE_S", 0.01)

    class Full:
        """A socket that may open nothing at first."""

        tries = 0

        def __getattr__(self, name: str) -> object:
            return getattr(bound, name)

        def accept(self) -> tuple[socket.socket, object]:
            self.tries += 1
            if self.tries < 3:
                raise OSError(24, "Too many open files")
            return bound.accept()

    async def run() -> bytes:
        made = list[object]()
        server = SharedSocketServer(Full(), lambda: Greeting(made), None, made, Places(9))  # type: ignore[arg-type]
        asking = client()
        asking.setblocking(False)
        async with asyncio.timeout(HANG_S):
            heard = await asyncio.get_running_loop().sock_recv(asking, 1)
        server.close()
        return heard

    assert asyncio.run(run()) == b"!"
    assert caplog.text.count("Too many open files") == 2
