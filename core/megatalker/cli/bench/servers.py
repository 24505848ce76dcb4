"""Servers under load: over WebSockets that many utterances share, or over HTTP with a connection for each request."""

import itertools
import json
from collections.abc import AsyncIterator, Sequence
from http import HTTPStatus
from types import ModuleType
from typing import Any, Self

from pydantic import SecretStr

from megatalker.cli.bench.drive import Samples, never_ends
from megatalker.engine.speech.options import SpeechOptions
from megatalker.engine.speech.protocols import Speech
from megatalker.errors import ConnectionFailedError, MegatalkerError, UnsupportedError
from megatalker.serving.audio import from_pcm16
from megatalker.serving.protocol.asking import ANSWER_TIMEOUT_S, CONNECT_TIMEOUT_S, key_headers, speech_fields
from megatalker.serving.protocol.messages import Problem

PATH = "/v1/audio/speech"


class Servers:
    """A :class:`~megatalker.engine.speech.protocols.SpeechEngine` on several connections.

    Args:
        urls: addresses of servers, or of one balancer in front of them.
        connections: WebSockets to each; a balancer sends a whole connection to one server.
        key: the API key that they want, if any.

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
        """Speak as an engine does."""
        return next(self._next).speak(text, options, **changes)

    def check(self, options: SpeechOptions | None = None, **changes: Any) -> None:
        """Check as an engine does, on every connection."""
        for engine in self._engines:
            engine.check(options, **changes)

    def close(self) -> None:
        """Close every connection."""
        for engine in self._engines:
            engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class SpeechRoute:
    """``POST /v1/audio/speech`` of servers, in turn.

    Args:
        urls: addresses of servers.
        key: the API key that they want, if any.

    Raises:
        UnsupportedError: aiohttp is not installed.
    """

    def __init__(self, urls: Sequence[str], key: SecretStr | None) -> None:
        self._aiohttp = _aiohttp()
        self._patience = self._aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=ANSWER_TIMEOUT_S
        )
        self._headers = key_headers(None if key is None else key.get_secret_value())
        self._urls = itertools.cycle([url.rstrip("/") + PATH for url in urls])

    async def listen(self, text: str, options: SpeechOptions, words_a_second: float | None) -> AsyncIterator[Samples]:
        """Listen as :data:`~megatalker.cli.bench.drive.Listen` says; a text is always given at once.

        Raises:
            ConnectionFailedError: the server cannot be reached, stopped sending, or broke the response off.
            MegatalkerError: what it answers instead of speech, by its own name.
        """
        assert words_a_second is None, "refused with the options"
        url, rest = next(self._urls), b""
        body = {"input": text, "response_format": "pcm", **speech_fields(options), "seed": options.chosen_seed()}
        asked = self._aiohttp.request("POST", url, json=body, headers=self._headers, timeout=self._patience)
        try:
            async with asked as response:
                if response.status != HTTPStatus.OK:
                    raise _refusal(response.status, await response.read())
                async for data in response.content.iter_any():
                    data = rest + data
                    rest = data[len(data) // 2 * 2 :]
                    yield from_pcm16(data)
        except self._aiohttp.ClientPayloadError as error:  # the response was broken off
            if not never_ends(options):
                raise ConnectionFailedError(f"{url}: {type(error).__name__}: {error}") from error
        except (self._aiohttp.ClientError, TimeoutError) as error:
            raise ConnectionFailedError(f"{url}: {type(error).__name__}: {error}") from error

    async def check(self) -> None:
        """Have one frame spoken; raises as :meth:`listen`."""
        async for _ in self.listen("Hello.", SpeechOptions(max_frames=1), None):
            pass


def _aiohttp() -> ModuleType:
    try:
        import aiohttp
    except ImportError as error:
        raise UnsupportedError("--http needs aiohttp; pip install 'megatalker[bench]'") from error
    return aiohttp


def _refusal(status: int, body: bytes) -> MegatalkerError:
    """Return the error of a response, under the name that the server gave it."""
    try:
        error = json.loads(body)["error"]
        return Problem(type=error["type"], message=error["message"]).exception()
    except (ValueError, KeyError, TypeError):
        return MegatalkerError(f"HTTP {status}: {body[:200].decode(errors='replace')!r}, expected speech")
