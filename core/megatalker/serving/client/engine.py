"""The face of an engine in front of a megatalker server."""

import itertools
import sys
import time
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

from pydantic import ValidationError

from megatalker.engine.speech.options import SpeechOptions
from megatalker.errors import SettingsError
from megatalker.prompt.control_tokens import ControlTokens
from megatalker.prompt.text import TextChecker, check_characters, require_text
from megatalker.serving.client.connection import RemoteConnection, Timeouts
from megatalker.serving.client.session import RemoteSession, ServerList
from megatalker.serving.client.stream import RemoteStream
from megatalker.serving.protocol.asking import (
    ANSWER_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
    key_headers,
    shown_url,
    speech_fields,
)
from megatalker.serving.protocol.messages import Open, invalid
from megatalker.settings import LONGEST_S

_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


class RemoteEngine:
    """Speaks through a megatalker server as :class:`~megatalker.engine.Engine` does in this process.

    Thread-safe, and usable within an event loop: :meth:`speak` never waits. One connection carries all utterances; it
    is made by the first, and again by the next after it broke.

    Args:
        url: of the server, such as ``http://localhost:8000``; or of several with the same checkpoint, backend and
            settings. One speaks, until it cannot be reached, is full, drains, or has no backend left. Then the next one
            goes on with its utterances, with the codes that they would have had.
        api_key: the server's, if it wants one.
        connect_timeout_s: how long to wait for a connection.
        answer_timeout_s: how long the server may be silent while it owes an answer to a request, or speech whose text
            is complete; waiting for a free stream counts.

    Raises:
        SettingsError: an impossible URL or timeout.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        api_key: str | None = None,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> None:
        for name, value in (("connect_timeout_s", connect_timeout_s), ("answer_timeout_s", answer_timeout_s)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LONGEST_S:
                raise SettingsError(f"{name} is {value!r}, expected a number of seconds above 0, at most {LONGEST_S:g}")
        urls = [url] if isinstance(url, str) else list(url)
        if not urls:
            raise SettingsError("there is no URL of a server; expected one at least")
        self.url = urls[0]
        self._names = itertools.count(1)
        timeouts, headers = Timeouts(connect_timeout_s, answer_timeout_s), key_headers(api_key)
        endpoints = [_endpoint(one) for one in urls]
        self._servers = ServerList([RemoteConnection(endpoint, headers, timeouts) for endpoint in endpoints])
        self._closer = weakref.finalize(self, _close, self._servers.all)

    def speak(self, text: str | None, options: SpeechOptions | None = None, **changes: Any) -> RemoteStream:
        """Begin to speak; returns at once. Arguments are those of ``Engine.speak``, defaults the server's.

        What only the server can know to be wrong is raised when the stream is iterated over.

        Raises:
            InvalidRequestError: something about the request can never work anywhere.
            EngineClosedError: this client was closed.
        """
        self._servers.first.require_open()
        options = SpeechOptions.of(options, changes)
        seed, several = options.chosen_seed(), len(self._servers.all) > 1
        message = _message(
            id=str(next(self._names)),
            text=None if text is None else _checked(text, options),
            **speech_fields(options),
            seed=seed,
            return_codes=options.return_codes or several,
            resumable=several,
            word_times=options.word_times,
            format="f32le",
        )
        now = time.monotonic()
        session = RemoteSession(
            message, self._servers, options.return_codes, now, text_complete=text is not None, quiet_since=now
        )
        session.send(message)
        return RemoteStream(session, None if options.clean_text else _checker(), self)

    def check(self, options: SpeechOptions | None = None, **changes: Any) -> None:
        """Ask the server whether it could speak with these options; waits for its answer. Nothing is spoken.

        Raises:
            MegatalkerError: as :meth:`speak` and the iteration over its stream.
        """
        with self.speak(None, options, **changes) as stream:
            stream.finish()
            stream.read_all()

    def close(self) -> None:
        """End all speech with ``EngineClosedError`` and disconnect. May be called again."""
        self._closer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _close(connections: Sequence[RemoteConnection]) -> None:
    for connection in connections:
        connection.close()


def _endpoint(url: str) -> str:
    try:
        parts = urlsplit(url)
        possible = parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an impossible port, or half an IPv6 address
        possible = False
    if not possible:
        raise SettingsError(f"the server's URL is {shown_url(url)!r}, expected something like 'http://localhost:8000'")
    path = parts.path.rstrip("/") + "/v1/speak"
    return urlunsplit((_SCHEMES[parts.scheme], parts.netloc, path, "", ""))


def _checker() -> TextChecker:
    """Finds what no server can speak; how long a text may be, and what it must not contain, only the server knows."""
    return TextChecker(ControlTokens(), sys.maxsize, cleaning=False)


def _checked(text: str, options: SpeechOptions) -> str:
    return require_text(text) if options.clean_text else check_characters(require_text(text))


def _message(**fields: object) -> Open:
    try:
        return Open.model_validate(fields)
    except ValidationError as error:
        raise invalid(error) from error
