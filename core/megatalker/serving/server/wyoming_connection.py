"""Wyoming, the protocol of Home Assistant: events of JSON lines over TCP, one utterance after another.

``describe`` is answered by ``info``, ``ping`` by ``pong``. ``synthesize`` is answered by ``audio-start``,
``audio-chunk`` events and ``audio-stop``; text may come as ``synthesize-start``, ``synthesize-chunk`` and
``synthesize-stop`` instead, and is spoken while it comes. What goes wrong is an ``error`` event, after which the server
closes: clients wait for the end of the audio and for nothing else.
"""

import asyncio
import logging
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import numpy as np
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.error import Error
from wyoming.event import Event, Eventable, async_write_event
from wyoming.info import Attribution, Info, TtsProgram, TtsVoice
from wyoming.ping import Ping, Pong
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStopped, SynthesizeVoice

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.errors import InvalidRequestError
from megatalker.prompt.languages import NAMES
from megatalker.serving.audio import to_pcm16
from megatalker.serving.background import start_task
from megatalker.serving.protocol.leniency import read_json
from megatalker.serving.protocol.messages import SpeechFields
from megatalker.serving.server.audio_response import NOTHING_SAMPLES
from megatalker.serving.server.callers import RequestContext, TokenBucket, enter_request
from megatalker.serving.server.connections import ServerConnection
from megatalker.serving.server.information import Aliases
from megatalker.serving.server.places import Places
from megatalker.serving.server.problems import TooManyConnectionsError, problem
from megatalker.serving.server.socket_session import log_defect
from megatalker.serving.server.speech_service import SpeechService, UtteranceSession
from megatalker.settings import ServerSettings
from megatalker.voices import list_languages, list_speakers

logger = logging.getLogger(__name__)

AUDIO = {"rate": SAMPLE_RATE, "width": 2, "channels": 1}
IDLE_EVENTS, IDLE_EVENTS_A_SECOND = 100, 20
"""Events that bring no text, which a connection may send at once, and how many more each second."""
DEFAULT_VOICE = "default"
"""The name in ``info`` of the voice that a checkpoint without speakers has."""
_ATTRIBUTION = Attribution(name="megatalker", url="https://pypi.org/project/megatalker/")


class WyomingConnection(ServerConnection, asyncio.StreamReaderProtocol):
    """One client. It counts among all connections of the server, and ends with an error where it says nothing for
    ``request_timeout_s``, or ``text_timeout_s`` within a text. :func:`wyoming_connection` makes its class.

    Args:
        service: speaks.
        aliases: names of voices.
        connections: those of the server.
    """

    def __init__(self, service: SpeechService, aliases: Aliases, connections: set[Any]) -> None:
        self.loop = asyncio.get_running_loop()
        self._reader = asyncio.StreamReader(self.settings.max_message_bytes, self.loop)
        super().__init__(self._reader, loop=self.loop)
        self.connections = connections
        self.scope: dict[str, Any] = {"state": {}}
        self._service, self._aliases = service, aliases
        self._idle_events = TokenBucket(IDLE_EVENTS_A_SECOND, IDLE_EVENTS)
        self._session: UtteranceSession | None = None
        """The utterance whose text is coming."""
        self._speaking: asyncio.Task[None] | None = None
        self._stopping = False

    # ---- the connection

    def connection_made(self, transport: Any) -> None:
        """Begin to serve the client."""
        self.transport = transport
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        self._call = self.scope["state"]["call"] = RequestContext(
            client=str(peer[0]) if isinstance(peer, tuple) else "",
            max_streams=self.settings.max_streams_per_connection,
        )
        self._writer = asyncio.StreamWriter(transport, self, self._reader, self.loop)
        self.connections.add(self)
        self._task = start_task(self._run(), "wyoming")
        self.make_room()

    def data_received(self, data: bytes) -> None:
        """Keep what came for the task, unless the client was told to go."""
        if self._lingering:
            self.read_later()
        else:
            super().data_received(data)

    def eof_received(self) -> bool:
        """The client is gone: its speech ends."""
        super().eof_received()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """End what the client asked for."""
        self.connections.discard(self)
        self._task.cancel()
        if self._speaking is not None:
            self._speaking.cancel()
        super().connection_lost(exc)

    @property
    def idle(self) -> bool:
        return not self._call.streams

    @property
    def waiting(self) -> bool:
        return self.idle

    def give_way(self, error: TooManyConnectionsError) -> None:
        """Tell the client why, and close."""
        self.hang_up(error)

    def shutdown(self) -> None:
        """The server stops: close, when what is spoken has ended."""
        self._stopping = True
        if self.idle and not self._lingering:
            self.transport.close()

    def hang_up(self, error: Exception) -> None:
        """Tell the client why, and close; it has a moment to read it."""
        if self._lingering or self.transport.is_closing():
            return
        log_defect(error)
        self._service.metrics.refused(error, "wyoming")
        told = problem(error)
        writing = async_write_event(Error(text=told.message, code=told.type).event(), self._writer)
        self.linger()
        self._task.cancel()
        if self._speaking is not None:
            self._speaking.cancel()
        self._goodbye = start_task(self._say_goodbye(writing), "wyoming-goodbye")

    async def _say_goodbye(self, writing: Any) -> None:
        try:
            await writing
            if not self.transport.is_closing():
                self.transport.write_eof()
        except (OSError, RuntimeError):
            pass  # the client is gone already

    # ---- from the client

    async def _run(self) -> None:
        enter_request(self._call)
        try:
            while (event := await self._next_event()) is not None:
                await self._handle(event)
                if self._stopping and self.idle:
                    break
                await self._service.turns.take(self._call.owner)
            if not self._lingering:
                self.transport.close()
        except ConnectionError:
            pass  # which connection_lost is told of, too
        except Exception as error:
            self.hang_up(error)

    async def _next_event(self) -> Event | None:
        if self._session is None:
            limit_s, missing, setting = self.settings.request_timeout_s, "no event came", "request_timeout_s"
        else:
            limit_s, missing, setting = self.settings.text_timeout_s, "no text came", "text_timeout_s"
        try:
            async with asyncio.timeout(limit_s):
                return await read_event(self._reader, self.settings.max_message_bytes)
        except TimeoutError:
            raise InvalidRequestError(
                f"{missing} for {limit_s:g} s; the server's setting {setting} allows more"
            ) from None

    async def _handle(self, event: Event) -> None:
        match event.type:
            case "synthesize" if self._session is None:
                request = _read(Synthesize, event)
                await self._begin(_text(request.text, event), request.voice, request.text_format)
                await self._spoken()
            case "synthesize-start":
                if self._session is not None:
                    raise InvalidRequestError("synthesize-start: a text is open already; send synthesize-stop first")
                start = _read(SynthesizeStart, event)
                self._session = await self._begin(None, start.voice, start.text_format)
            case "synthesize-chunk":
                text = _text(_read(SynthesizeChunk, event).text, event)
                self._count(0 if text else 1)
                await self._open_session(event).feed(text)
            case "synthesize-stop":
                self._open_session(event).stream.finish()
                self._session = None
                await self._spoken()
                await self._send(SynthesizeStopped())
            case _:  # a whole text within an open one repeats it, for servers that know no streams
                self._count(1)
                if event.type == "describe":
                    await self._send(self._info())
                elif event.type == "ping":
                    await self._send(Pong(text=_read(Ping, event).text))

    def _count(self, idle_events: int) -> None:
        if idle_events and self._idle_events.take():
            raise InvalidRequestError(f"more than {IDLE_EVENTS_A_SECOND} events a second came that bring no text")

    def _open_session(self, event: Event) -> UtteranceSession:
        if self._session is None:
            raise InvalidRequestError(f"{event.type}: no text is open; send synthesize-start first")
        return self._session

    async def _begin(self, text: str | None, voice: SynthesizeVoice | None, kind: object) -> UtteranceSession:
        if kind not in (None, "", "text"):
            raise InvalidRequestError(f"text_format is {str(getattr(kind, 'value', kind))!r:.40}, expected 'text'")
        self.claim_place()
        session = await self._service.begin(text, self._fields(voice), "wyoming")
        self._speaking = start_task(self._speak(session), "wyoming-speech")
        self._speaking.add_done_callback(lambda _: session.end())  # even if it never began
        return session

    def _fields(self, voice: SynthesizeVoice | None) -> SpeechFields:
        if voice is None:
            return SpeechFields()
        name = voice.speaker or voice.name
        if name is not None and not isinstance(name, str):
            raise InvalidRequestError(f"voice is {name!r:.60}, expected the name of a voice in info")
        if voice.language is not None and not isinstance(voice.language, str):
            raise InvalidRequestError(f"language is {voice.language!r:.60}, expected a code such as 'en'")
        known = None if name in (None, "", DEFAULT_VOICE) else self._aliases.voice(name)
        return SpeechFields(voice=known, language=voice.language or None)

    # ---- to the client

    async def _send(self, event: Eventable) -> None:
        await async_write_event(event.event(), self._writer)

    async def _spoken(self) -> None:
        """Wait until the utterance is over."""
        assert self._speaking is not None, "it was begun"
        await self._speaking

    async def _speak(self, session: UtteranceSession) -> None:
        try:
            await self._send_speech(session)
        except ConnectionError:
            pass  # the client is gone
        except Exception as error:
            self.hang_up(error)

    async def _send_speech(self, session: UtteranceSession) -> None:
        begun = False
        async for chunk in session.stream:
            if not begun:
                begun = True
                await self._send(AudioStart(**AUDIO))
            await self._send(AudioChunk(**AUDIO, audio=to_pcm16(chunk.pcm)))
        session.require_complete()
        if not begun:  # nothing to say; clients would take no samples for an error
            await self._send(AudioStart(**AUDIO))
            await self._send(AudioChunk(**AUDIO, audio=to_pcm16(np.zeros(NOTHING_SAMPLES, np.float32))))
        await self._send(AudioStop())

    def _info(self) -> Info:
        service, checkpoint = self._service, self._service.engine.checkpoint
        names = [*list_speakers(checkpoint), *(name for name, _ in service.voices.items())]
        if not names and checkpoint.config.variant == "voice_design":
            names = [DEFAULT_VOICE]
        spoken, codes = set(list_languages(checkpoint)), {name: code for code, name in NAMES.items()}
        languages = sorted(codes.get(name, name) for name in spoken - {"auto"})
        own: dict[str, Any] = {"attribution": _ATTRIBUTION, "installed": True, "version": version("megatalker")}
        voices = [TtsVoice(name=name, description=name, languages=languages, **own) for name in names]
        what = f"Qwen3-TTS: {self._aliases.model}"
        program = TtsProgram(
            name="megatalker", description=what, voices=voices, supports_synthesize_streaming=True, **own
        )
        return Info(tts=[program])


def wyoming_connection(settings: ServerSettings, places: Places) -> type[WyomingConnection]:
    """Return the class of one server's connections."""
    return type("WyomingConnection", (WyomingConnection,), {"settings": settings, "places": places})


async def read_event(reader: asyncio.StreamReader, most_bytes: int) -> Event | None:
    """Return the next event without its payload, which no event needs that a speech server takes; ``None`` at the end.

    Args:
        reader: its limit bounds the line.
        most_bytes: of data and payload together.

    Raises:
        InvalidRequestError: it is no event, or too long.
    """
    try:
        line = await reader.readline()
    except ValueError:
        raise InvalidRequestError(
            f"a line has more than {most_bytes} bytes; the server's setting max_message_bytes allows more"
        ) from None
    if not line.endswith(b"\n"):
        return None
    head = read_json(line)
    kind = head.get("type") if isinstance(head, dict) else None
    if not isinstance(kind, str):
        raise InvalidRequestError(f"a line is {line[:60]!r}: expected an event as a JSON object with a type")
    sizes = [head.get(name) or 0 for name in ("data_length", "payload_length")]
    if not all(type(size) is int and size >= 0 for size in sizes):
        raise InvalidRequestError(f"{kind:.40}: data_length and payload_length should be numbers of bytes")
    if sum(sizes) > most_bytes:
        raise InvalidRequestError(
            f"{kind:.40}: data and payload have {sum(sizes)} bytes, expected at most {most_bytes}; the server's "
            "setting max_message_bytes allows more"
        )
    data = head.get("data") or {}
    try:
        more = await reader.readexactly(sizes[0]) if sizes[0] else b""
        await reader.readexactly(sizes[1])
    except asyncio.IncompleteReadError:
        return None
    further = read_json(more) if more else {}
    if not isinstance(data, dict) or not isinstance(further, dict):
        raise InvalidRequestError(f"{kind:.40}: its data should be a JSON object")
    return Event(type=kind, data={**data, **further})


def _read(kind: Any, event: Event) -> Any:
    """Return the event as the library reads it."""
    if not isinstance(event.data.get("voice", {}), Mapping):
        raise InvalidRequestError(f"{event.type}: voice is {event.data['voice']!r:.60}, expected an object")
    try:
        return kind.from_event(event)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidRequestError(f"{event.type}: its data cannot be read ({error!r:.60})") from error


def _text(text: object, event: Event) -> str:
    if not isinstance(text, str):
        raise InvalidRequestError(f"{event.type}: text is {text!r:.60}, expected a text")
    return text
