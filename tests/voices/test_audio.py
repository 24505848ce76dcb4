import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from megatalker.errors import InvalidRequestError
from megatalker.serving.audio import StreamResampler, WavWriter, from_pcm16, to_pcm16
from megatalker.voices import read_reference

Samples = NDArray[np.float32]


def tone(seconds: float, rate: int, frequency: float = 440.0) -> Samples:
    return (0.5 * np.sin(2 * np.pi * frequency * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def encoded(samples: NDArray[Any], rate: int, format: str = "WAV", subtype: str | None = None) -> bytes:  # noqa: A002
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format=format, subtype=subtype)
    return buffer.getvalue()


def pitch(samples: Samples) -> float:
    return float(np.argmax(np.abs(np.fft.rfft(samples))) * 24_000 / len(samples))


def test_a_file_at_24_khz_is_read_unchanged(tmp_path: Path) -> None:
    path, samples = tmp_path / "voice.wav", tone(1, 24_000)
    soundfile.write(path, samples, 24_000, subtype="FLOAT")
    for source in (path, str(path), path.read_bytes(), (samples, 24_000), (samples[:, None], 24_000)):
        read = read_reference(source)
        assert read.dtype == np.float32
        np.testing.assert_array_equal(read, samples)


@pytest.mark.parametrize("rate", [8_000, 16_000, 44_100, 48_000])
@pytest.mark.parametrize("format", ["WAV", "FLAC", "MP3"])
def test_any_rate_and_format_becomes_24_khz_mono(rate: int, format: str) -> None:  # noqa: A002
    stereo = np.stack([tone(1, rate), tone(1, rate)], axis=1)
    read = read_reference(encoded(stereo, rate, format))
    assert read.ndim == 1
    assert len(read) == pytest.approx(24_000, abs=1)
    assert pitch(read) == pytest.approx(440, abs=2)
    assert np.abs(read[2_000:-2_000]).max() == pytest.approx(0.5, abs=0.06)  # lossy at low rates


def test_channels_are_averaged() -> None:
    left, right = tone(1, 24_000, 300), tone(1, 24_000, 900)
    np.testing.assert_allclose(read_reference((np.stack([left, right], 1), 24_000)), (left + right) / 2, atol=1e-7)


@pytest.mark.parametrize(
    ("dtype", "offset", "scale"), [(np.int16, 0, 2**15), (np.int32, 0, 2**31), (np.uint8, 128, 2**7)]
)
def test_integer_arrays_are_full_scale_pcm(dtype: Any, offset: int, scale: int) -> None:
    samples = tone(1, 24_000)
    quantised = (np.round(samples.astype(np.float64) * scale) + offset).astype(dtype)
    np.testing.assert_allclose(read_reference((quantised, 24_000)), samples, atol=0.6 / scale + 1e-7)


BAD_ARRAYS: list[tuple[Any, Any, str]] = [
    (tone(0.05, 24_000), 24_000, r"lasts 0.05 s, expected 0.5 to 60 s; record more"),
    (np.zeros(600 * 8_000, np.float32), 8_000, r"lasts 600.00 s, expected 0.5 to 60 s; cut it"),
    (np.zeros(24_000, np.float32), 24_000, "is silent"),
    (np.full((24_000, 2), [0.5, -0.5], np.float32), 24_000, "is silent"),
    (np.full(24_000, np.nan, np.float32), 24_000, "not finite"),
    (np.full(24_000, 1e300), 24_000, "not finite"),
    (np.zeros((24_000, 0), np.float32), 24_000, "no channels"),
    (tone(1, 24_000) * 32_768, 24_000, "reaches 16384, expected values from -1 to 1"),
    (np.zeros((2, 3, 4), np.float32), 24_000, r"shape \(2, 3, 4\)"),
    (np.array(["a"] * 24_000), 24_000, "expected numbers of shape"),
    (tone(1, 24_000), 0, "sampling rate is 0, expected an integer from 4000 to 384000"),
    (tone(1, 24_000), 24_000.0, "sampling rate is 24000.0"),
]


@pytest.mark.parametrize(("samples", "rate", "message"), BAD_ARRAYS)
def test_an_impossible_reference_is_refused(samples: Any, rate: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        read_reference((samples, rate))


def test_files_that_are_not_audio_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "note.wav"
    path.write_text("this is not audio")
    for source in (path, str(path)):
        with pytest.raises(InvalidRequestError, match=r"note\.wav is not audio that can be read"):
            read_reference(source)
    for content in (b"", b"RIFF", b"this is not audio" * 99):
        with pytest.raises(InvalidRequestError, match="the reference audio is not audio"):
            read_reference(content)
    for missing in (tmp_path / "missing.wav", tmp_path, "https://example.com/voice.wav"):
        with pytest.raises(InvalidRequestError, match="no such audio file"):
            read_reference(missing)


def test_a_long_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "long.wav"
    soundfile.write(path, np.zeros(61 * 8_000, np.int16), 8_000)
    with pytest.raises(InvalidRequestError, match=r"lasts 61.00 s"):
        read_reference(path)


def test_pcm16_is_rounded_and_clipped() -> None:
    samples = np.array([0, 1, -1, 2, -7, 0.5, 1.4 / 32767, 1.6 / 32767, -1.6 / 32767], np.float32)
    assert struct.unpack("<9h", to_pcm16(samples)) == (0, 32767, -32767, 32767, -32767, 16384, 1, 2, -2)


def test_pcm16_is_read_to_the_last_whole_sample() -> None:
    assert from_pcm16(struct.pack("<3h", 0, 32767, -32767) + b"\x01").tolist() == [0.0, 1.0, -1.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_pcm16_refuses_samples_that_are_not_finite(bad: float) -> None:
    with pytest.raises(InvalidRequestError, match="not finite"):
        to_pcm16(np.array([0, bad], np.float32))


@pytest.mark.parametrize("float32", [False, True])
def test_a_wav_is_complete_after_every_chunk(tmp_path: Path, float32: bool) -> None:
    path, chunks = tmp_path / "out.wav", [tone(0.08, 24_000), tone(0.16, 24_000, 200), tone(0.08, 24_000, 700)]
    with WavWriter(path, float32=float32) as writer:
        for count in range(4):
            content = path.read_bytes()
            assert struct.unpack("<I", content[4:8])[0] == len(content) - 8
            place = content.index(b"data")
            assert struct.unpack("<I", content[place + 4 : place + 8])[0] == len(content) - place - 8
            samples, rate = soundfile.read(path, dtype="float32")
            assert rate == 24_000
            np.testing.assert_allclose(
                samples, np.concatenate([np.zeros(0), *chunks[:count]]), atol=0 if float32 else 4e-5
            )
            if count < 3:
                writer.write(chunks[count])
    info = soundfile.info(path)
    assert (info.format, info.subtype, info.channels) == ("WAV", "FLOAT" if float32 else "PCM_16", 1)


@pytest.mark.parametrize("float32", [False, True])
def test_our_wav_equals_that_of_the_sound_library(float32: bool) -> None:
    ours, samples = io.BytesIO(), tone(0.5, 16_000)
    WavWriter(ours, rate=16_000, float32=float32).write(samples)
    library = encoded(samples, 16_000, subtype="FLOAT" if float32 else "PCM_16")
    mine, theirs = ours.getvalue(), library
    assert mine[mine.index(b"fmt ") :][8:24] == theirs[theirs.index(b"fmt ") :][8:24]
    read, expected = (soundfile.read(io.BytesIO(content))[0] for content in (mine, theirs))
    np.testing.assert_allclose(read, expected, atol=0 if float32 else 1.01 / 2**15)


def test_a_file_object_stays_open_and_keeps_what_was_before() -> None:
    target = io.BytesIO()
    target.write(b"before")
    with WavWriter(target) as writer:
        writer.write(tone(0.08, 24_000))
    assert not target.closed
    assert target.getvalue()[:10] == b"beforeRIFF"
    assert soundfile.info(io.BytesIO(target.getvalue()[6:])).frames == 1920


class Pipe(io.BytesIO):
    def seekable(self) -> bool:
        return False

    def seek(self, *_: object) -> int:
        raise OSError("a pipe cannot seek")

    tell = seek


def test_a_pipe_gets_a_header_of_unknown_length() -> None:
    pipe = Pipe()
    WavWriter(pipe).write(tone(0.08, 24_000))
    content = pipe.getvalue()
    assert struct.unpack("<I", content[40:44])[0] == 0xFFFFFFFF
    assert len(content) == 44 + 2 * 1920


def test_a_wav_that_cannot_be_created_is_refused_by_name(tmp_path: Path) -> None:
    for path in (tmp_path / "missing" / "out.wav", tmp_path):
        with pytest.raises(InvalidRequestError, match=r"cannot write .*expected a file name"):
            WavWriter(path)


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 48_000])
@pytest.mark.parametrize("fast", [False, True])
def test_resampling_in_chunks_equals_resampling_at_once_and_loses_nothing(rate: int, fast: bool) -> None:
    samples = tone(1.3, 24_000)
    streaming, at_once = StreamResampler(rate, fast=fast), StreamResampler(rate, fast=fast)
    pieces = [streaming.process(piece) for piece in np.split(samples, [1920, 1921, 9000, 9001, 20_000])]
    joined = np.concatenate([*pieces, streaming.finish()])
    whole = np.concatenate([at_once.process(samples), at_once.finish()])
    assert joined.dtype == np.float32
    assert len(joined) == pytest.approx(1.3 * rate, abs=1)
    np.testing.assert_allclose(joined, whole, atol=1e-6)
    middle = slice(len(joined) // 4, -len(joined) // 4)
    np.testing.assert_allclose(joined[middle], tone(1.3, rate)[: len(joined)][middle], atol=2e-3)


def test_the_fast_filter_lags_less() -> None:
    chunk = tone(0.08, 24_000)
    assert len(StreamResampler(8_000, fast=True).process(chunk)) > len(StreamResampler(8_000).process(chunk))


def test_the_same_rate_passes_through() -> None:
    resampler, chunk = StreamResampler(24_000), tone(0.08, 24_000)
    np.testing.assert_array_equal(resampler.process(chunk), chunk)
    assert len(resampler.finish()) == 0


@pytest.mark.parametrize("rate", [0, -8_000, 100, 10**9, 16_000.0, True, None])
def test_an_impossible_rate_is_refused(rate: Any) -> None:
    with pytest.raises(InvalidRequestError, match="sampling rate is"):
        StreamResampler(rate)
