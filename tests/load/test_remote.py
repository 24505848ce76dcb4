"""``megatalker load`` on several servers."""

import sys

import pytest
from pydantic import SecretStr

from megatalker.cli.load.remote import Servers
from megatalker.errors import UnsupportedError


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


def test_without_the_client_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "megatalker.serving.client", None)
    with pytest.raises(UnsupportedError, match=r"megatalker\[client\]"):
        Servers(["a"], 1, None)
