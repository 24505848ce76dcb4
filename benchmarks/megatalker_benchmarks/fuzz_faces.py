"""Faces of the engine that the fuzz speaks through: Python, command line, HTTP, WebSockets, Pipecat and LiveKit.

Each opens on an engine and gives a function that speaks one text, whole or in pieces. That raises a ``MegatalkerError``
where the face refuses the text in words; any other exception is a defect.
"""

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from unittest import mock

import httpx
from websockets.sync.client import connect

from megatalker import Engine
from megatalker.cli.say.destination import Destination
from megatalker.cli.say.formats import Format
from megatalker.cli.say.speaking import SpeakOptions, VoiceOrder
from megatalker.cli.say.speaking import speak as say
from megatalker.cli.status import Status
from megatalker.engine.speech.protocols import SpeechEngine
from megatalker.errors import InvalidRequestError, UnsupportedError
from megatalker.serving.client import RemoteEngine
from megatalker.serving.server.address import bind
from megatalker.serving.server.process import TalkServer
from megatalker.settings import ServerSettings

BUILDING = threading.Lock()  # FastAPI changes the filters of warnings meanwhile, which is not thread-safe
PATIENCE_S = 60.0
"""A face that says nothing for this long has lost the text."""


@dataclass(frozen=True, slots=True)
class FaceSpeech:
    """Speech of one text, as the listener at a face got it."""

    samples: int
    finish_reason: str = "eos"
    words: Sequence[str] | None = None
    """Words reported as spoken, where the face reports any."""
    texts: Sequence[str] | None = None
    """The texts that the engine was given, where the face must divide or change the text; the same letters in all."""


SpeakText = Callable[[str, Sequence[str] | None], FaceSpeech]
"""Speaks a text; whole, or in the pieces."""
Face = Callable[[Engine], AbstractContextManager[SpeakText]]
"""Opens a face on an engine."""


def _engine_speech(engine: SpeechEngine, text: str, pieces: Sequence[str] | None) -> FaceSpeech:
    stream = engine.speak(text if pieces is None else None, word_times=True)
    if pieces is not None:
        for piece in pieces:
            stream.feed(piece)
        stream.finish()
    samples = stream.read_all().size
    words = [word.text for word in stream.take_words()]
    return FaceSpeech(samples, str(stream.finish_reason), words)


@contextmanager
def python(engine: Engine) -> Iterator[SpeakText]:
    """``Engine.speak``."""
    yield lambda text, pieces: _engine_speech(engine, text, pieces)


@contextmanager
def command(engine: Engine) -> Iterator[SpeakText]:
    """``megatalker say``: the text as an argument, or pieces of its bytes on standard input."""
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(Engine, "open", return_value=nullcontext(engine)),
    ):
        file = Path(folder) / "speech.pcm"

        def speak(text: str, pieces: Sequence[str] | None) -> FaceSpeech:
            file.unlink(missing_ok=True)
            text = text.encode("utf-8", "replace").decode()  # a pipe has no halves of characters
            reading = nullcontext() if pieces is None else _standard_input(text.encode(), len(pieces))
            whole = text if pieces is None else None
            order = SpeakOptions(whole, VoiceOrder(None, None, None, None), None, None, 1, {}, False)
            settings = engine.settings.model_copy(update={"checkpoint": str(engine.checkpoint.folder)})
            with reading:
                say(order, settings, Destination(str(file), kind=Format.PCM, play=False), Status())
            return FaceSpeech(file.stat().st_size // 2, texts=[text])

        yield speak


@contextmanager
def _standard_input(data: bytes, pieces: int) -> Iterator[None]:
    """Standard input that brings ``data`` in about as many pieces, cut anywhere."""
    source, sink = os.pipe()
    size = max(1, len(data) // pieces)

    def write() -> None:
        with os.fdopen(sink, "wb", buffering=0) as file:
            for start in range(0, len(data), size):
                file.write(data[start : start + size])

    writer = threading.Thread(target=write)
    with os.fdopen(source, "rb") as file, mock.patch.object(sys, "stdin", file):
        writer.start()
        yield
        writer.join(PATIENCE_S)


@contextmanager
def _served(engine: Engine) -> Iterator[str]:
    """URL of a server of this process."""
    with bind(settings := ServerSettings(port=0)) as bound:
        with BUILDING:
            server = TalkServer(engine, settings, bound)
        thread = threading.Thread(target=server.run, name="fuzz-server")
        thread.start()
        try:
            while not (server.started and server.service.ready):
                time.sleep(0.01)
            yield server.url
        finally:
            server.should_exit = True
            thread.join(PATIENCE_S)


@contextmanager
def http(engine: Engine) -> Iterator[SpeakText]:
    """``POST /v1/audio/speech``: a whole file, and streamed where the text is to come in pieces."""
    with _served(engine) as url, httpx.Client(base_url=url, timeout=PATIENCE_S) as client:

        def speak(text: str, pieces: Sequence[str] | None) -> FaceSpeech:
            body = json.dumps({"input": text, "response_format": "pcm", "stream": pieces is not None})
            headers = {"Content-Type": "application/json"}
            answer = client.post("/v1/audio/speech", content=body, headers=headers)
            if answer.status_code == httpx.codes.BAD_REQUEST:
                raise InvalidRequestError(answer.json()["error"]["message"])
            answer.raise_for_status()
            return FaceSpeech(len(answer.content) // 2)

        yield speak


@contextmanager
def websocket(engine: Engine) -> Iterator[SpeakText]:
    """``/v1/speak``, by the client of this package."""
    with _served(engine) as url, RemoteEngine(url) as remote:
        yield lambda text, pieces: _engine_speech(remote, text, pieces)


@contextmanager
def plain_websocket(engine: Engine) -> Iterator[SpeakText]:
    """``/api/v1/speak``, which takes whole texts only; a session for each, because errors are counted."""
    with _served(engine) as url:
        address = url.replace("http", "ws", 1) + "/api/v1/speak"

        def speak(text: str, _: Sequence[str] | None) -> FaceSpeech:
            samples = 0
            with connect(address, compression=None, close_timeout=1.0) as socket:
                for request in ({"type": "start"}, {"type": "speak", "text": text}, {"type": "stop"}):
                    socket.send(json.dumps(request))
                while True:
                    message = socket.recv(PATIENCE_S)
                    if isinstance(message, bytes):
                        samples += len(message) // 2
                        continue
                    event = json.loads(message)
                    if event["type"] == "complete":
                        return FaceSpeech(samples, event["finish_reason"])
                    if event["type"] == "error":
                        kind = InvalidRequestError if event["code"] == "INVALID_TEXT" else RuntimeError
                        raise kind(event["message"])

        yield speak


FACES = {
    "python": f"{__name__}:python",
    "say": f"{__name__}:command",
    "http": f"{__name__}:http",
    "websocket": f"{__name__}:websocket",
    "plain-websocket": f"{__name__}:plain_websocket",
    "pipecat-sentence": "megatalker_benchmarks.fuzz_pipecat:sentence",
    "pipecat-token": "megatalker_benchmarks.fuzz_pipecat:token",
    "livekit": "megatalker_benchmarks.fuzz_livekit:livekit",
}
"""Faces by name: module and function."""


def load_face(name: str) -> Face:
    """Import the face of this name, in the main thread, as LiveKit wants it.

    Raises:
        UnsupportedError: A package that it needs is missing.
    """
    module, _, function = FACES[name].partition(":")
    try:
        face: Face = getattr(import_module(module), function)
    except ImportError as error:
        extra = name.partition("-")[0]
        raise UnsupportedError(f"{error.name} is missing; pip install 'megatalker[{extra}]'") from error
    return face
