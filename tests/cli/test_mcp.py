"""``megatalker mcp``, used by the client of the package ``mcp`` over standard input and output."""

import asyncio
import base64
import io
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import soundfile

from commands import COMMAND
from megatalker.checkpoint import Checkpoint
from serving import serving

mcp = pytest.importorskip("mcp")
pytestmark = pytest.mark.slow
TEXT = "Hello there."
Talk = Callable[[Any], Awaitable[None]]


def with_client(talk: Talk, tmp_path: Path, *options: str) -> None:
    """Start the command, and let ``talk`` use its tools."""
    environment = os.environ | {"MEGATALKER_BACKENDS__COMPILED__COMPILE": "off"}
    command = mcp.StdioServerParameters(
        command=COMMAND[0],
        args=[*COMMAND[1:], "mcp", "--out", str(tmp_path / "out"), *options],
        env=environment,
        cwd=tmp_path,
    )

    async def run() -> None:
        async with mcp.Client(command, read_timeout_seconds=120) as client:
            await talk(client)

    asyncio.run(run())


def test_an_assistant_speaks_into_files_and_as_audio(tmp_path: Path) -> None:
    async def talk(client: Any) -> None:
        assert {tool.name for tool in (await client.list_tools()).tools} == {"speak", "list_voices", "clone_voice"}
        voices = (await client.call_tool("list_voices", {})).structured_content["result"]
        assert {"id": "mina", "kind": "speaker"} in voices
        for number, kind in enumerate(("wav", "mp3", "flac"), 1):
            spoken = await client.call_tool("speak", {"text": TEXT, "voice": "mina", "audio_format": kind})
            text, link = spoken.content
            path = (tmp_path / "out" / f"speech-{number}.{kind}").resolve()
            assert str(path) in text.text
            assert (str(link.uri), link.size) == (path.as_uri(), path.stat().st_size)
            assert 0.4 < soundfile.info(path).duration < 5
        (audio,) = (await client.call_tool("speak", {"text": TEXT, "output": "audio"})).content
        assert audio.mime_type == "audio/wav"
        assert soundfile.info(io.BytesIO(base64.b64decode(audio.data))).samplerate == 24_000

    with_client(talk, tmp_path)


def test_errors_come_in_the_words_of_the_engine(tmp_path: Path) -> None:
    async def talk(client: Any) -> None:
        for name, arguments, message in [
            ("speak", {"text": TEXT, "voice": "nobody"}, "nobody"),
            ("speak", {"text": " "}, "the text is empty"),
            ("clone_voice", {"name": "anna", "recording": "nothing.wav"}, "cannot be read: No such file"),
            ("clone_voice", {"name": "anna", "recording": __file__}, "voice"),
        ]:
            result = await client.call_tool(name, arguments)
            assert result.is_error
            assert message in result.content[0].text

    with_client(talk, tmp_path)


def test_a_cloned_voice_speaks(tmp_path: Path) -> None:
    async def talk(client: Any) -> None:
        recording = {"name": "anna", "recording": str(tmp_path / "reference.wav")}
        result = await client.call_tool("clone_voice", recording)
        assert not result.is_error, result.content
        voices = (await client.call_tool("list_voices", {})).structured_content["result"]
        assert [voice["id"] for voice in voices] == ["anna"]
        assert not (await client.call_tool("speak", {"text": TEXT, "voice": "anna"})).is_error

    async def record(client: Any) -> None:
        text = "This recording is long enough to be cloned, since it lasts for more than three seconds."
        spoken = await client.call_tool("speak", {"text": text, "voice": "mina"})
        Path(str(spoken.content[1].uri).removeprefix("file://")).rename(tmp_path / "reference.wav")

    with_client(record, tmp_path)
    with_client(talk, tmp_path, "--checkpoint", "demo-base")


def test_a_server_speaks(tmp_path: Path, tiny_custom_voice: Checkpoint) -> None:
    with serving(tiny_custom_voice, server={"api_key": "secret"}) as served:

        async def talk(client: Any) -> None:
            voices = (await client.call_tool("list_voices", {})).structured_content["result"]
            assert all(voice["kind"] == "speaker" for voice in voices)
            assert not (await client.call_tool("speak", {"text": TEXT, "voice": voices[0]["id"]})).is_error
            assert soundfile.info(tmp_path / "out" / "speech-1.wav").frames > 0
            refused = await client.call_tool("clone_voice", {"name": "anna", "recording": __file__})
            assert refused.is_error

        with_client(talk, tmp_path, "--url", served.url, "--api-key", "secret")
