"""Bare samples: other rates, G.711, frames of telephones."""

from typing import Any

import av
import numpy as np
import pytest
import soxr
from numpy.typing import NDArray

from megatalker.errors import InvalidRequestError
from megatalker.serving.samples import SAMPLE_RATES, SampleEncoder, SampleFormat, SampleFrames, to_bytes

FORMATS: tuple[SampleFormat, ...] = ("s16le", "f32le", "pcm_mulaw", "pcm_alaw")
OTHER_RATES = [rate for rate in SAMPLE_RATES if rate != 24_000]
Samples = NDArray[np.float32]


def noise(seconds: float, lowest: float = 0.0) -> Samples:
    """Noise from this frequency on, in Hz; it never clips."""
    count = round(24_000 * seconds)
    spectrum = np.fft.rfft(np.random.default_rng(7).standard_normal(count))
    spectrum[np.fft.rfftfreq(count, 1 / 24_000) < lowest] = 0
    sound = np.fft.irfft(spectrum, count)
    return (0.5 * sound / np.abs(sound).max()).astype(np.float32)


def converted(sound: Samples, kind: SampleFormat, rate: int, sizes: list[int]) -> bytes:
    """The sound in chunks of these sizes, over and over."""
    encoder, data, at, turn = SampleEncoder(kind, rate), b"", 0, 0
    while at < len(sound):
        data += encoder.encode(sound[at : at + sizes[turn % len(sizes)]])
        at, turn = at + sizes[turn % len(sizes)], turn + 1
    return data + encoder.finish()


def heard(data: bytes, kind: SampleFormat) -> NDArray[np.int16]:
    """16-bit samples that FFmpeg's decoder of this law makes of it."""
    decoder = av.AudioCodecContext.create(kind, "r")
    decoder.sample_rate, decoder.layout = 8_000, "mono"
    return np.concatenate([frame.to_ndarray().ravel() for frame in decoder.decode(av.Packet(data))])


def decibels(part: float, whole: float) -> float:
    return float(10 * np.log10(part / whole))


# ---- rates


@pytest.mark.parametrize("sizes", [[1920], [1920, 3840, 7680, 15_360], [1], [1, 7, 500, 0]], ids=str)
@pytest.mark.parametrize("rate", OTHER_RATES)
def test_no_border_of_chunks_is_heard(rate: int, sizes: list[int]) -> None:
    sound = noise(0.7)
    whole = np.rint(32767 * soxr.resample(sound, 24_000, rate)).astype(int)
    found = np.frombuffer(converted(sound, "s16le", rate, sizes), "<i2").astype(int)
    assert len(found) == len(whole)
    assert np.abs(found - whole).max() <= 1


@pytest.mark.parametrize("rate", [rate for rate in OTHER_RATES if rate < 24_000])
def test_nothing_above_the_new_half_rate_comes_back_as_an_alias(rate: int) -> None:
    sound = noise(2.0, lowest=rate / 2)
    found = np.frombuffer(converted(sound, "f32le", rate, [1920]), "<f4")[rate // 4 : -rate // 4]
    assert decibels(float(np.mean(found**2)), float(np.mean(sound**2))) < -80


@pytest.mark.parametrize("rate", [rate for rate in OTHER_RATES if rate > 24_000])
def test_no_image_appears_above_the_old_half_rate(rate: int) -> None:
    found = np.frombuffer(converted(noise(2.0), "f32le", rate, [1920]), "<f4")
    spectrum = np.abs(np.fft.rfft(found * np.blackman(len(found)))) ** 2
    above = np.fft.rfftfreq(len(found), 1 / rate) > 12_000
    assert decibels(float(spectrum[above].sum()), float(spectrum.sum())) < -80


@pytest.mark.parametrize("rate", OTHER_RATES)
def test_the_sound_below_is_kept(rate: int) -> None:
    count = np.arange(48_000)
    for hertz in (200, 1_000, 3_400):
        sound = (0.5 * np.sin(2 * np.pi * hertz * count / 24_000)).astype(np.float32)
        found = np.frombuffer(converted(sound, "f32le", rate, [1920]), "<f4")
        expected = 0.5 * np.sin(2 * np.pi * hertz * np.arange(len(found)) / rate)
        np.testing.assert_allclose(found[rate // 4 : -rate // 4], expected[rate // 4 : -rate // 4], atol=1e-3)


def test_the_engines_own_rate_passes_through_at_once() -> None:
    sound = noise(0.08)
    encoder = SampleEncoder("f32le")
    assert encoder.rate == 24_000
    np.testing.assert_array_equal(np.frombuffer(encoder.encode(sound), "<f4"), sound)
    assert encoder.finish() == b""


def test_a_chunk_of_one_frame_gives_speech_at_every_rate() -> None:
    for rate in OTHER_RATES:
        assert len(SampleEncoder("s16le", rate).encode(noise(0.08))) > 0.05 * rate * 2


# ---- G.711


@pytest.mark.parametrize(("kind", "coarsest"), [("pcm_mulaw", 1024), ("pcm_alaw", 1024)])
def test_each_sample_is_rounded_to_one_of_the_law_next_to_it(kind: SampleFormat, coarsest: int) -> None:
    numbers = np.arange(-32_767, 32_768)
    data = to_bytes((numbers / 32_767).astype(np.float32), kind)
    back = heard(data, kind).astype(int)
    levels = np.unique(heard(bytes(range(256)), kind).astype(int))
    place = np.clip(np.searchsorted(levels, numbers), 1, len(levels) - 1)
    below, above = levels[place - 1], levels[place]
    assert np.all((back == below) | (back == above) | (numbers == back))
    assert np.abs(back - numbers).max() <= coarsest


@pytest.mark.parametrize("kind", ["pcm_mulaw", "pcm_alaw"])
def test_speech_in_g711_is_as_clear_as_the_law_allows(kind: SampleFormat) -> None:
    sound = noise(1.0)
    data = converted(sound, kind, 8_000, [1920])
    plain = np.frombuffer(converted(sound, "s16le", 8_000, [1920]), "<i2").astype(float)
    back = heard(data, kind).astype(float)
    assert len(back) == len(plain) == 8_000
    assert decibels(float(np.mean((back - plain) ** 2)), float(np.mean(plain**2))) < -36


@pytest.mark.parametrize("kind", FORMATS)
def test_silence_is_silence(kind: SampleFormat) -> None:
    encoder = SampleEncoder(kind)
    assert to_bytes(np.zeros(3, np.float32), kind) == 3 * encoder.silence
    assert len(encoder.silence) == encoder.sample_bytes
    assert to_bytes(np.empty(0, np.float32), kind) == b""


def test_g711_is_at_the_rate_of_telephones_unless_asked_otherwise() -> None:
    assert [SampleEncoder(kind).rate for kind in FORMATS] == [24_000, 24_000, 8_000, 8_000]
    assert SampleEncoder("pcm_alaw", 16_000).rate == 16_000


# ---- frames


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("seconds", [0.02, 0.04])
def test_frames_are_of_equal_length_and_hold_the_speech(kind: SampleFormat, seconds: float) -> None:
    sound = noise(0.5)
    encoder = SampleEncoder(kind, 8_000)
    cutter = SampleFrames(encoder, seconds)
    frames = [frame for chunk in np.split(sound, [1920, 1921, 9000]) for frame in cutter.push(chunk)]
    frames += cutter.finish()
    assert {len(frame) for frame in frames} == {round(8_000 * seconds) * encoder.sample_bytes}
    data = converted(sound, kind, 8_000, [len(sound)])
    joined = b"".join(frames)
    assert joined[: len(data)] == data
    rest = joined[len(data) :]
    assert rest == encoder.silence * (len(rest) // encoder.sample_bytes)


def test_the_last_frame_may_stay_short() -> None:
    cutter = SampleFrames(SampleEncoder("s16le", 8_000))
    frames = cutter.push(noise(0.05)) + cutter.finish(pad=False)
    assert [len(frame) for frame in frames] == [320, 320, 160]


# ---- refusals


@pytest.mark.parametrize("rate", [0, -8_000, 11_025, 16_000.5, True, "8000"])
def test_other_rates_are_refused(rate: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"sample_rate is .* expected one of 8000, 16000, 22050, 24000"):
        SampleEncoder("s16le", rate)


def test_other_formats_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="expected one of s16le, f32le, pcm_mulaw, pcm_alaw"):
        SampleEncoder("mp3")  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [0.0, -0.02, 0.00003, float("nan"), float("inf")])
def test_frames_without_a_whole_number_of_samples_are_refused(seconds: float) -> None:
    with pytest.raises(InvalidRequestError, match="expected a whole number"):
        SampleFrames(SampleEncoder("pcm_mulaw"), seconds)
