"""Tools of the Model Context Protocol: an assistant speaks, lists voices and clones one."""

import asyncio
import base64
import io
import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, ParamSpec, TypeVar

import httpx2
import numpy as np
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import AudioContent, ContentBlock, ResourceLink, TextContent
from pydantic import Field

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.cli.say.formats import Format
from megatalker.cli.say.writers import open_writer
from megatalker.engine.speech.outputs import require_complete
from megatalker.engine.speech.protocols import SpeechEngine
from megatalker.errors import InvalidRequestError, MegatalkerError
from megatalker.serving.protocol.asking import key_headers
from megatalker.settings import Settings
from megatalker.voices import Voice, list_speakers
from megatalker.voices.cache import VoiceCache
from megatalker.voices.folder import Manifest, Recording
from megatalker.voices.library import VoiceLibrary

P = ParamSpec("P")
T = TypeVar("T")

MOST_INLINE_S = 60.0
"""Seconds of audio that are returned within a result: 4 MB as base64."""
MOST_AT_A_TIME = 4
"""Tools that work at a time; others wait."""
ANSWER_S = 120.0
"""Seconds that a server may take to clone a voice."""
MIME_TYPES = {"wav": "audio/wav", "mp3": "audio/mpeg", "flac": "audio/flac"}


class VoiceSource(ABC):
    """Voices that can be asked for. Methods block."""

    @abstractmethod
    def list(self) -> list[dict[str, str]]:
        """Return id, kind and maybe a summary of each voice."""

    @abstractmethod
    def clone(self, name: str, reference: bytes, transcript: str | None) -> None:
        """Keep a recording as a voice; raises ``InvalidRequestError`` where it cannot be one."""

    @abstractmethod
    def find(self, name: str | None) -> str | Voice | None:
        """Return what an engine takes for this name."""


class LocalVoices(VoiceSource):
    """The checkpoint's speakers, and recordings in a folder."""

    def __init__(self, checkpoint: Checkpoint, settings: Settings, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        cache = VoiceCache[Voice](settings.server.voice_cache_size, settings.server.voice_cache_ttl_s)
        self._checkpoint = checkpoint
        self._library = VoiceLibrary(folder, checkpoint, cache, settings.max_reference_s)

    def list(self) -> list[dict[str, str]]:
        self._library.look_again()
        speakers = [{"id": name, "kind": "speaker"} for name in list_speakers(self._checkpoint)]
        kept = self._library.items()
        return speakers + [{"id": name, "kind": entry.kind, "summary": entry.summary} for name, entry in kept]

    def clone(self, name: str, reference: bytes, transcript: str | None) -> None:
        manifest = Manifest(in_context=transcript is not None)
        self._library.add(name, Recording(manifest, reference, transcript))

    def find(self, name: str | None) -> str | Voice | None:
        self._library.look_again()
        return name if name is None else self._library.get(name) or name


class ServerVoices(VoiceSource):
    """The voices of a megatalker server."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self._client = httpx2.Client(base_url=url.rstrip("/"), headers=key_headers(api_key), timeout=ANSWER_S)

    def list(self) -> list[dict[str, str]]:
        found: list[dict[str, str]] = self._ask("GET")["data"]
        return found

    def clone(self, name: str, reference: bytes, transcript: str | None) -> None:
        fields = {"name": name} | ({} if transcript is None else {"transcript": transcript})
        self._ask("POST", data=fields, files={"reference": ("reference", reference)})

    def find(self, name: str | None) -> str | Voice | None:
        return name

    def _ask(self, method: str, **content: Any) -> Any:
        try:
            answer = self._client.request(method, "/v1/voices", **content)
            told = answer.json()
        except (httpx2.HTTPError, ValueError) as error:
            raise InvalidRequestError(f"the server cannot be asked for its voices: {error}") from error
        if answer.is_error:
            raise InvalidRequestError(str(told.get("error", {}).get("message", answer.status_code)))
        return told


class SpeechTools:
    """The tools, as methods; errors are ``ToolError`` with the engine's own words.

    Args:
        engine: speaks; in this process or a server's.
        voices: theirs.
        folder: where files of speech are written.
    """

    def __init__(self, engine: SpeechEngine, voices: VoiceSource, folder: Path) -> None:
        self._engine, self._voices, self._folder = engine, voices, folder
        self._numbers = itertools.count(1)
        self._turns = asyncio.Semaphore(MOST_AT_A_TIME)

    async def speak(
        self,
        text: Annotated[str, Field(description="What to say.")],
        voice: Annotated[str | None, Field(description="A name from list_voices.")] = None,
        language: Annotated[str | None, Field(description="Such as english or en; by default found out.")] = None,
        instructions: Annotated[str | None, Field(description="How to say it, where the model follows it.")] = None,
        audio_format: Annotated[Literal["wav", "mp3", "flac"], Field(description="Format of the file.")] = "wav",
        output: Annotated[
            Literal["file", "audio"], Field(description="A new file, or the audio within the result (60 s at most).")
        ] = "file",
    ) -> list[ContentBlock]:
        """Speak a text aloud, into an audio file or as audio."""
        samples = await self._work(self._spoken, text, voice, language, instructions)
        seconds = len(samples) / SAMPLE_RATE
        if output == "audio":
            if seconds > MOST_INLINE_S:
                raise ToolError(f"the speech lasts {seconds:.0f} s, expected at most {MOST_INLINE_S:g}; ask for a file")
            data = base64.b64encode(await self._work(_wav, samples)).decode()
            return [AudioContent(type="audio", data=data, mime_type="audio/wav")]
        path = await self._work(self._written, samples, audio_format)
        mime, size = MIME_TYPES[audio_format], path.stat().st_size
        link = ResourceLink(type="resource_link", name=path.name, uri=path.as_uri(), mime_type=mime, size=size)
        return [TextContent(type="text", text=f"{seconds:.1f} s of speech in {path}"), link]

    async def list_voices(self) -> list[dict[str, str]]:
        """List the voices that speak can use."""
        return await self._work(self._voices.list)

    async def clone_voice(
        self,
        name: Annotated[str, Field(description="What the voice shall be called.")],
        recording: Annotated[str, Field(description="Path of an audio file with 3 to 15 s of clear speech.")],
        transcript: Annotated[str | None, Field(description="Every word that is said in it; clones better.")] = None,
    ) -> str:
        """Clone a voice from a recording, under a name for speak. Only with the consent of the person who speaks."""
        try:
            reference = await asyncio.to_thread(Path(recording).expanduser().read_bytes)
        except OSError as error:
            raise ToolError(f"{recording!r} cannot be read: {error.strerror}") from error
        await self._work(self._voices.clone, name, reference, transcript)
        return f"voice {name!r} can speak now"

    async def _work(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        async with self._turns:
            try:
                return await asyncio.to_thread(work, *args, **kwargs)
            except (MegatalkerError, OSError) as error:
                raise ToolError(str(error)) from error

    def _spoken(
        self, text: str, voice: str | None, language: str | None, instructions: str | None
    ) -> np.ndarray[Any, np.dtype[np.float32]]:
        found = self._voices.find(voice)
        with self._engine.speak(text, voice=found, language=language, instruct=instructions) as stream:
            samples = stream.read_all()
        require_complete(stream.facts())
        return samples

    def _written(self, samples: np.ndarray[Any, np.dtype[np.float32]], kind: str) -> Path:
        """Write a file of a name that is free."""
        self._folder.mkdir(parents=True, exist_ok=True)
        while True:
            path = self._folder / f"speech-{next(self._numbers)}.{kind}"
            try:
                os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o644))
            except FileExistsError:
                continue
            break
        writer = open_writer(path, Format(kind), SAMPLE_RATE)
        try:
            writer.write(samples)
        finally:
            writer.close()
        return path.resolve()


def _wav(samples: np.ndarray[Any, np.dtype[np.float32]]) -> bytes:
    from megatalker.serving.audio import SYNTHETIC, WavWriter

    file = io.BytesIO()
    WavWriter(file, comment=SYNTHETIC).write(samples)
    return file.getvalue()


def make_server(tools: SpeechTools) -> MCPServer:
    """Return the server of these tools; ``run("stdio")`` serves them."""
    from importlib.metadata import version

    server = MCPServer("megatalker", version=version("megatalker"), log_level="WARNING")
    for tool in (tools.speak, tools.list_voices, tools.clone_voice):
        structured = tool == tools.list_voices
        server.tool(structured_output=structured)(tool)
    return server
