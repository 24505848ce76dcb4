"""Long prompts, long streams, long histories, and the end of the positions."""

from collections.abc import Callable

import pytest
import torch

from megatalker.checkpoint import Checkpoint
from megatalker.errors import CapacityError
from megatalker_conformance.cases import Cases
from megatalker_conformance.measure import Measure, clock
from megatalker_conformance.places import FrameExaminer
from megatalker_conformance.special import GROUPED
from megatalker_conformance.streams import Codes, StreamCase, SuiteStream, SuiteStreams

PROMPT = 230
"""Rows before the long stream: its positions cross 256 and 512 while its frames cross 64, 128 and 256."""
LEAST_FRAMES, MOST_FRAMES = 300, 600
FREE_FRAMES = 300
"""Frames for a decoder without ``forced_codes``, which has to choose each code."""
BAND = 29
"""A mistake in this many frames or positions cannot pass unseen."""
RUN_S = 5.0
"""Time for frames above :data:`LEAST_FRAMES`, of the decoder's own."""
LONGEST_PROMPT = 8200
PROMPT_S = 6.0
"""Seconds that the longest prompt may take."""


def _some_codes(checkpoint: Checkpoint, frames: int) -> list[Codes]:
    """Return fixed codes. Code 0 is any in the first 64 frames and one of two later: old and recent codes differ."""
    config, draw = checkpoint.config, torch.Generator().manual_seed(5)
    codes = torch.randint(config.predictor.vocab_size, (frames, config.num_code_groups), generator=draw)
    codes[:, 0] = torch.randint(config.first_suppressed_id, (frames,), generator=draw)
    codes[64:, 0] = codes[64:, 0] % 2
    return [tuple(row) for row in codes.tolist()]


def _marks(last: int) -> set[int]:
    """Numbers at which tables, pages, tiles and words end, and some at random."""
    draw = torch.Generator().manual_seed(last)
    edges = {2**power + step for power in range(6, 15) for step in (-1, 0, 1)}
    others = torch.randint(1, max(2, last), (2 + last // 256,), generator=draw).tolist()
    return {0, 1, last - 1, *range(0, last, BAND), *others, *edges} & set(range(last))


def test_frames_stay_right_along_a_long_stream(
    examine: FrameExaminer, cases: Cases, checkpoint: Checkpoint, measure: Measure, device: torch.device
) -> None:
    """Forced frames lead far; free ones in between, at marks of frames and of positions, show where it stands."""
    streams = examine.streams
    forces = streams.decoder.capabilities.forced_codes
    rows = min(PROMPT, streams.decoder.max_positions // 2)
    last = min(MOST_FRAMES if forces else FREE_FRAMES, streams.decoder.max_positions - rows)
    stream = streams.start(cases.rows(rows, examine.sampling))
    marks = _marks(last) | {mark - rows for mark in _marks(last + rows)}
    now = clock(device)
    left = RUN_S
    for frame, codes in enumerate(_some_codes(checkpoint, last)):
        if frame in marks:
            examine(stream)
            continue
        began = now()
        streams.advance(stream, forced=codes if forces else None)
        left -= now() - began
        if left < 0 and frame >= LEAST_FRAMES:
            break
    examine.finish(measure)
    measure("frames not reached", last - len(stream.codes), last - min(last, LEAST_FRAMES))


def test_long_prompts_and_long_histories_go_on_right(
    examine: FrameExaminer, cases: Cases, checkpoint: Checkpoint, measure: Measure, device: torch.device
) -> None:
    """A prompt of every size, and a continuation of a stream of that age: the next frame has that index."""
    streams = examine.streams
    limit = min(LONGEST_PROMPT, streams.decoder.max_positions - 2)
    now = clock(device)
    emitted = _some_codes(checkpoint, limit)
    reached, spent = 0, 0.0
    for power in range(4, 14):
        for place, step in enumerate((-1, 1)):
            length = 2**power + step
            if length > limit or spent > PROMPT_S / 4:
                continue
            case = cases.rows(5 if place else length, examine.sampling)
            given = emitted[: length - 5] if place else []
            rows = cases.emitted_rows(case, given) if given else None
            began = now()
            stream = streams.start(case) if rows is None else streams.resume(case, given, rows)
            spent, reached = now() - began, length
            if given:  # the frame after it depends on the step at this position
                streams.advance(stream)
            examine(stream, given)
            streams.release(stream)
    examine.finish(measure)
    measure("longest prompt that was not tried", limit - reached, limit)


@pytest.fixture(params=["this checkpoint", GROUPED])
def capacity(
    request: pytest.FixtureRequest,
    examine: FrameExaminer,
    cases: Cases,
    examine_special: Callable[[str], tuple[FrameExaminer, Cases]],
) -> tuple[FrameExaminer, Cases, int]:
    """The decoder under test where its positions are few enough to fill them: on a checkpoint of few positions, always.

    A claim of no limit means as many positions as the checkpoint has; one of more is not tried.
    """
    if request.param == GROUPED:
        examine, cases = examine_special(GROUPED)
    limit = min(examine.streams.decoder.max_positions, examine.checkpoint_positions)
    if limit > LONGEST_PROMPT:
        pytest.skip(
            f"{limit} positions are more than a test can fill; prompts of up to {LONGEST_PROMPT} rows are tried, and "
            f"the end of the positions on the checkpoint '{GROUPED}'"
        )
    return examine, cases, limit


def test_the_last_positions_are_right_and_the_next_is_refused(
    capacity: tuple[FrameExaminer, Cases, int], measure: Measure
) -> None:
    examine, cases, limit = capacity
    streams = examine.streams
    stream = streams.start(cases.rows(max(2, limit - 4), examine.sampling))
    for _ in range(limit - len(stream.case.embeds)):
        examine(stream)
    if limit == streams.decoder.max_positions:
        _refuses_more(streams, stream, cases.rows(limit + 1, examine.sampling))
    streams.release(stream)
    examine(streams.start(cases.rows(limit - 1, examine.sampling)))
    streams.release_all()
    examine.finish(measure)


def _refuses_more(streams: SuiteStreams, full: SuiteStream, too_long: StreamCase) -> None:
    for _ in range(2):
        with pytest.raises(CapacityError):
            streams.advance(full)
    house = streams.decoder.max_streams or 8
    for _ in range(house + 1):  # one row held for each refusal would run out here
        with pytest.raises(CapacityError):
            streams.start(too_long)
