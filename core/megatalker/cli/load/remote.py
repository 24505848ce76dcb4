"""Servers as one engine: utterances go to their connections in turn."""

import itertools
from collections.abc import Sequence
from typing import Any, Self

from pydantic import SecretStr

from megatalker.engine.options import SpeechOptions
from megatalker.engine.speech import Speech
from megatalker.errors import UnsupportedError


class Servers:
    """A :class:`~megatalker.engine.speech.SpeechEngine` on several connections.

    Args:
        urls: of servers, or of one balancer in front of them.
        connections: WebSockets to each; a balancer sends a whole connection to one server.
        key: that they want, if any.

    Raises:
        UnsupportedError: the client is not installed.
        SettingsError: an impossible URL.
    """

    def __init__(self, urls: Sequence[str], connections: int, key: SecretStr | None) -> None:
        try:
            from megatalker.serving.client import RemoteEngine
        except ImportError as error:
            raise UnsupportedError(f"--url needs {error.name}; pip install 'megatalker[client]'") from error
        secret = None if key is None else key.get_secret_value()
        self._engines = [RemoteEngine(url, api_key=secret) for _ in range(connections) for url in urls]
        self._next = itertools.cycle(self._engines)

    def speak(self, text: str | None, options: SpeechOptions | None = None, **changes: Any) -> Speech:
        """As an engine."""
        return next(self._next).speak(text, options, **changes)

    def check(self, options: SpeechOptions | None = None, **changes: Any) -> None:
        """As an engine, on every connection."""
        for engine in self._engines:
            engine.check(options, **changes)

    def close(self) -> None:
        """As an engine."""
        for engine in self._engines:
            engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
