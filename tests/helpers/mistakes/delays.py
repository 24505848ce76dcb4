"""Talker decoders that hide work where a measurement that repeats itself does not look."""

import time
from collections.abc import Callable, Sequence

from megatalker.checkpoint import Checkpoint
from megatalker.interfaces import DecodeStep, Frame, LoadContext, StreamHandle, StreamRequest
from mistakes.catalogue import Decoder, mistake

WIDTH = "test_warm_up_leaves_no_work_for_the_first_call_of_a_width"
SET_UP_S = 0.2


def compute(seconds: float) -> None:
    """Keep the processor busy for this many seconds of processor time."""
    until = time.process_time() + seconds
    while time.process_time() < until:
        sum(range(1000))


@mistake("test_a_prompt_leaves_no_work_for_the_first_frame")
class ReadsPromptLate(Decoder):
    """Leaves the longer part of reading a prompt to the first frame: 0.2 ms a row."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, context)
        self._unread: dict[StreamHandle, int] = {}

    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        handles = super().prefill(requests)
        self._unread |= {handle: len(request.embeds) for handle, request in zip(handles, requests, strict=True)}
        return handles

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> Callable[[], list[Frame]]:
        compute(0.0002 * sum(self._unread.pop(step.stream, 0) for step in steps))
        return super().decode(steps, return_logits=return_logits)


@mistake(WIDTH)
class SetsUpAtDecode(Decoder):
    """Sets each number of streams up in its first call of as many."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, context)
        self._known: set[int] = set()

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> Callable[[], list[Frame]]:
        compute(0.0 if len(steps) in self._known else SET_UP_S)
        self._known.add(len(steps))
        return super().decode(steps, return_logits=return_logits)


@mistake(WIDTH)
class SetsUpAtPrefill(Decoder):
    """Sets each number of prompts above three up in its first call of as many."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, context)
        self._known = {1, 2, 3}

    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        compute(0.0 if len(requests) in self._known else SET_UP_S)
        self._known.add(len(requests))
        return super().prefill(requests)
