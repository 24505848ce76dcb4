"""Speech is marked as synthetic: in the metadata of every container and in headers; its samples stay what they are."""

import io
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import av
import httpx
import numpy as np
import pytest
import soundfile

from http_client import post
from megatalker.checkpoint import Checkpoint
from megatalker.cli.say.destination import Destination
from megatalker.serving.audio import SOURCE_TYPE, SYNTHETIC, WavWriter
from megatalker.serving.server import app
from megatalker.serving.server.encoding import ENCODERS, ResponseFormat, make_encoder
from serving import TEXT, Served, serving
from waiting import HANG_S

CONTAINERS = ["mp3", "opus", "aac", "flac", "wav"]
BARE = ["pcm", "pcm_mulaw", "pcm_alaw"]
HEADER = "x-megatalker-source-type"
SOUND = (0.3 * np.sin(2 * np.pi * 220 * np.arange(12_001) / 24_000)).astype(np.float32)


@pytest.fixture(scope="module")
def shared(tiny_custom_voice: Checkpoint) -> Iterator[Served]:
    with serving(tiny_custom_voice) as served:
        yield served


@pytest.fixture(scope="module")
def unmarked(tiny_custom_voice: Checkpoint) -> Iterator[Served]:
    with serving(tiny_custom_voice, server={"mark_synthetic": False}) as served:
        yield served


def comment_of(content: bytes) -> str | None:
    """The comment that a player shows."""
    with av.open(io.BytesIO(content)) as file:
        found = {name.lower(): text for name, text in {**file.metadata, **file.streams[0].metadata}.items()}
    return found.get("comment")


def samples_of(content: bytes) -> np.ndarray:
    with av.open(io.BytesIO(content)) as file:
        return np.concatenate([frame.to_ndarray().ravel() for frame in file.decode(audio=0)])


def encoded(kind: ResponseFormat, comment: str | None, file: io.BytesIO | None = None) -> bytes:
    encoder = make_encoder(kind, file=file, comment=comment)
    data = b"".join(encoder.encode(SOUND[at : at + 1920]) for at in range(0, len(SOUND), 1920)) + encoder.finish()
    return data if file is None else file.getvalue()


def test_all_formats_are_looked_at() -> None:
    assert {*CONTAINERS, *BARE} == set(ENCODERS)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("kind", CONTAINERS)
def test_every_container_says_so_and_has_the_same_samples(kind: ResponseFormat, whole: bool) -> None:
    marked, plain = (encoded(kind, comment, io.BytesIO() if whole else None) for comment in (SYNTHETIC, None))
    assert comment_of(marked) == SYNTHETIC
    assert comment_of(plain) is None
    np.testing.assert_array_equal(samples_of(marked), samples_of(plain))


@pytest.mark.parametrize("kind", BARE)
def test_bare_samples_have_no_place_for_it(kind: ResponseFormat) -> None:
    assert encoded(kind, SYNTHETIC) == encoded(kind, None)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("kind", CONTAINERS)
def test_the_route_marks_files_and_responses(shared: Served, kind: str, stream: bool) -> None:
    response = post(shared, response_format=kind, stream=stream)
    assert response.headers[HEADER] == SOURCE_TYPE
    assert comment_of(response.content) == SYNTHETIC


def test_other_responses_with_speech_have_the_header(shared: Served) -> None:
    assert post(shared, stream_format="sse").headers[HEADER] == SOURCE_TYPE
    assert post(shared, response_format="pcm").headers[HEADER] == SOURCE_TYPE
    assert httpx.post(shared.url + "/tts/stream", json={"text": TEXT}, timeout=HANG_S).headers[HEADER] == SOURCE_TYPE
    assert HEADER not in post(shared, voice="nobody").headers


@pytest.mark.parametrize("kind", CONTAINERS)
def test_a_setting_turns_it_off(unmarked: Served, kind: str) -> None:
    response = post(unmarked, response_format=kind)
    assert HEADER not in response.headers
    assert comment_of(response.content) is None
    if kind == "wav":
        assert response.content.index(b"data") == 36
    answer = httpx.post(unmarked.url + "/tts/stream", json={"text": TEXT}, timeout=HANG_S)
    assert HEADER not in answer.headers


@pytest.mark.parametrize("name", ["x.wav", "x.mp3", "x.flac", "x.opus", "x.aac", "x.m4a"])
def test_files_of_the_command_line_say_so(name: str, tmp_path: Path) -> None:
    destination = Destination(str(tmp_path / name), play=False)
    destination.write(SOUND)
    destination.finish()
    assert comment_of((tmp_path / name).read_bytes()) == SYNTHETIC


@pytest.mark.parametrize("comment", ["odd", "even"])
def test_a_wav_with_a_comment_is_whole_after_every_chunk(comment: str, tmp_path: Path) -> None:
    with WavWriter(tmp_path / "x.wav", comment=comment) as writer:
        for count in range(3):
            content = (tmp_path / "x.wav").read_bytes()
            assert int.from_bytes(content[4:8], "little") == len(content) - 8
            assert soundfile.info(tmp_path / "x.wav").frames == count * 1920
            assert comment_of(content) == comment or not count
            writer.write(SOUND[:1920])


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_files_that_the_page_saves_say_so(tmp_path: Path) -> None:
    script = (Path(app.__file__).parent / "static" / "wav.js").read_text().replace("export function", "function")
    script += (
        "wav([new Float32Array([0, 0.5, -1])], 24000).arrayBuffer().then(b => process.stdout.write(Buffer.from(b)));"
    )
    content = subprocess.run(["node", "-e", script], capture_output=True, check=True).stdout
    assert int.from_bytes(content[4:8], "little") == len(content) - 8
    assert comment_of(content) == SYNTHETIC
    assert soundfile.read(io.BytesIO(content), dtype="int16")[0].tolist() == [0, 16384, -32767]
