"""A short crowd on a server in this process; the result of the long one lies under ``benchmarks/results``."""

import asyncio
from collections import Counter

import numpy as np
import pytest

from megatalker.checkpoint import Checkpoint
from megatalker_benchmarks.caller import HeardSpeech, Tally
from megatalker_benchmarks.callers import Counts, disagreements, run
from serving import TEXT, fakes_with, serving
from watched_server import WatchedServer


@pytest.mark.slow
def test_rude_callers_disturb_no_caller_and_leave_nothing_behind(tiny_custom_voice: Checkpoint) -> None:
    with serving(tiny_custom_voice, fakes_with()) as served:
        found = asyncio.run(run(WatchedServer(served), 6, 8.0, [TEXT, "It is ten o'clock."], 60))
    assert found["wrong"] == []
    assert found["compared"] == found["bit_equal"] > 3
    assert found["poisoned"] == 2
    assert min(found["vanished"].values()) >= 1
    assert min(found["refused"].values()) > 1


ALONE = HeardSpeech(np.arange(32).reshape(2, 16), np.arange(3840, dtype=np.int16))


@pytest.mark.parametrize(
    ("heard", "whole", "complaint"),
    [
        (ALONE, True, None),
        (HeardSpeech(ALONE.codes, ALONE.samples + np.int16(1)), True, None),
        (HeardSpeech(ALONE.codes[:1], ALONE.samples[:1920]), False, None),
        (HeardSpeech(ALONE.codes, ALONE.samples + np.int16(2)), True, "samples differ by 2"),
        (HeardSpeech(ALONE.codes + 1, ALONE.samples), True, "other codes"),
        (HeardSpeech(ALONE.codes[:1], ALONE.samples[:1920]), True, "1920 samples, 3840 alone"),
    ],
)
def test_differences_that_count_as_disturbed(heard: HeardSpeech, whole: bool, complaint: str | None) -> None:
    tally = Tally()
    tally.compare("listen", heard, ALONE, whole=whole)
    assert len(tally.disturbed) == (complaint is not None)
    assert complaint is None or complaint in tally.disturbed[0]


def counted(**changes: int) -> Counts:
    ended = "megatalker_utterances_total"
    return Counter(
        {
            (ended, "http", "eos"): changes.get("eos", 4),
            (ended, "http", "cancelled"): changes.get("cancelled", 1),
            (ended, "http", "error"): changes.get("error", 0),
            ("megatalker_refusals_total", "http", ""): changes.get("refused", 2),
            ("megatalker_engine_streams_total", "", ""): changes.get("streams", 5),
        }
    )


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({}, None),
        ({"eos": 5, "cancelled": 0}, None),  # a caller may have vanished after the last sample was sent
        ({"eos": 5}, "the server counted"),
        ({"eos": 3, "cancelled": 2}, "the server counted"),
        ({"eos": 4, "cancelled": 0, "error": 1}, "1 utterances failed"),
        ({"refused": 3}, "3 refusals; callers 2"),
        ({"streams": 6}, "6 streams; callers 5"),
    ],
)
def test_the_server_must_have_counted_what_the_callers_counted(changes: dict[str, int], complaint: str | None) -> None:
    tally = Tally(ends=Counter({("http", "eos"): 4}), vanished=Counter(http=1), refused=Counter(http=2))
    wrong = disagreements(tally, Counter(), counted(**changes))
    assert len(wrong) == (complaint is not None)
    assert complaint is None or complaint in wrong[0]
