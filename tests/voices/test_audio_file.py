"""Files as phones, browsers and pipes make them, and files that were made to harm."""

import builtins
import io
import struct
from typing import Any

import av
import numpy as np
import pytest
import soundfile

from megatalker.errors import InvalidRequestError, UnsupportedError
from megatalker.voices import audio_file, read_reference
from megatalker.voices.audio_file import decode_audio
from voice_recordings import Samples, speech, wav


def compressed(
    samples: Samples, container: str, codec: str, rate: int = 48_000, layout: str = "mono", **options: str
) -> bytes:
    """Made by FFmpeg, as phones and browsers make it."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container, options=options) as file:
        stream = file.add_stream(codec, rate=rate, layout=layout)
        for at in range(0, len(samples), 960):
            channels = 2 if layout == "stereo" else 1
            piece = np.repeat(samples[None, at : at + 960], channels, 0)
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(piece), format="fltp", layout=layout)
            frame.sample_rate, frame.pts = rate, at
            for packet in stream.encode(frame):
                file.mux(packet)
        for packet in stream.encode(None):
            file.mux(packet)
    return buffer.getvalue()


def with_picture(samples: Samples) -> bytes:
    """A video."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as file:
        video, audio = file.add_stream("mpeg4", rate=25), file.add_stream("aac", rate=48_000, layout="mono")
        video.width, video.height, video.pix_fmt = 64, 64, "yuv420p"
        for number in range(10):
            picture = av.VideoFrame.from_ndarray(np.full((64, 64, 3), 20 * number, np.uint8), format="rgb24")
            for packet in video.encode(picture):
                file.mux(packet)
        for at in range(0, len(samples), 960):
            frame = av.AudioFrame.from_ndarray(samples[None, at : at + 960], format="fltp", layout="mono")
            frame.sample_rate, frame.pts = 48_000, at
            for packet in audio.encode(frame):
                file.mux(packet)
        for stream in (video, audio):
            for packet in stream.encode(None):
                file.mux(packet)
    return buffer.getvalue()


SPOKEN = speech(3, rate=48_000)


@pytest.mark.parametrize(
    "content",
    [
        compressed(SPOKEN, "ipod", "aac"),
        compressed(SPOKEN, "ipod", "aac", layout="stereo"),
        compressed(SPOKEN, "mp4", "aac", movflags="frag_keyframe+empty_moov"),
        compressed(SPOKEN, "webm", "libopus"),
        compressed(SPOKEN, "adts", "aac"),
        compressed(SPOKEN, "3gp", "aac"),
        with_picture(SPOKEN),
    ],
    ids=["m4a", "stereo m4a", "fragmented mp4", "webm", "aac", "3gp", "video"],
)
def test_recordings_of_phones_and_browsers_are_read(content: bytes) -> None:
    with pytest.raises(soundfile.LibsndfileError):
        soundfile.read(io.BytesIO(content))
    read = read_reference(content)
    assert len(read) == pytest.approx(3 * 24_000, abs=2_400)
    assert float(np.sqrt(np.square(read).mean())) == pytest.approx(float(np.sqrt(np.square(SPOKEN).mean())), rel=0.15)


def without_pyav(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = builtins.__import__

    def refuse(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "av":
            raise ImportError(name)
        return usual(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)


def test_without_pyav_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    content = compressed(SPOKEN, "ipod", "aac")
    without_pyav(monkeypatch)
    assert len(read_reference(wav(speech()))) == 3 * 24_000
    with pytest.raises(UnsupportedError, match="M4A, MP4, AAC and WebM need PyAV: pip install av"):
        read_reference(content)


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0x7FFFFFFF, 0])
def test_a_wav_from_a_pipe_has_no_length_in_its_header(size: int) -> None:
    content = bytearray(wav(speech()))
    place = content.index(b"data")
    content[4:8] = content[place + 4 : place + 8] = struct.pack("<I", size)
    np.testing.assert_allclose(read_reference(bytes(content)), speech(), atol=4e-5)


def test_a_flac_from_a_pipe_has_no_length_in_its_header() -> None:
    content = bytearray(encoded(speech(), "FLAC"))
    content[21] &= 0xF0
    content[22:26] = bytes(4)
    np.testing.assert_allclose(read_reference(bytes(content)), speech(), atol=4e-5)


def encoded(samples: Any, format: str, subtype: str | None = None, rate: int = 24_000) -> bytes:  # noqa: A002
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format=format, subtype=subtype)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "tolerance"),
    [
        (wav(speech(), subtype="PCM_24"), 1e-6),
        (wav(speech(), subtype="PCM_U8"), 1e-2),
        (wav(speech(), subtype="ALAW"), 2e-2),
        (wav(speech(), subtype="ULAW"), 2e-2),
        (wav(speech(), subtype="DOUBLE"), 1e-7),
        (encoded(np.repeat(speech()[:, None], 8, 1), "WAV"), 4e-5),
        (encoded(speech(), "AIFF"), 4e-5),
        (encoded(speech(), "CAF"), 4e-5),
    ],
    ids=["24 bits", "8 bits", "A-law", "mu-law", "double", "8 channels", "AIFF", "CAF"],
)
def test_unusual_files_are_read(content: bytes, tolerance: float) -> None:
    np.testing.assert_allclose(read_reference(content), speech(), atol=tolerance)


def test_floating_point_recordings_may_exceed_full_scale() -> None:
    np.testing.assert_allclose(read_reference(wav(5 * speech(), subtype="FLOAT")), 5 * speech(), atol=1e-6)


def test_channels_that_cancel_each_other_are_not_silent() -> None:
    spoken = speech()
    np.testing.assert_array_equal(read_reference((np.stack([spoken, -spoken], 1), 24_000)), spoken)
    read = read_reference(wav(np.stack([0.9 * spoken, -spoken], 1)))
    np.testing.assert_allclose(read, -spoken, atol=4e-5)
    centre = np.zeros((len(spoken), 6), np.float32)
    centre[:, 2] = spoken
    np.testing.assert_array_equal(read_reference((centre, 24_000)), spoken)
    with pytest.raises(InvalidRequestError, match="is silent"):
        read_reference((np.full((72_000, 2), 0.3, np.float32), 24_000))


HOUR_OF_SILENCE = encoded(np.zeros(3_600 * 8_000, np.int16), "FLAC", rate=8_000)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", r"is empty \(0 bytes\)"),
        (wav(speech())[:44], "holds no sound"),
        (wav(speech())[:20], "is not audio that can be read"),
        (encoded(speech(), "OGG")[:3_000], "is not audio that can be read"),
        (encoded(speech(), "FLAC")[:20_000], r"cannot be decoded beyond \d\.\d s: it is damaged or was cut off"),
        (compressed(SPOKEN, "ipod", "aac")[:12_000], "was cut off"),
        (compressed(SPOKEN, "adts", "aac")[:12_000], r"cannot be decoded beyond \d\.\d s"),
        (wav(speech(0.2)), r"lasts 0\.20 s, expected 0\.5 to 60 s; record more"),
        (HOUR_OF_SILENCE, r"lasts 3600\.00 s, expected 0\.5 to 60 s; cut it"),
        (compressed(np.zeros(70 * 48_000, np.float32), "webm", "libopus"), "expected 0.5 to 60 s; cut it"),
        (wav(speech(), 1), "sampling rate is 1, expected an integer from 4000"),
        (wav(speech(), 1_000_000), "sampling rate is 1000000"),
        (encoded(np.repeat(speech()[:, None], 40, 1), "WAV"), "has 40 channels, expected at most 16"),
        (wav(np.full(24_000, np.nan, np.float32), subtype="FLOAT"), "not finite"),
        (wav(np.full(24_000, np.inf, np.float32), subtype="FLOAT"), "not finite"),
        (b"#EXTM3U\n#EXTINF:9,\nhttp://127.0.0.1:9/x.ts\n#EXT-X-ENDLIST\n", "is not audio"),
        (b"ffconcat version 1.0\nfile /etc/hostname\n", "is not audio"),
        (b"\x00" * 100_000, "is not audio"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_used_is_refused_in_words(content: bytes, complaint: str) -> None:
    with pytest.raises(InvalidRequestError, match=complaint) as refusal:
        read_reference(content)
    assert "object at 0x" not in str(refusal.value)
    assert " 0.00 s" not in str(refusal.value)


class Counted:
    """Counts what is decoded."""

    samples = 0

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        by_soundfile, by_av = audio_file._by_soundfile, audio_file._by_av

        def count(blocks: Any) -> Any:
            for block, rate in blocks:
                self.samples += len(block)
                yield block, rate

        monkeypatch.setattr(audio_file, "_by_soundfile", lambda file: count(by_soundfile(file)))
        monkeypatch.setattr(audio_file, "_by_av", lambda *arguments: count(by_av(*arguments)))


def test_hours_of_silence_are_refused_before_they_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    assert len(HOUR_OF_SILENCE) < 200_000
    with pytest.raises(InvalidRequestError, match="3600"):
        decode_audio(HOUR_OF_SILENCE)
    assert counted.samples == 0
    nameless = bytearray(HOUR_OF_SILENCE)  # as a pipe leaves it: without a length
    nameless[21] &= 0xF0
    nameless[22:26] = bytes(4)
    with pytest.raises(InvalidRequestError, match="lasts more than 60 s"):
        decode_audio(bytes(nameless))
    assert counted.samples <= 61 * 8_000


def test_packets_without_sound_do_not_keep_a_thread_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audio_file, "MAX_DECODE_S", -1.0)
    with pytest.raises(InvalidRequestError, match="takes too long to decode"):
        decode_audio(compressed(SPOKEN, "webm", "libopus"))
