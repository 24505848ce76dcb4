"""``megatalker load`` on several servers."""

import sys

import pytest
from pydantic import SecretStr

from megatalker.cli.bench import load_run
from megatalker.cli.bench.drive import LoadResult, Script
from megatalker.cli.bench.servers import Servers
from megatalker.cli.bench.traffic import Traffic
from megatalker.errors import UnsupportedError
from megatalker.settings import Settings


class Client:
    made: list["Client"]

    def __init__(self, url: str, api_key: str | None) -> None:
        self.url, self.key, self.heard, self.closed = url, api_key, [], False
        self.made.append(self)

    def speak(self, text: str, options: object) -> str:
        self.heard.append(text)
        return text

    def check(self, options: object) -> None:
        self.heard.append("check")

    def close(self) -> None:
        self.closed = True


def test_utterances_go_to_every_connection_by_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "made", [], raising=False)
    monkeypatch.setattr("megatalker.serving.client.RemoteEngine", Client)
    with Servers(["a", "b"], 2, SecretStr("key")) as servers:
        servers.check()
        assert [servers.speak(text) for text in "123456"] == list("123456")
    assert [(one.url, one.key, one.heard, one.closed) for one in Client.made] == [
        ("a", "key", ["check", "1", "5"], True),
        ("b", "key", ["check", "2", "6"], True),
        ("a", "key", ["check", "3"], True),
        ("b", "key", ["check", "4"], True),
    ]


def test_nothing_that_is_loaded_is_looked_at_while_a_server_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    spared: list[str] = []
    monkeypatch.setattr(Client, "made", [], raising=False)
    monkeypatch.setattr("megatalker.serving.client.RemoteEngine", Client)
    monkeypatch.setattr(load_run, "spare_what_is_loaded", lambda: spared.append("before"))
    monkeypatch.setattr(load_run, "switch_threads_often", lambda: None)

    async def drive(_engine: object, traffic: Traffic, *_: object) -> LoadResult:
        spared.append("a load")
        return LoadResult(traffic, 1.0, [], 0.0, 0.0)

    monkeypatch.setattr(load_run, "drive", drive)
    wanted = load_run.Measurement([Traffic("burst", 1)], Script(), 1.0, None, ["a"])
    load_run.measure(wanted, Settings(), lambda _: None)
    assert spared == ["before", "a load", "a load"], "the first one warms up"


def test_without_the_client_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "megatalker.serving.client", None)
    with pytest.raises(UnsupportedError, match=r"megatalker\[client\]"):
        Servers(["a"], 1, None)
