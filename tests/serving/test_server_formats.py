"""The formats of speech over HTTP: each is streamed, each can be played, and each at any speed."""

import io
import threading
import wave

import av
import httpx
import numpy as np
import pytest

from http_client import SPEECH, pcm16, post
from megatalker.errors import InvalidRequestError
from megatalker.serving.samples import SampleEncoder
from megatalker.serving.server.encoding import ENCODERS, ResponseFormat, make_encoder
from serving import TEXT, Served, Server, fakes_with
from waiting import HANG_S

MEDIA_TYPES = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
    "pcm_mulaw": "audio/PCMU",
    "pcm_alaw": "audio/PCMA",
}
BARE = {"pcm": "s16le", "pcm_mulaw": "mulaw", "pcm_alaw": "alaw"}
"""FFmpeg's names of formats that no header tells."""
SLACK_SAMPLES = {"mp3": 2 * 1152, "opus": 480, "aac": 2 * 1024, "flac": 0, "wav": 0, "pcm_mulaw": 1, "pcm_alaw": 1}
"""Samples that codecs add before and after, at 24 kHz."""
WINDOW_SAMPLES = 400
"""Samples that stretching may leave out or add at the ends."""
FIRST_AT_ONCE = ["mp3", "opus", "flac", "wav", "pcm", "pcm_mulaw", "pcm_alaw"]
"""AAC looks ahead by more than the 80 ms of a first chunk."""


def decoded(content: bytes, bare: str | None = None, rate: int = 8_000) -> np.ndarray:
    options = {} if bare is None else {"sample_rate": str(rate)}
    with av.open(io.BytesIO(content), format=bare, options=options) as file:
        resampler = av.AudioResampler(format="s16", layout="mono", rate=24_000)
        frames = [part for frame in file.decode(audio=0) for part in resampler.resample(frame)]
        frames += resampler.resample(None)
    return np.concatenate([frame.to_ndarray()[0] for frame in frames])


def decoded_start(file_format: str, content: bytes) -> np.ndarray:
    """Decode the first bytes as a player does; one MP3 frame is too little to tell that it is MP3."""
    if file_format != "mp3":
        return decoded(content)
    assert content.startswith(b"ID3")
    size = sum(byte << 7 * place for place, byte in enumerate(reversed(content[6:10])))
    content = content[10 + size :]
    decoder = av.CodecContext.create("mp3float", "r")
    packets = [*decoder.parse(content), *decoder.parse(None)]
    return np.concatenate([frame.to_ndarray()[0] for packet in packets for frame in decoder.decode(packet)])


def tone(seconds: float, hertz: float = 200.0) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(round(24_000 * seconds)) / 24_000)).astype(np.float32)


def pitch(samples: np.ndarray) -> float:
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(np.argmax(spectrum) * 24_000 / len(samples))


def encoded(file_format: ResponseFormat, samples: np.ndarray, speed: float = 1.0, rate: int | None = None) -> bytes:
    encoder = make_encoder(file_format, speed=speed, rate=rate)
    parts = [encoder.encode(samples[at : at + 1920]) for at in range(0, len(samples), 1920)]
    return b"".join([*parts, encoder.finish()])


@pytest.mark.parametrize("file_format", ENCODERS)
def test_each_format_is_announced_and_holds_the_speech(shared: Served, file_format: str) -> None:
    response = post(shared, seed=5, response_format=file_format)
    assert (response.status_code, response.headers["content-type"]) == (200, MEDIA_TYPES[file_format])
    if file_format == "pcm":
        samples = np.frombuffer(response.content, "<i2")
    else:
        samples = decoded(response.content, BARE.get(file_format))
        assert abs(len(samples) - 30 * 1920) <= SLACK_SAMPLES[file_format]
    if file_format in ("flac", "wav", "pcm"):
        np.testing.assert_array_equal(samples, pcm16(shared, seed=5))


@pytest.mark.parametrize("file_format", ["mp3", "opus", "aac"])
def test_lossy_formats_keep_the_sound(file_format: ResponseFormat) -> None:
    sound = tone(1.0)
    heard = decoded(encoded(file_format, sound)).astype(np.float32) / 32767
    middle = heard[6_000:18_000]
    assert pitch(middle) == pytest.approx(200, abs=2)
    assert np.sqrt(np.mean(middle**2)) == pytest.approx(np.sqrt(np.mean(sound**2)), rel=0.1)


@pytest.mark.parametrize("file_format", FIRST_AT_ONCE)
def test_the_first_sound_is_sent_before_the_second_frame_exists(serve: Server, file_format: str) -> None:
    more = threading.Event()
    served = serve(fakes_with(on_decode=lambda call: call == 0 or more.wait(HANG_S)))
    asked = {"input": TEXT, "response_format": file_format}
    with httpx.stream("POST", served.url + SPEECH, json=asked, timeout=HANG_S) as response:
        parts = response.iter_raw()
        first = next(parts)
        more.set()
        for _ in parts:
            pass
    assert file_format in BARE or len(decoded_start(file_format, first)) >= 240, "sound, not only a header"


def test_aac_follows_with_the_second_chunk() -> None:
    encoder = make_encoder("aac")
    assert encoder.encode(tone(0.08)) == b""
    assert len(decoded(encoder.encode(tone(0.08)))) >= 1024


@pytest.mark.parametrize("file_format", ENCODERS)
def test_no_speech_is_an_empty_answer_and_no_fault(file_format: ResponseFormat) -> None:
    assert len(encoded(file_format, np.empty(0, np.float32))) < 9_000


# ---- rates

RATES = [8_000, 16_000, 22_050, 24_000, 44_100, 48_000]


@pytest.mark.parametrize("file_format", ENCODERS)
@pytest.mark.parametrize("rate", RATES)
def test_every_format_has_every_rate(file_format: ResponseFormat, rate: int) -> None:
    if file_format == "opus" and rate in (22_050, 44_100):
        with pytest.raises(InvalidRequestError, match="opus takes 8000, 16000, 24000, 48000"):
            make_encoder(file_format, rate=rate)
        return
    content = encoded(file_format, tone(1.0), rate=rate)
    with av.open(io.BytesIO(content), format=BARE.get(file_format), options={"sample_rate": str(rate)}) as file:
        assert file_format in ("opus", *BARE) or file.streams.audio[0].rate == rate  # Opus always says 48 kHz
    heard = decoded(content, BARE.get(file_format), rate)
    assert len(heard) == pytest.approx(24_000, abs=3 * SLACK_SAMPLES.get(file_format, 0) + 1)
    middle = heard[6_000:18_000].astype(np.float32) / 32767
    assert pitch(middle) == pytest.approx(200, abs=2)
    assert np.sqrt(np.mean(middle**2)) == pytest.approx(0.5 / np.sqrt(2), rel=0.1)


@pytest.mark.parametrize(
    ("asked", "rate"), [({}, 8_000), ({"sample_rate": "16000"}, 16_000), ({"sampling_rate": 44_100}, 44_100)]
)
def test_the_route_tells_the_rate_and_sends_its_samples(shared: Served, asked: dict[str, object], rate: int) -> None:
    response = post(shared, seed=5, response_format="audio/pcmu", **asked)
    expected = SampleEncoder("pcm_mulaw", rate)
    speech = shared.engine.speak(TEXT, seed=5).read_all()
    assert response.headers["x-sample-rate"] == str(rate)
    assert response.content == expected.encode(speech) + expected.finish()


def test_a_whole_file_at_another_rate_has_a_true_header(shared: Served) -> None:
    response = post(shared, seed=5, response_format="wav", sample_rate=16_000, stream=False)
    with wave.open(io.BytesIO(response.content)) as file:
        assert (file.getframerate(), file.getnframes()) == (16_000, 30 * 1280)


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ({"sample_rate": 32_000}, "sample_rate is 32000: expected one of 8000, 16000, 22050"),
        ({"sample_rate": "high"}, "sample_rate is 'high'"),
        ({"sample_rate": True}, "sample_rate is True"),
        ({"sample_rate": 22_050, "response_format": "opus"}, "sample_rate is 22050: opus takes 8000, 16000"),
    ],
)
def test_other_rates_are_refused_before_speech(shared: Served, body: dict[str, object], complaint: str) -> None:
    streams = shared.engine.metrics().streams
    response = post(shared, **body)
    assert response.status_code == 400
    assert complaint in response.json()["error"]["message"]
    assert shared.engine.metrics().streams == streams


# ---- speed


@pytest.mark.parametrize("speed", [0.25, 0.4, 0.5, 0.8, 1.25, 2.0, 4.0])
def test_speed_changes_the_length_and_not_the_pitch(speed: float) -> None:
    samples = np.frombuffer(encoded("pcm", tone(2.0), speed), "<i2")
    assert len(samples) == pytest.approx(48_000 / speed, abs=WINDOW_SAMPLES, rel=0.01)
    assert pitch(samples[len(samples) // 4 : -len(samples) // 4]) == pytest.approx(200, abs=3)


@pytest.mark.parametrize("speed", [0.25, 0.8, 4.0])
def test_speed_takes_samples_in_any_pieces(speed: float) -> None:
    samples, whole = tone(0.5), encoded("pcm", tone(0.5), speed)
    encoder = make_encoder("pcm", speed=speed)
    pieces = [encoder.encode(piece) for piece in np.split(samples, [1, 2, 3, 700, 701, 5000])]
    assert b"".join([*pieces, encoder.finish()]) == whole
    assert len(whole) == 2 * round(len(samples) / speed)


@pytest.mark.parametrize("file_format", ENCODERS)
def test_speed_is_for_every_format(file_format: ResponseFormat) -> None:
    content = encoded(file_format, tone(1.0), speed=2.0)
    samples = np.frombuffer(content, "<i2") if file_format == "pcm" else decoded(content, BARE.get(file_format))
    assert abs(len(samples) - 12_000) <= SLACK_SAMPLES.get(file_format, 0) + WINDOW_SAMPLES


@pytest.mark.parametrize("speed", [0.5, 2])
def test_speed_is_streamed(serve: Server, speed: float) -> None:
    """Stretching needs the second chunk to begin, and no third."""
    more = threading.Event()
    served = serve(fakes_with(on_decode=lambda call: call < 3 or more.wait(HANG_S)))
    asked = {"input": TEXT, "response_format": "pcm", "speed": speed}
    with httpx.stream("POST", served.url + SPEECH, json=asked, timeout=HANG_S) as response:
        parts = response.iter_raw()
        size = len(next(parts))
        more.set()
        size += sum(map(len, parts))
    assert size / 2 == pytest.approx(30 * 1920 / speed, rel=0.02)
