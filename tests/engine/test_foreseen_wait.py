"""The wait for a row that a caller is told, and what is refused for it."""

import itertools
import threading
import time
from dataclasses import replace
from typing import cast
from unittest.mock import Mock

import pytest

from engine_stage import TEXT, Opener, fakes_with
from fake_backend import CAPABILITIES
from megatalker.checkpoint.config import FRAME_SECONDS
from megatalker.engine import Engine, SpeechStream
from megatalker.engine.admission import LONG_S, AdmissionLimits, expected_wait, queue_refusal
from megatalker.engine.commands import LocalLink
from megatalker.engine.costs import Costs, Throughput
from megatalker.engine.utterance import Utterance
from megatalker.errors import CapacityError
from waiting import HANG_S, eventually


def limits_of(rows: int, max_waiting: int = 9) -> AdmissionLimits:
    return AdmissionLimits(rows, rows, max_waiting, max_open=99, max_streams_per_owner=None, max_wait_s=None)


def utterance_of(stream: SpeechStream) -> Utterance:
    return cast("LocalLink", stream._link).utterance


def wait_s(opened: list[Utterance], rows: int, seen: Throughput, after_s: float = 0.0) -> float | None:
    now = max(one.progress.requested_at for one in opened) + after_s
    return expected_wait(opened, None, limits_of(rows), seen, now).seconds


@pytest.fixture
def seen() -> Throughput:
    """One frame of all streams takes 0.2 s, however many there are."""
    return Throughput(Mock(need=lambda streams: 0.2 / FRAME_SECONDS))


def test_the_wait_is_that_for_the_first_slot_that_those_before_leave_free(
    busy_engine: Engine, seen: Throughput
) -> None:
    busy = [utterance_of(busy_engine.speak("x" * length)) for length in (100, 200, 300)]
    assert wait_s(busy, 2, Throughput(Costs())) is None, "nothing was seen"
    busy[0].admitted = busy[1].admitted = True
    assert wait_s(busy, 4, seen) == 0
    assert wait_s(busy[:2], 2, seen) == pytest.approx(20.0), "a frame a letter, five frames a second each"
    assert wait_s(busy, 2, seen) == pytest.approx(40.0), "the third takes the place of the first"
    seen.observe_work(frames_s=1.0, seconds=2.0)
    assert wait_s(busy, 2, seen) == pytest.approx(80.0), "half of the time goes to requests that begin"
    seen.observe_work(frames_s=100.0, seconds=100.0)
    assert wait_s(busy, 2, seen) == pytest.approx(40.0), "what was seen long ago counts less"


def test_where_requests_wait_although_slots_are_free_those_in_use_are_all_there_are(
    busy_engine: Engine, seen: Throughput
) -> None:
    busy = [utterance_of(busy_engine.speak("x" * length)) for length in (100, 200, 300)]
    busy[0].admitted = True
    assert wait_s(busy, 3, seen) == pytest.approx(20.0), "the others begin with the next batch"
    assert wait_s(busy, 3, seen, after_s=2 * LONG_S) == pytest.approx(40.0), "the last in the slot of the first"


def test_streams_beyond_what_can_be_sustained_have_slots_and_wait_for_none(
    busy_engine: Engine, seen: Throughput
) -> None:
    busy = [utterance_of(busy_engine.speak("x" * length)) for length in (50, 100, 300)]
    for one in busy:
        one.admitted = True
    assert wait_s(busy, 2, seen) == pytest.approx(10.0), "the first that ends leaves a slot, though 3 run instead of 2"


@pytest.mark.parametrize(
    ("own", "own_waits", "others", "expected"),
    [
        ([], [], [[300, 300]], 0.0),
        ([100], [], [[300, 300]], 20.0),
        ([100, 5], [], [[300, 300]], 1.0),
        ([100, 200], [], [[50, 300]], 20.0),
        ([5, 100], [], [[300] * 4], 0.0),
        ([5, 5], [10, 10], [[300, 300]], 3.0),
        ([], [10], [[300, 300]], 2.0),
        ([5], [], [[300, 300], [300, 300]], 1.0),
        ([5], [], [[300] * 4, [100]], 0.0),
    ],
    ids=[
        "another owner's slot",
        "its own",
        "its own that ends first",
        "not the first, which others get",
        "half of all",
        "in the slots of those before it",
        "the second of two that come, where one slot is its own",
        "a third",
        "what the smallest leaves to it",
    ],
)
def test_an_owner_waits_for_slots_of_its_own_share_whatever_others_have_asked_for(
    busy_engine: Engine,
    seen: Throughput,
    own: list[int],
    own_waits: list[int],
    others: list[list[int]],
    expected: float,
) -> None:
    def start(owner: str, lengths: list[int], *, run: bool) -> list[Utterance]:
        found = [utterance_of(busy_engine.speak_for(owner, "x" * length)) for length in lengths]
        for one in found:
            one.admitted = run
        return found

    opened = start("own", own, run=True) + start("own", own_waits, run=False)
    for place, lengths in enumerate(others):
        opened += start(f"other {place}", lengths, run=True)
        if len(lengths) > 1:
            opened += start(f"other {place}", [300, 300], run=False)
    new = utterance_of(busy_engine.speak_for("own", TEXT))
    wait = expected_wait(opened, new, limits_of(2), seen, new.progress.requested_at)
    assert wait.seconds == pytest.approx(expected)


def test_of_what_others_wait_for_that_counts_which_is_served_before(busy_engine: Engine, seen: Throughput) -> None:
    """The owner with fewer streams gets the next slot, of those with as many the one that waits."""
    few, *many = [utterance_of(busy_engine.speak_for(owner, "x" * 100)) for owner in ("few", "many", "many")]
    queue = [utterance_of(busy_engine.speak_for("many", "x" * 1000)) for _ in range(3)]
    for one in (few, *many):
        one.admitted = True
    new = utterance_of(busy_engine.speak_for("few", TEXT))
    now = new.progress.requested_at
    assert expected_wait([few, *many, *queue], new, limits_of(3), seen, now).before == 3
    assert expected_wait([few, many[0], *queue], new, limits_of(2), seen, now).before == 3, "one each: many's first"


def test_a_stream_that_stays_near_its_playback_leaves_its_slot_when_the_last_frame_is_made(
    busy_engine: Engine, seen: Throughput
) -> None:
    seen = Throughput(Mock(need=lambda streams: 1e-3))
    busy = [utterance_of(busy_engine.speak("x" * 100, max_ahead_s=2.0))]
    busy[0].admitted = True
    assert wait_s(busy, 1, seen) == pytest.approx(6.0), "8 s of speech, of which 2 s may be made ahead"
    busy[0].deadline = busy[0].progress.requested_at + 1.5
    assert wait_s(busy, 1, seen) == pytest.approx(7.5), "1.5 s of the 2 s are made"


def test_no_more_than_its_limit_of_frames_is_expected_of_a_request(busy_engine: Engine, seen: Throughput) -> None:
    busy = [utterance_of(busy_engine.speak("x" * 100, max_frames=10))]
    busy[0].admitted = True
    assert wait_s(busy, 1, seen) == pytest.approx(2.0)


def test_where_text_may_still_come_the_refusal_says_that_the_wait_may_be_longer(
    busy_engine: Engine, seen: Throughput
) -> None:
    known, open_ended = (utterance_of(busy_engine.speak(text)) for text in ("x" * 100, None))
    open_ended.text.feed("Hello there, how are you? I am")
    open_ended.idle_since = None
    known.admitted = open_ended.admitted = True
    for busy, when in (
        (known, r"in about 20 s,"),
        (open_ended, r"in 6 s or later, as text may still come for others,"),
    ):
        new = utterance_of(busy_engine.speak(TEXT))
        refused = queue_refusal([busy], new, limits_of(1, max_waiting=0), seen, new.progress.requested_at)
        with pytest.raises(
            CapacityError, match=rf"1 streams run and 0 wait already; try again {when} raise the setting"
        ):
            raise cast("CapacityError", refused)


class AdmittedOnceSeen:
    """A request that the worker admits while a caller's thread looks at it."""

    owner, idle_since = "", None

    def __init__(self) -> None:
        self._looks = itertools.count()
        self.progress = Mock(requested_at=0.0)

    @property
    def admitted(self) -> bool:
        return next(self._looks) > 0


def test_one_that_is_admitted_while_the_queue_is_counted_is_in_it() -> None:
    opened = cast("list[Utterance]", [AdmittedOnceSeen(), AdmittedOnceSeen()])
    error = queue_refusal(opened, Mock(owner=""), limits_of(1, max_waiting=1), Throughput(Costs()), 0.0)
    assert isinstance(error, CapacityError)


def test_nobody_is_refused_where_more_run_than_can_be_sustained_and_nobody_waits(busy_engine: Engine) -> None:
    """A host that has become slower carries fewer than it has let in."""
    busy = [utterance_of(busy_engine.speak(TEXT)) for _ in range(3)]
    for one in busy:
        one.admitted = True
    new = utterance_of(busy_engine.speak(TEXT))
    assert queue_refusal(busy, new, limits_of(1, max_waiting=1), Throughput(Costs()), 0.0) is None
    assert queue_refusal([*busy, new], Mock(owner=""), limits_of(1, max_waiting=1), Throughput(Costs()), 0.0)


def test_audio_in_hand_makes_no_slot(open_engine: Opener) -> None:
    """Speech that is short may use the time that others can do without, but not a slot that nobody gives up."""
    capabilities = replace(CAPABILITIES, max_positions=10**9)
    fakes = fakes_with(frames=None, on_decode=lambda call: time.sleep(1e-4), capabilities=capabilities)
    endless = {"max_frames": 10**8, "max_segment_frames": 10**8, "runaway_guard": False}
    engine = open_engine(fakes, max_streams=1, max_waiting=0, **endless)
    with engine.speak(TEXT) as occupant:
        eventually(lambda: occupant.facts().audio_s > 60, "it is far ahead of its playback")
        with pytest.raises(CapacityError, match="1 streams run and 0 wait already"):
            engine.speak(TEXT)


def test_who_waits_too_long_for_a_row_is_told_when_to_try_again(open_engine: Opener) -> None:
    waits, go = threading.Event(), threading.Event()
    fakes = fakes_with(frames=200, on_decode=lambda call: waits.wait(HANG_S) and go.wait(0.02))
    engine = open_engine(fakes, max_streams=1, max_wait_s=0.2)
    running, waiting = engine.speak(TEXT), engine.speak(TEXT)
    waits.set()
    next(running)
    with pytest.raises(
        CapacityError, match=r"no stream was free for 0\.2 s; try again .*max_wait_s, or raise the setting max_streams"
    ):
        waiting.read_all()
    go.set()
    assert len(running.read_all()) == 199 * 1920, "who has begun is not concerned"
    engine.speak(TEXT).read_all()


def test_who_finds_a_row_free_is_served_however_late_the_engine_looks(open_engine: Opener) -> None:
    engine = open_engine(max_streams=1, max_wait_s=0.01)
    with engine.borrow_backends():
        first, second = engine.speak(TEXT), engine.speak(TEXT)
        time.sleep(0.02)
    assert len(first.read_all())
    with pytest.raises(CapacityError, match="no stream was free"):
        second.read_all()


def test_the_deadline_ends_the_wait_though_nothing_else_happens(open_engine: Opener) -> None:
    waits = threading.Event()
    fakes = fakes_with(frames=200, on_decode=lambda call: waits.wait(HANG_S))
    engine = open_engine(fakes, max_streams=1, max_wait_s=0.2, max_ahead_s=600.0)
    running, waiting = engine.speak(TEXT, max_ahead_s=0.5), engine.speak(TEXT)
    waits.set()
    next(running)
    with pytest.raises(CapacityError, match="no stream was free"):
        waiting.read_all()
    running.cancel()


def test_a_wait_that_is_too_long_is_foreseen(open_engine: Opener) -> None:
    """From the frames that the engine makes in a second and those that are still to be made."""
    pause = threading.Event()
    fakes = fakes_with(frames=40, on_decode=lambda call: pause.wait(0.01))
    engine = open_engine(fakes, max_streams=1, max_waiting=3, max_wait_s=60.0)
    engine.warmup()
    engine.speak(TEXT).read_all()  # about 0.01 s a frame, about a frame a letter
    long = "On and on. " * 1000
    with engine.speak(TEXT), engine.speak(long):
        with pytest.raises(CapacityError, match=r"would have to wait \d+ s for its turn, longer than 60 s") as raised:
            engine.speak(TEXT)
        assert raised.value.retry_after_s is not None
        assert raised.value.retry_after_s > 60, "not when it would have to wait for 60 s only"


def test_a_full_queue_tells_when_to_come_again(open_engine: Opener) -> None:
    engine = open_engine(max_streams=1, max_waiting=1)
    with engine.borrow_backends():
        streams = [engine.speak(TEXT), engine.speak(TEXT)]
        with pytest.raises(CapacityError, match="try again when one has ended") as early:
            engine.speak(TEXT)
    assert early.value.retry_after_s is None, "nothing was seen yet"
    engine.warmup()
    for stream in streams:
        stream.read_all()
    engine.speak(TEXT).read_all()
    with engine.borrow_backends():
        streams = [engine.speak(TEXT), engine.speak(TEXT)]
        with pytest.raises(CapacityError, match=r"try again in about \d+ s") as later:
            engine.speak(TEXT)
    assert later.value.retry_after_s is not None
