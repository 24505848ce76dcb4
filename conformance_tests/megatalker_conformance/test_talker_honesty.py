"""A backend does its own work, as it was asked to: nothing falls back silently."""

import gc
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FunctionType, ModuleType

import torch

from megatalker.checkpoint.config import FRAME_SECONDS
from megatalker.interfaces import TalkerBackend, TalkerDecoder
from megatalker.plugins.checked import CheckedTalker
from megatalker_conformance.cases import SENTENCES, Cases
from megatalker_conformance.checks import Judge
from megatalker_conformance.measure import Measure, clock
from megatalker_conformance.streams import GREEDY, StreamCase, SuiteStreams

FLAGS = ("batch", "forced_codes", "seeded_sampling", "prefix_reuse", "batch_invariant", "exact_continuation")
ROUNDED_FLAGS = ("forced_codes", "seeded_sampling", "prefix_reuse", "exact_continuation")
"""The same of an instance with rounded weights: other arithmetic may gain nothing from batches, and repeat its bits."""
CALLS = 12
SPIKE = 4.0
"""A call may take this many times the median call: less than the 8 frames that chunked decoders run ahead."""
LONG_PROMPT = 1000
"""Rows of a minute of speech to clone, with its text."""
WIDTHS = (1, 2, 3, 5, 8, 16, 48)
"""Streams of a call, besides as many as there may be."""


def test_the_loaded_instance_has_the_abilities_of_its_specification(
    talker_backend: TalkerBackend, talker: CheckedTalker, device: torch.device, dtype: torch.dtype
) -> None:
    promised, found = talker_backend.capabilities, talker.capabilities
    assert device.type in found.devices
    assert dtype in found.dtypes
    flags = FLAGS if found.weight_bits is None else ROUNDED_FLAGS
    assert {flag: getattr(found, flag) for flag in flags} == {flag: getattr(promised, flag) for flag in flags}


def test_no_other_decoder_does_the_work(
    streams: SuiteStreams, talker: CheckedTalker, cases: Cases, judge: Judge
) -> None:
    """A decoder that holds another one would be measured and judged in its name."""
    streams.run(streams.start(cases.rows(8, judge.manner)), 2)
    hidden = [
        type(found).__qualname__ for found in _reachable(talker.decoder) if issubclass(type(found), TalkerDecoder)
    ]
    assert not hidden, f"behind {type(talker.decoder).__qualname__} stands {', '.join(hidden)}"


def _reachable(root: object) -> Iterator[object]:
    """Every object that ``root`` holds, directly or not; modules, classes and globals are not held by anybody."""
    seen, queue = {id(root)}, [root]
    while queue:
        for held in _held(queue.pop()):
            if id(held) not in seen and not isinstance(held, ModuleType | type):
                seen.add(id(held))
                queue.append(held)
                yield held


def _held(item: object) -> list[object]:
    if isinstance(item, FunctionType):
        return [*(item.__closure__ or ()), *(item.__defaults__ or ())]
    return gc.get_referents(item)


def test_no_call_does_the_work_of_several_frames(
    streams: SuiteStreams, cases: Cases, judge: Judge, measure: Measure, device: torch.device
) -> None:
    """The first frame must not wait for later ones, so all calls cost about the same."""
    case = cases.prompt(SENTENCES[1], "interleaved", judge.manner)
    quietest = _quietest_calls(streams, case, device, runs=4)
    measure("slowest call / median call", max(quietest) / statistics.median(quietest), SPIKE)


def _quietest_calls(streams: SuiteStreams, case: StreamCase, device: torch.device, *, runs: int) -> list[float]:
    """Return the seconds of each of a stream's first calls, in the run in which that call took least."""
    now = clock(device)
    quietest = [float("inf")] * CALLS
    for _ in range(runs):
        stream = streams.start(case)
        for call in range(CALLS):
            began = now()
            streams.advance(stream)
            quietest[call] = min(quietest[call], now() - began)
        streams.release(stream)
    return quietest


def test_a_prompt_leaves_no_work_for_the_first_frame(
    streams: SuiteStreams, cases: Cases, judge: Judge, measure: Measure, device: torch.device
) -> None:
    """A prefill that returns at once and is done by the first frame delays all streams of that call."""
    case = cases.rows(min(LONG_PROMPT, streams.decoder.max_positions - CALLS - 1), judge.manner)
    quietest = _quietest_calls(streams, case, device, runs=3)
    ratio = quietest[0] / statistics.median(quietest[1:])
    measure(f"first frame after a prompt of {len(case.embeds)} rows / median frame", ratio, SPIKE)


def test_warm_up_leaves_no_work_for_the_first_call_of_a_width(
    load_another: Callable[[], CheckedTalker], cases: Cases, measure: Measure, device: torch.device
) -> None:
    """The first streams of a call of that width would have a gap, which no later measurement shows."""
    case, now = cases.rows(8, replace(GREEDY, min_new_tokens=CALLS)), clock(device)
    decoder = load_another()
    decoder.warmup()
    most = decoder.max_streams or WIDTHS[-1]
    streams, worst = SuiteStreams(decoder), {"prefill": 0.0, "decode": 0.0}
    gc.collect()
    gc.disable()
    try:
        for width in sorted({min(width, most) for width in (*WIDTHS, most)}):
            seconds: dict[str, list[float]] = {name: [] for name in worst}
            for _ in range(2):
                began = now()
                together = streams.start_together(*[case] * width)
                seconds["prefill"].append(now() - began)
                for _ in range(2):
                    began = now()
                    streams.advance(*together)
                    seconds["decode"].append(now() - began)
                for stream in together:
                    streams.release(stream)
            for name, (first, *later) in seconds.items():
                worst[name] = max(worst[name], (first - min(later)) / (FRAME_SECONDS + min(later)))
    finally:
        gc.enable()
        decoder.close()
    for name, extra in worst.items():
        measure(f"first {name} of a width beyond a later one / that and the duration of a frame", extra, 1.0)
