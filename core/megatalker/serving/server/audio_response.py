"""An utterance over HTTP, and the body of its response while the speech is made."""

import asyncio
import base64
import json
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from tempfile import SpooledTemporaryFile
from typing import BinaryIO, TypeVar, cast
from urllib.parse import quote

import numpy as np
from fastapi import Request
from fastapi.responses import StreamingResponse
from fastapi.sse import format_sse_event
from starlette.types import Message, Receive, Scope, Send

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.engine import Chunk, SpeechStream
from megatalker.engine.speech.outputs import ReachedMark
from megatalker.engine.speech.word_times import SpokenWord
from megatalker.errors import IncompleteSpeechError, MegatalkerError
from megatalker.serving.background import run_in
from megatalker.serving.protocol.leniency import told_names
from megatalker.serving.protocol.messages import MarkPlace, SpeechFields, WordTime
from megatalker.serving.server.encoding import Encoder, Samples
from megatalker.serving.server.problems import problem
from megatalker.serving.server.speech_service import SpeechService, UtteranceSession

logger = logging.getLogger(__name__)
T = TypeVar("T")

NOTHING_SAMPLES = SAMPLE_RATE // 50
"""The answer to a text without a sound: 20 ms of silence."""
MEMORY_BYTES = 1 << 20
"""A whole file is kept in memory up to this size, about 20 s of WAV, and on disk beyond it."""
PIECE_BYTES = 1 << 16
"""A whole file is sent in pieces of this size, each within the time that a client has to accept it."""
LIVE_HEADERS = {
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # nginx would hold the first samples back
}


@dataclass(frozen=True)
class BegunSpeech:
    """An utterance whose first chunk is there, so that a status could tell what went wrong before."""

    session: UtteranceSession
    first: Chunk | None
    """``None`` if there is no speech."""
    marks: list[ReachedMark] = field(default_factory=list)
    """Marks of the samples that came, until they are told."""

    def headers(self, rate: int, ignored: tuple[str, ...]) -> dict[str, str]:
        """Return what every response says of its speech at ``rate`` Hz, and of fields that mean nothing here."""
        stream = self.session.stream
        headers = {
            "X-Sample-Rate": str(rate),
            "X-Megatalker-Seed": str(stream.seed),
            "X-Megatalker-Backend": header_value(stream.backend),
        }
        return headers | ({"X-Megatalker-Ignored": ", ".join(told_names(ignored))} if ignored else {})

    async def chunks(self) -> AsyncIterator[Samples]:
        """Yield all samples as they come. Where there was nothing to say it is a short silence, since clients would
        take no samples for an error.

        Raises:
            IncompleteSpeechError: after the last sample, where some text was left out.
        """
        if self.first is not None:
            self.marks.extend(self.first.marks)
            yield self.first.pcm
            async for chunk in self.session.stream:
                self.marks.extend(chunk.marks)
                yield chunk.pcm
        elif self.session.stream.finish_reason == "eos":
            yield np.zeros(NOTHING_SAMPLES, np.float32)
        self.session.require_complete()


async def begin_speech(
    service: SpeechService, text: str, asked: SpeechFields, request: Request | None, *, word_times: bool = False
) -> BegunSpeech:
    """Begin an utterance and wait for its first chunk; ``session.end`` must follow.

    A client that goes away meanwhile, maybe while it waits for a free stream, ends the stream; without a ``request``
    the caller sees to that.

    Raises:
        IncompleteSpeechError: nothing of the text was spoken.
        MegatalkerError: as :meth:`SpeechService.begin`, or nothing could be spoken.
    """
    session = await service.begin(text, asked, "http", word_times=word_times)
    try:
        first = await unless_gone(anext(session.stream, None), session.stream.cancel, request)
        if first is None:
            session.require_complete()
        return BegunSpeech(session, first)
    except BaseException:
        session.end()
        raise


class AudioResponse(StreamingResponse):
    """Sends speech while it is made. Where it cannot be completed, the response breaks off, which the client can see.

    Args:
        body: the bytes.
        media_type: of the bytes.
        headers: further headers.
        send_timeout_s: a client that accepts nothing for this long is given up.
        on_end: called exactly once, however it ends.
    """

    def __init__(
        self,
        body: AsyncIterator[bytes],
        media_type: str,
        headers: dict[str, str],
        send_timeout_s: float,
        on_end: Callable[[], None],
    ) -> None:
        super().__init__(body, media_type=media_type, headers=LIVE_HEADERS | headers)
        self._send_timeout_s, self._on_end = send_timeout_s, on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()

    async def stream_response(self, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(self._send_timeout_s):
                await send(message)

        try:
            await super().stream_response(send_in_time)
        except TimeoutError:
            logger.warning("a client accepted nothing for %g s and is dropped", self._send_timeout_s)
        except MegatalkerError as error:
            logger.error("a response breaks off: %s: %s", type(error).__name__, error)


def header_value(text: str) -> str:
    """Return a text as a header can hold it: what is not printable ASCII is percent-encoded."""
    return quote(text, safe=_PRINTABLE, errors="surrogatepass")


_PRINTABLE = "".join(map(chr, range(0x20, 0x7F)))


async def audio_body(speech: BegunSpeech, encoder: Encoder) -> AsyncIterator[bytes]:
    """The speech in its format; all of it comes before ``IncompleteSpeechError`` is raised."""
    threads = speech.session.service.encoders
    incomplete: IncompleteSpeechError | None = None
    try:
        async for samples in speech.chunks():
            data = await run_in(threads, encoder.encode, samples) if encoder.slow else encoder.encode(samples)
            if data:
                yield data
    except IncompleteSpeechError as error:
        incomplete = error
    rest = await run_in(threads, encoder.finish) if encoder.slow else encoder.finish()
    if rest:
        yield rest
    if incomplete is not None:
        raise incomplete


Sign = Callable[[BinaryIO, BinaryIO], None]
"""Writes a file with a signed manifest into another one."""


async def whole_file(
    speech: BegunSpeech, make: Callable[[BinaryIO], Encoder], request: Request | None, sign: Sign | None = None
) -> tuple[AsyncIterator[bytes], int]:
    """Return a file of the whole speech, whose header states its length, and its bytes; ``sign`` signs it.

    Raises:
        MegatalkerError: the speech could not be completed, or the file not be signed.
    """
    # not a context manager: it is closed with the iterator
    file = SpooledTemporaryFile(MEMORY_BYTES)  # noqa: SIM115
    try:
        encoder = make(cast("BinaryIO", file))

        async def encode() -> None:
            async for samples in speech.chunks():
                await run_in(speech.session.service.encoders, encoder.encode, samples)
            await run_in(speech.session.service.encoders, encoder.finish)

        await unless_gone(encode(), speech.session.stream.cancel, request)
        if sign is not None:
            with file as plain:
                file = SpooledTemporaryFile(MEMORY_BYTES)  # noqa: SIM115
                plain.seek(0)
                threads = speech.session.service.encoders
                await run_in(threads, sign, cast("BinaryIO", plain), cast("BinaryIO", file))
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return _pieces(file), size


async def _pieces(file: "SpooledTemporaryFile[bytes]") -> AsyncIterator[bytes]:
    with file:
        while data := file.read(PIECE_BYTES):
            yield data


async def event_body(speech: BegunSpeech, encoder: Encoder, *, speed: float = 1.0) -> AsyncIterator[bytes]:
    """The same as OpenAI's server-sent events, ended by ``speech.audio.done`` or ``error``, both with the facts.

    Marks of a text in markup are ``speech.audio.marks`` events between those, and so are ``speech.audio.words`` where
    word times were asked for. ``speed`` is how many times faster than the engine's audio the encoder's is.

    Of ``usage``, input tokens are those of the text, output tokens the frames.
    """
    try:
        async for data in audio_body(speech, encoder):
            yield _event(type="speech.audio.delta", audio=base64.b64encode(data).decode())
            if speech.marks:
                yield _marks(speech.marks, speed)
            if words := speech.session.stream.take_words():
                yield _words(words, speed)
        if words := speech.session.stream.take_words():
            yield _words(words, speed)
        if speech.marks:
            yield _marks(speech.marks, speed)
        spoken = speech.session.stream.facts().frames
        heard = await speech.session.service.count_tokens(speech.session.text or "")
        yield _event(
            type="speech.audio.done",
            usage={"input_tokens": heard, "output_tokens": spoken, "total_tokens": heard + spoken},
            facts=_facts(speech.session.stream),
            instructions=speech.session.instruct,
        )
    except MegatalkerError as error:
        yield _event(type="error", error=problem(error).model_dump(), facts=_facts(speech.session.stream))


def _facts(stream: SpeechStream) -> dict[str, object]:
    return {**asdict(stream.facts()), "switches": list(map(str, stream.switches))}


def _words(words: Sequence[SpokenWord], speed: float) -> bytes:
    """OpenAI has no such event; its transcriptions name words and times like this."""
    spoken = [WordTime.of(word, speed=speed).model_dump() for word in words]
    return _event(type="speech.audio.words", words=spoken, estimated=any(word.estimated for word in words))


def _marks(marks: list[ReachedMark], speed: float) -> bytes:
    told = [MarkPlace.of(mark, speed=speed).model_dump() for mark in marks]
    marks.clear()
    return _event(type="speech.audio.marks", marks=told)


def _event(**fields: object) -> bytes:
    return format_sse_event(data_str=json.dumps(fields))


async def unless_gone(work: Awaitable[T], cancel: Callable[[], None], request: Request | None) -> T:
    """Wait for ``work``, which ``cancel`` ends early where the client goes away."""
    if request is None:
        return await work
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            cancel()
        return await working
    finally:
        working.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
