"""Backends that raise what nobody expects, refuse everything, or make absurd audio: another takes over, exactly."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from engine_stage import TEXT, Opener, codes_of, plain_codes
from fake_backend import Behaviour, FakeCodec, Fakes, FakeState, FakeTalker
from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import FRAME_SAMPLES
from megatalker.engine import Engine
from megatalker.engine.guarded_calls import Superseded
from megatalker.engine.talker_stage import MOST_REFUSALS
from megatalker.errors import (
    BackendUnavailableError,
    CapacityError,
    CheckpointError,
    EngineClosedError,
    InvalidRequestError,
    SettingsError,
    UnsupportedError,
    describe_error,
)
from megatalker.interfaces import CodecState, StreamRequest
from waiting import eventually

FRAMES = 30


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class ExitingError(RuntimeError):
    def __str__(self) -> str:
        raise SystemExit(3)


class UnprintableCapacityError(CapacityError):
    def __str__(self) -> str:
        raise KeyboardInterrupt


STRANGE: list[BaseException] = [
    SettingsError("speed is 3"),
    EngineClosedError("closed"),
    UnsupportedError("not today"),
    BackendUnavailableError("gone"),
    UnprintableError(),
    ExitingError(),
    UnprintableCapacityError(),
    SystemExit(1),
    KeyboardInterrupt(),
    GeneratorExit(),
    StopIteration(),
    asyncio.CancelledError(),
    RecursionError("too deep"),
    MemoryError(),
    Superseded(),
    ExceptionGroup("many", [ValueError("one")]),
]


def raising(error: BaseException) -> Callable[..., Any]:
    def call(*_: object) -> None:
        raise error

    return call


def always(error: Exception, sound: Callable[..., bool] = lambda *_: False) -> Callable[..., None]:
    def call(*arguments: object) -> None:
        if not sound(*arguments):
            raise error

    return call


def two_talkers(**faults: Any) -> Fakes:
    return Fakes(talkers={"first": Behaviour(**faults), "second": Behaviour()})


def two_codecs(**faults: Any) -> Fakes:
    return Fakes(codecs={"first": Behaviour(**faults), "second": Behaviour()})


def assert_spoken(engine: Engine, checkpoint: Checkpoint, seed: int = 7) -> None:
    expected = plain_codes(checkpoint, TEXT, seed, "upfront", frames=FRAMES)
    assert codes_of(engine.speak(TEXT, seed=seed, return_codes=True)) == expected
    assert engine.failure is None


@pytest.fixture(params=STRANGE, ids=lambda error: type(error).__name__)
def strange(request: pytest.FixtureRequest) -> BaseException:
    return request.param


@pytest.mark.parametrize("place", ["on_load", "on_warmup", "on_prefill", "on_decode", "release", "capabilities"])
def test_a_talker_that_raises_anything_anywhere_is_replaced(
    open_engine: Opener,
    tiny_custom_voice: Checkpoint,
    monkeypatch: pytest.MonkeyPatch,
    strange: BaseException,
    place: str,
) -> None:
    fakes = two_talkers(**({place: raising(strange)} if place.startswith("on_") else {}))
    if place in ("release", "capabilities"):
        sound = getattr(FakeTalker, place)
        reader = sound.fget if place == "capabilities" else sound

        def spoiled(talker: FakeTalker, *arguments: object) -> object:
            if talker.behaviour is fakes.talkers["first"]:
                raise strange
            return reader(talker, *arguments)

        monkeypatch.setattr(FakeTalker, place, property(spoiled) if place == "capabilities" else spoiled)
    engine = open_engine(fakes)
    engine.warmup()
    assert_spoken(engine, tiny_custom_voice, 1)
    assert_spoken(engine, tiny_custom_voice)
    assert engine.backend == "second"
    assert type(strange).__name__ in engine.metrics().faulty["talker first"]


@pytest.mark.parametrize("place", ["on_decode", "open", "on_warmup"])
def test_a_codec_that_raises_anything_anywhere_is_replaced(
    open_engine: Opener,
    tiny_custom_voice: Checkpoint,
    monkeypatch: pytest.MonkeyPatch,
    strange: BaseException,
    place: str,
) -> None:
    fakes = two_codecs(**({place: raising(strange)} if place != "open" else {}))
    if place == "open":
        sound = FakeCodec.open

        def spoiled(codec: FakeCodec) -> FakeState:
            if codec.behaviour is fakes.codecs["first"]:
                raise strange
            return sound(codec)

        monkeypatch.setattr(FakeCodec, "open", spoiled)
    engine = open_engine(fakes)
    engine.warmup()
    assert_spoken(engine, tiny_custom_voice)
    assert engine.codec == "second"


def test_whatever_preparing_and_closing_raise_harms_nobody(
    open_engine: Opener, tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch, strange: BaseException
) -> None:
    monkeypatch.setattr(FakeTalker, "close", raising(strange))
    engine = open_engine(two_talkers(on_prepare=raising(strange)))
    engine.warmup()
    eventually(lambda: engine.metrics().unprepared, "it was asked")
    assert_spoken(engine, tiny_custom_voice)
    assert engine.backend == "first"


def test_a_probe_that_raises_anything_means_that_the_backend_cannot_run(
    tiny_custom_voice: Checkpoint, open_engine: Opener, monkeypatch: pytest.MonkeyPatch, strange: BaseException
) -> None:
    if isinstance(strange, KeyboardInterrupt):
        pytest.skip("in the main thread that is the user's")
    fakes = two_talkers()
    common = Fakes._common

    def spoiled(self: Fakes, name: str, rank: int) -> dict[str, Any]:
        return common(self, name, rank) | ({"probe": raising(strange)} if name == "first" else {})

    monkeypatch.setattr(Fakes, "_common", spoiled)
    engine = open_engine(fakes)
    assert_spoken(engine, tiny_custom_voice)
    assert engine.backend == "second"


def test_a_fallback_that_finds_the_checkpoint_damaged_is_passed_over(
    open_engine: Opener, tiny_custom_voice: Checkpoint
) -> None:
    """The backend before has read it."""
    talkers = {
        "first": Behaviour(on_decode=raising(RuntimeError("device lost"))),
        "second": Behaviour(on_load=raising(CheckpointError("damaged"))),
        "third": Behaviour(),
    }
    engine = open_engine(Fakes(talkers))
    assert_spoken(engine, tiny_custom_voice)
    assert engine.backend == "third"


def test_an_error_is_described_whatever_it_does() -> None:
    assert describe_error(ValueError("one")) == "ValueError: one"
    assert describe_error(UnprintableError()).startswith("UnprintableError: its text cannot be read")
    assert describe_error(ExitingError()).endswith("raised SystemExit")


# ---- refusals

REFUSALS = pytest.mark.parametrize(
    "error", [CapacityError("no room"), InvalidRequestError("not this one")], ids=["full", "bad"]
)


def speak_until_replaced(engine: Engine, streams: int) -> int:
    """How many requests were refused until another backend served."""
    refused = 0
    while engine.backend == "first":
        with engine.borrow_backends():
            asked = [engine.speak(TEXT, seed=seed) for seed in range(streams)]
        for stream in asked:
            try:
                assert stream.read_all().size == FRAMES * FRAME_SAMPLES
            except (CapacityError, InvalidRequestError):
                refused += 1
        assert refused <= MOST_REFUSALS * streams, "it is never replaced"
    return refused


@pytest.mark.parametrize("streams", [1, 3])
@REFUSALS
@pytest.mark.parametrize("place", ["on_prefill", "on_decode"])
def test_a_talker_that_refuses_everything_is_replaced(
    open_engine: Opener, tiny_custom_voice: Checkpoint, place: str, error: Exception, streams: int
) -> None:
    engine = open_engine(two_talkers(**{place: always(error)}))
    refused = speak_until_replaced(engine, streams)
    if isinstance(error, CapacityError) or place == "on_prefill":
        assert refused == 0, "something harmless is refused, too"
    assert_spoken(engine, tiny_custom_voice)


@REFUSALS
def test_a_talker_that_serves_harmless_prompts_only_is_replaced(
    open_engine: Opener, tiny_custom_voice: Checkpoint, error: Exception
) -> None:
    def small(request: StreamRequest) -> bool:
        return len(request.embeds) == 2

    engine = open_engine(two_talkers(on_prefill=always(error, small)))
    assert speak_until_replaced(engine, 1) == MOST_REFUSALS - 1
    assert_spoken(engine, tiny_custom_voice)


@REFUSALS
def test_one_bad_request_replaces_nobody_however_often_it_comes(
    open_engine: Opener, tiny_custom_voice: Checkpoint, error: Exception
) -> None:
    def good(request: StreamRequest) -> bool:
        return request.sampling.seed != 666

    fakes = Fakes(talkers={name: Behaviour(on_prefill=always(error, good)) for name in ("first", "second")})
    engine = open_engine(fakes)
    for _ in range(2 * MOST_REFUSALS):
        with pytest.raises(type(error), match=str(error)):
            engine.speak(TEXT, seed=666).read_all()
        assert_spoken(engine, tiny_custom_voice)
    assert (engine.backend, engine.metrics().faulty) == ("first", {})
    for _ in range(2 * MOST_REFUSALS):
        with pytest.raises((CapacityError, InvalidRequestError)):
            engine.speak(TEXT, seed=666).read_all()
    assert engine.metrics().faulty == {}
    assert_spoken(engine, tiny_custom_voice)


def test_the_only_backend_there_is_may_be_full_for_as_long_as_it_likes(
    open_engine: Opener, tiny_custom_voice: Checkpoint
) -> None:
    fakes = Fakes()
    fakes.talkers["fake"].on_prefill = always(CapacityError("no room"))
    engine = open_engine(fakes)
    for _ in range(2 * MOST_REFUSALS):
        with pytest.raises(CapacityError, match="no room"):
            engine.speak(TEXT).read_all()
    fakes.talkers["fake"].on_prefill = lambda request: None
    assert_spoken(engine, tiny_custom_voice)


def test_streams_without_room_for_their_next_frame_wait_for_the_others(
    open_engine: Opener, tiny_custom_voice: Checkpoint
) -> None:
    """Three streams, and memory for about 60 frames of all."""
    fakes = Fakes()
    engine = open_engine(fakes)

    def full(call: int) -> None:
        talker = fakes.loaded["fake"]
        if sum(len(stream.history) for stream in talker.streams.values()) >= 60 and len(talker.streams) > 1:
            raise CapacityError("no page is free")

    fakes.talkers["fake"].on_decode = full
    with engine.borrow_backends():
        streams = [engine.speak(TEXT, seed=seed, return_codes=True) for seed in (1, 2, 3)]
    for seed, stream in zip((1, 2, 3), streams, strict=True):
        assert codes_of(stream) == plain_codes(tiny_custom_voice, TEXT, seed, "upfront", frames=FRAMES)
    assert engine.metrics().errors == 0


# ---- audio


def heard(engine: Engine) -> bytes:
    return engine.speak(TEXT, seed=1).read_all().tobytes()


@pytest.mark.parametrize("factor", [1e9, -1e9, 3.5, 1e30])
def test_absurd_audio_reaches_nobody(open_engine: Opener, factor: float) -> None:
    expected = heard(open_engine(Fakes()))
    engine = open_engine(two_codecs(spoil=lambda call, chunks: [chunk * factor for chunk in chunks]))
    assert heard(engine) == expected
    assert "expected samples within [-1, 1]" in engine.metrics().faulty["codec first"]


def test_one_absurd_sample_is_enough(open_engine: Opener) -> None:
    def spoil(call: int, chunks: list[Tensor]) -> list[Tensor]:
        if call == 4:
            chunks[0][77] = 1.5
        return chunks

    expected = heard(open_engine(Fakes()))
    engine = open_engine(two_codecs(spoil=spoil))
    assert heard(engine) == expected
    assert engine.codec == "second"


def test_a_rounding_error_beyond_full_scale_is_cut_off(open_engine: Opener) -> None:
    engine = open_engine(two_codecs(spoil=lambda call, chunks: [torch.full_like(chunk, 1.00005) for chunk in chunks]))
    assert (engine.speak(TEXT).read_all() == 1.0).all()
    assert engine.codec == "first"


def test_a_codec_may_use_its_buffers_again(open_engine: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, decode, buffers = heard(open_engine(Fakes())), FakeCodec.decode, list[Tensor]()

    def shared(codec: FakeCodec, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[Tensor]:
        for buffer in buffers:
            buffer.fill_(0.25)
        buffers[:] = decode(codec, states, codes)
        return buffers

    monkeypatch.setattr(FakeCodec, "decode", shared)
    assert heard(open_engine(Fakes())) == expected


@pytest.mark.parametrize(
    "spoil",
    [
        lambda chunk: chunk.numpy(),
        lambda chunk: chunk.half(),
        lambda chunk: chunk.reshape(1, -1),
        lambda chunk: chunk.to("meta"),
        lambda chunk: chunk.to_sparse(),
        lambda chunk: (chunk * 2**15).int(),
        lambda chunk: None,
    ],
)
def test_what_is_no_audio_is_a_fault(open_engine: Opener, spoil: Callable[[Tensor], object]) -> None:
    expected = heard(open_engine(Fakes()))
    engine = open_engine(two_codecs(spoil=lambda call, chunks: list(map(spoil, chunks))))
    assert heard(engine) == expected
    assert engine.codec == "second"
