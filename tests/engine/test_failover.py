"""Backends that fail in each way a backend can: the streams go on elsewhere, exactly, or end with a clear error."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from engine_stage import EngineClock, Opener
from fake_backend import CAPABILITIES, Behaviour, Fakes
from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import FRAME_SAMPLES
from megatalker.engine import Engine, SpeechStream
from megatalker.errors import BackendFaultError, BackendNotFoundError, BackendUnavailableError
from megatalker.interfaces import Frame
from megatalker.settings import Settings
from waiting import HANG_S

TEXT = "Hello there, this is a sentence of a few words."
SEEDS = (1, 2, 3)
DEADLINE_S = 1.0
"""How long a hanging call hangs at most: far beyond its deadline, and the end of a test that went wrong."""

Outcome = tuple[np.ndarray, np.ndarray]


@pytest.fixture
def open_engine(tiny_custom_voice: Checkpoint, arrival: None) -> Iterator[Opener]:
    with ExitStack() as stack:

        def opener(fakes: Fakes, **settings: Any) -> Engine:
            engine = Engine.open(Settings(**settings), checkpoint=tiny_custom_voice, registry=fakes.registry)
            return stack.enter_context(engine)

        yield opener


def two_talkers(**faults: Any) -> Fakes:
    return Fakes(talkers={"first": Behaviour(**faults), "second": Behaviour()})


def two_codecs(**faults: Any) -> Fakes:
    return Fakes(codecs={"first": Behaviour(**faults), "second": Behaviour()})


def together(engine: Engine, **arguments: Any) -> list[SpeechStream]:
    """One stream for each seed, all in the engine before the first tick."""
    with engine.borrow_backends():
        return everybody(engine, **arguments)


def everybody(engine: Engine, **arguments: Any) -> list[SpeechStream]:
    """One stream for each seed."""
    return [engine.speak(TEXT, seed=seed, return_codes=True, **arguments) for seed in SEEDS]


def outcome(stream: SpeechStream) -> Outcome:
    codes, pcm = zip(*((chunk.codes, chunk.pcm) for chunk in stream), strict=True)
    return np.concatenate(codes), np.concatenate(pcm)


@pytest.fixture
def undisturbed(open_engine: Opener) -> Callable[..., list[Outcome]]:
    return lambda **arguments: [outcome(stream) for stream in together(open_engine(Fakes()), **arguments)]


def assert_equal(found: list[Outcome], expected: list[Outcome]) -> None:
    for (codes, pcm), (expected_codes, expected_pcm) in zip(found, expected, strict=True):
        np.testing.assert_array_equal(codes, expected_codes)
        np.testing.assert_array_equal(pcm, expected_pcm)


def raise_at(call: int) -> Callable[[int], None]:
    def raising(now: int) -> None:
        if now == call:
            raise RuntimeError("device lost")

    return raising


class Hang:
    """A call that does not return before it is released."""

    def __init__(self, call: int) -> None:
        self.call, self.thread = call, None
        self.entered, self.release = threading.Event(), threading.Event()

    def __call__(self, now: int) -> None:
        if now == self.call:
            self.thread = threading.current_thread()
            self.entered.set()
            self.release.wait(HANG_S)


def replace_item(index: int, change: Callable[[Any], Any]) -> Callable[[int, list[Any]], Any]:
    """Spoils the first result of call ``index``."""
    return lambda call, items: [change(items[0]), *items[1:]] if call == index else items


# ---- the talker


@pytest.mark.parametrize("layout", ["upfront", "interleaved"])
def test_a_talker_that_raises_at_frame_20_is_replaced_without_a_trace_in_codes_or_audio(
    open_engine: Opener,
    undisturbed: Callable[..., list[Outcome]],
    caplog: pytest.LogCaptureFixture,
    layout: str,
) -> None:
    fakes = two_talkers(on_decode=raise_at(20))
    engine = open_engine(fakes)
    streams = together(engine, layout=layout)
    assert_equal([outcome(stream) for stream in streams], undisturbed(layout=layout))
    for stream in streams:
        (switch,) = stream.switches
        assert (switch.kind, switch.origin, switch.target) == ("talker", "first", "second")
        assert "device lost" in switch.reason
        assert 18 <= switch.frame <= 20
        assert (stream.backend, stream.finish_reason) == ("second", "eos")
    metrics = engine.metrics()
    assert (metrics.switches, metrics.errors, metrics.backend) == (3, 0, "second")
    assert "device lost" in metrics.faulty["talker first"]
    assert "second instead of first" in caplog.text
    assert fakes.loaded["first"].closed.is_set()


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda call, frames: frames[:-1] if call == 5 else frames, "frames for"),
        (lambda call, frames: frames[::-1] if call == 5 else frames, "not the frame of stream"),
        (lambda call, frames: None if call == 5 else frames, "NoneType"),
        (replace_item(5, lambda frame: replace(frame, codes=(10**6, *frame.codes[1:]))), "code 0 is 1000000"),
        (replace_item(5, lambda frame: replace(frame, codes=(*frame.codes[:-1], -1))), "code 15 is -1"),
        (replace_item(5, lambda frame: replace(frame, codes=frame.codes[:3])), "3 codes"),
        (replace_item(5, lambda frame: Frame(frame.stream, tuple(map(float, frame.codes)))), "integer"),
    ],
)
def test_malformed_frames_are_a_fault(
    open_engine: Opener, undisturbed: Callable[..., list[Outcome]], spoil: Callable[..., Any], reason: str
) -> None:
    streams = together(open_engine(two_talkers(spoil=spoil)))
    assert_equal([outcome(stream) for stream in streams], undisturbed())
    assert all(reason in stream.switches[0].reason for stream in streams)


def test_a_backend_that_tries_to_end_the_process_is_a_fault(open_engine: Opener) -> None:
    def leave(call: int) -> None:
        if call == 2:
            raise SystemExit(1)

    stream = open_engine(two_talkers(on_decode=leave)).speak(TEXT)
    assert stream.read_all().size == 30 * FRAME_SAMPLES
    assert "SystemExit" in stream.switches[0].reason


def test_a_prefill_that_raises_is_a_fault_and_the_request_is_served_elsewhere(
    open_engine: Opener, undisturbed: Callable[..., list[Outcome]]
) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("no memory")

    assert_equal([outcome(stream) for stream in together(open_engine(two_talkers(on_prefill=refuse)))], undisturbed())


def test_a_talker_that_hangs_is_abandoned_and_its_late_return_changes_nothing(
    open_engine: Opener, undisturbed: Callable[..., list[Outcome]]
) -> None:
    hang = Hang(20)
    fakes = two_talkers(on_decode=hang)
    engine = open_engine(fakes, step_deadline_s=DEADLINE_S)
    engine.warmup()
    streams = together(engine)
    before = [next(stream) for stream in streams]
    following = engine.speak(TEXT, seed=9)
    found = [outcome(stream) for stream in streams[:2]]
    hang.release.set()
    assert fakes.loaded["first"].closed.wait(HANG_S), "the abandoned thread frees its backend"
    assert hang.thread is not None
    hang.thread.join(HANG_S)
    assert not hang.thread.is_alive()
    found.append(outcome(streams[2]))
    found = [
        (np.concatenate([first.codes, codes]), np.concatenate([first.pcm, pcm]))
        for first, (codes, pcm) in zip(before, found, strict=True)
    ]
    assert_equal(found, undisturbed())
    assert "did not return within 1 s" in streams[0].switches[0].reason
    assert following.read_all().size == 30 * FRAME_SAMPLES
    assert engine.metrics().frames == 4 * 30, "frames of the late return are not counted"


@pytest.mark.slow
@pytest.mark.parametrize(("backends", "call"), [(two_talkers, 0), (two_talkers, 6), (two_codecs, 6)])
def test_a_backend_is_cold_until_it_has_done_some_whole_steps(
    open_engine: Opener, backends: Callable[..., Fakes], call: int
) -> None:
    """Until then it may take longer than the deadline."""
    hang = Hang(call)
    stream = open_engine(backends(on_decode=hang), step_deadline_s=DEADLINE_S, max_chunk_frames=1).speak(TEXT)
    threading.Timer(2 * DEADLINE_S, hang.release.set).start()
    assert stream.read_all().size == 30 * FRAME_SAMPLES
    assert stream.switches == ()


@pytest.mark.parametrize("call", [0, 1])
def test_a_replay_that_goes_wrong_is_a_fault(
    open_engine: Opener, undisturbed: Callable[..., list[Outcome]], call: int
) -> None:
    """Or what is tried before it."""
    third = Fakes(
        codecs={
            "first": Behaviour(on_decode=raise_at(4)),
            "second": Behaviour(spoil=replace_item(call, lambda pcm: torch.full_like(pcm, torch.nan))),
            "third": Behaviour(),
        }
    )
    engine = open_engine(third)
    assert_equal([outcome(stream) for stream in together(engine)], undisturbed())
    assert engine.metrics().codec == "third"


@pytest.mark.usefixtures("unrehearsed")
def test_text_that_arrives_during_and_after_a_failure_is_spoken(
    open_engine: Opener, undisturbed: Callable[..., list[Outcome]]
) -> None:
    hang = Hang(2)
    engine = open_engine(two_talkers(on_decode=hang), step_deadline_s=DEADLINE_S)
    engine.warmup()
    stream, words = engine.speak(None, seed=SEEDS[0], return_codes=True), TEXT.split(" ")
    for word in words[:4]:
        stream.feed(word + " ")
    chunks = [next(stream)]
    for word in words[4:]:
        stream.feed(word + " ")
    stream.finish()
    chunks += list(stream)
    hang.release.set()
    found = np.concatenate([chunk.codes for chunk in chunks]), np.concatenate([chunk.pcm for chunk in chunks])
    assert_equal([found], undisturbed(layout="interleaved")[:1])
    assert len(stream.switches) == 1


def test_failures_may_follow_each_other(open_engine: Opener, undisturbed: Callable[..., list[Outcome]]) -> None:
    talkers = {"a": Behaviour(on_decode=raise_at(3)), "b": Behaviour(on_decode=raise_at(6)), "c": Behaviour()}
    codecs = {"x": Behaviour(on_decode=raise_at(4)), "y": Behaviour()}
    streams = together(open_engine(Fakes(talkers, codecs)))
    assert_equal([outcome(stream) for stream in streams], undisturbed())
    assert sorted(switch.target for switch in streams[0].switches) == ["b", "c", "y"]


def test_a_fallback_with_fewer_rows_takes_the_streams_in_turn(
    open_engine: Opener, undisturbed: Callable[..., list[Outcome]]
) -> None:
    fakes = two_talkers(on_decode=raise_at(10))
    fakes.talkers["second"].capabilities = replace(CAPABILITIES, max_streams=1)
    assert_equal([outcome(stream) for stream in together(open_engine(fakes))], undisturbed())


def test_a_fallback_with_fewer_positions_cuts_what_does_not_fit_and_goes_on(open_engine: Opener) -> None:
    fakes = two_talkers(on_decode=raise_at(20))
    fakes.talkers["second"].capabilities = replace(CAPABILITIES, max_positions=30)
    stream = open_engine(fakes, max_segment_chars=50).speak(f"{TEXT} Hello.")
    assert stream.read_all().size % FRAME_SAMPLES == 0
    facts, prompt = stream.facts(), len(fakes.loaded["second"].prefills[-1].embeds)
    assert (facts.frames, facts.segments, facts.finish_reason) == (20 + 30 - prompt, 2, "incomplete")


# ---- the codec


@pytest.mark.parametrize(
    "faults",
    [
        {"on_decode": raise_at(4)},
        {"spoil": replace_item(4, lambda pcm: pcm[:-1])},
        {"spoil": replace_item(4, lambda pcm: pcm.double())},
        {"spoil": replace_item(4, lambda pcm: torch.where(pcm > 0.4, torch.nan, pcm))},
        {"spoil": lambda call, chunks: chunks[:-1] if call == 4 else chunks},
    ],
)
def test_a_codec_that_fails_is_replaced_and_has_heard_everything(
    open_engine: Opener, undisturbed: Callable[..., list[Outcome]], engine_clock: EngineClock, faults: dict[str, Any]
) -> None:
    engine = open_engine(fakes := two_codecs(**faults))
    streams = together(engine)
    assert_equal([outcome(one) for one in streams], undisturbed())
    assert {switch.kind for one in streams for switch in one.switches} == {"codec"}
    assert engine.metrics().codec == "second"
    assert len(fakes.loaded["second"].calls[1]) == len(SEEDS), "after a harmless one, all are heard in one call"


def test_a_codec_that_hangs_is_abandoned(open_engine: Opener, undisturbed: Callable[..., list[Outcome]]) -> None:
    hang = Hang(4)
    fakes = two_codecs(on_decode=hang)
    engine = open_engine(fakes, step_deadline_s=DEADLINE_S)
    engine.warmup()
    streams = together(engine)
    found = [outcome(stream) for stream in streams]
    hang.release.set()
    assert fakes.loaded["first"].closed.wait(HANG_S)
    assert_equal(found, undisturbed())


# ---- nobody left


@pytest.mark.parametrize("settings", [{"fallbacks": ()}, {}])
def test_without_a_fallback_streams_deliver_what_they_have_and_raise(
    open_engine: Opener, undisturbed: Callable[..., list[Outcome]], settings: dict[str, Any]
) -> None:
    behaviour = Behaviour(on_decode=raise_at(20))
    fakes = Fakes(talkers={"first": behaviour, "second": Behaviour()} if settings else {"first": behaviour})
    engine = open_engine(fakes, **settings)
    with engine.borrow_backends():
        waiting, streams = engine.speak(None), everybody(engine)
    for stream, (codes, _) in zip(streams, undisturbed(), strict=True):
        made: list[list[int]] = []
        with pytest.raises(BackendFaultError, match="device lost"):
            made.extend(row for chunk in stream for row in chunk.codes.tolist())
        assert made == codes[: len(made)].tolist()
        assert len(made) >= 18, "frames made before the failure are handed out"
        assert (stream.finish_reason, type(stream.error)) == ("error", BackendFaultError)
    with pytest.raises(BackendFaultError):
        waiting.read_all()
    for use in (lambda: engine.speak(TEXT), engine.warmup, lambda: engine.borrow_backends().__enter__()):
        with pytest.raises(BackendFaultError, match="open a new engine"):
            use()
    assert engine.metrics().errors == 4


def test_without_a_codec_streams_end_at_once(open_engine: Opener) -> None:
    engine = open_engine(two_codecs(on_decode=raise_at(3)), codec_fallbacks=())
    stream = engine.speak(TEXT)
    with pytest.raises(BackendFaultError, match="no codec backend is left"):
        stream.read_all()


def test_a_fallback_that_cannot_load_is_passed_over(
    open_engine: Opener, undisturbed: Callable[..., list[Outcome]]
) -> None:
    def broken() -> None:
        raise OSError("no such kernel")

    talkers = {"a": Behaviour(on_decode=raise_at(3)), "b": Behaviour(on_load=broken), "c": Behaviour()}
    fakes = Fakes(talkers, unavailable={"d": "not here"})
    fakes.talkers["d"] = Behaviour()
    engine = open_engine(fakes)
    assert_equal([outcome(stream) for stream in together(engine)], undisturbed())
    assert "no such kernel" in engine.metrics().faulty["talker b"]


def test_fallbacks_serve_in_the_order_of_the_settings_and_must_exist(open_engine: Opener) -> None:
    talkers = {"a": Behaviour(on_decode=raise_at(3)), "b": Behaviour(), "c": Behaviour()}
    stream = open_engine(Fakes(dict(talkers)), fallbacks=("c", "b")).speak(TEXT)
    stream.read_all()
    assert stream.backend == "c"
    with pytest.raises(BackendNotFoundError, match="'z' is not installed"):
        open_engine(Fakes(dict(talkers)), fallbacks=("z",))
    with pytest.raises(BackendUnavailableError, match="not here"):
        open_engine(Fakes(dict(talkers), unavailable={"b": "not here"}), fallbacks=("b",))


def test_a_greedy_only_backend_does_not_continue_sampled_streams(open_engine: Opener) -> None:
    fakes = two_talkers(on_decode=raise_at(3))
    fakes.talkers["second"].capabilities = replace(CAPABILITIES, seeded_sampling=False)
    with pytest.raises(BackendFaultError):
        open_engine(fakes).speak(TEXT).read_all()


def test_warmup_that_fails_moves_on(open_engine: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes = two_talkers()
    engine = open_engine(fakes)

    def broken() -> None:
        raise RuntimeError("cannot compile")

    monkeypatch.setattr(fakes.loaded["first"], "warmup", broken)
    engine.warmup()
    assert engine.backend == "second"
    assert fakes.loaded["second"].warmed == 1


def test_closing_does_not_wait_for_a_call_that_hangs(open_engine: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megatalker.engine.engine.CLOSE_TIMEOUT_S", 0.1)
    hang = Hang(3)
    fakes = two_talkers(on_decode=hang)
    engine = open_engine(fakes)
    stream = engine.speak(TEXT)
    assert hang.entered.wait(HANG_S)
    engine.close()
    assert stream.finish_reason == "error"
    assert not fakes.loaded["first"].closed.is_set(), "it may still be in use by the thread that hangs"
    hang.release.set()
    assert fakes.loaded["first"].closed.wait(HANG_S)
    assert fakes.loaded["noise"].closed.wait(HANG_S)
