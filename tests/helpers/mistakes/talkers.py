"""Talker decoders with one deliberate mistake each."""

import json
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.interfaces import (
    DecodeStep,
    Frame,
    LoadContext,
    StreamHandle,
    StreamRequest,
    TalkerCapabilities,
    TalkerDecoder,
)
from mistakes.catalogue import Decoder, mistake


@mistake("test_greedy_codes_equal_the_official_generate", "test_each_frame_takes_the_text_row_of_its_own_step")
class OffByOneFrame(Decoder):
    """Each frame gets the text row of the frame before."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, context)
        self._late: dict[StreamHandle, Tensor] = {}

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> Callable[[], list[Frame]]:
        late = [replace(step, text=self._late.get(step.stream, step.text)) for step in steps]
        frames = super().decode(late, return_logits=return_logits)
        self._late |= {step.stream: step.text for step in steps}
        return frames


@mistake("test_nothing_of_a_stream_stays_in_its_row")
class Leaking(Decoder):
    """A released stream leaves something of its prompt to the next one."""

    _residue: Tensor | float = 0.0

    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        self._last = requests[-1].embeds[-1] * 0.3
        return super().prefill([replace(request, embeds=request.embeds + self._residue) for request in requests])

    def release(self, stream: StreamHandle) -> None:
        super().release(stream)
        self._residue = self._last


@mistake("test_streams_that_start_and_end_at_different_times_do_not_disturb_each_other")
class Mixing(Decoder):
    """Streams of one call share their text rows."""

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> Callable[[], list[Frame]]:
        if len(steps) > 1:
            mean = torch.stack([step.text for step in steps]).mean(0)
            steps = [replace(step, text=mean) for step in steps]
        return super().decode(steps, return_logits=return_logits)


@mistake("test_float32_logits_have_float32_errors")
class WrongRopeBase(Decoder):
    """Turns positions with another base than the checkpoint's."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(shutil.copytree(checkpoint.folder, Path(scratch) / "checkpoint"))
            config = json.loads((folder / "config.json").read_text())
            config["talker_config"]["rope_theta"] /= 100
            (folder / "config.json").write_text(json.dumps(config))
            super().__init__(Checkpoint.open(folder), context)


@mistake("test_streams_of_a_full_house_do_not_disturb_each_other")
class Swapping(Decoder):
    """Gives the first of several prompts the place of the last, and the other way round."""

    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        return super().prefill(requests[::-1])


@mistake("test_each_frame_takes_the_text_row_of_its_own_step", "test_no_call_does_the_work_of_several_frames")
class Buffering(Decoder):
    """Computes eight frames at a time and hands them out one by one."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, context)
        self._buffer: defaultdict[StreamHandle, list[Frame]] = defaultdict(list)

    def decode(
        self, steps: Sequence[DecodeStep], *, return_logits: bool = False
    ) -> list[Frame] | Callable[[], list[Frame]]:
        if any(step.forced for step in steps) or return_logits:
            return super().decode(steps, return_logits=return_logits)
        for step in steps:
            if not self._buffer[step.stream]:
                self._buffer[step.stream] = [
                    frame for _ in range(8) for frame in super(Buffering, self).decode([step])()
                ]
        return [self._buffer[step.stream].pop(0) for step in steps]


@mistake("test_no_schedule_changes_what_a_stream_says")
class Hasty(Decoder):
    """Starts a frame with whatever text lies in its staging memory, and puts the right text there while waiting."""

    _staged: Sequence[DecodeStep] = ()

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> Callable[[], list[Frame]]:
        late = {step.stream: step.text for step in self._staged}
        take = super().decode(
            [replace(step, text=late.get(step.stream, step.text)) for step in steps], return_logits=return_logits
        )

        def stage_and_take() -> list[Frame]:
            self._staged = steps
            return take()

        return stage_and_take


@mistake("test_no_other_decoder_does_the_work")
class Fallback(TalkerDecoder):
    """Its kernel does not work here, so another decoder quietly does everything."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        self._inner = Decoder(checkpoint, context)

    @property
    def capabilities(self) -> TalkerCapabilities:
        return self._inner.capabilities

    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        return self._inner.prefill(requests)

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> Callable[[], list[Frame]]:
        return self._inner.decode(steps, return_logits=return_logits)

    def release(self, stream: StreamHandle) -> None:
        self._inner.release(stream)


@mistake("test_float32_logits_have_float32_errors")
class WrongDtype(Decoder):
    """Computes in bfloat16, whatever was asked for."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, replace(context, dtype=torch.bfloat16))


@mistake("test_released_rows_are_used_again")
class Hoarding(Decoder):
    """Keeps the row of a released stream."""

    def release(self, stream: StreamHandle) -> None:
        pass


@mistake("test_no_schedule_changes_what_a_stream_says")
class Borrowing(Decoder):
    """Runs a prompt when its first frame is asked for, from tensors that belong to the caller."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, context)
        self._waiting: dict[StreamHandle, StreamRequest] = {}

    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        handles = super().prefill(requests)
        self._waiting |= dict(zip(handles, requests, strict=True))
        return handles

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> Callable[[], list[Frame]]:
        for step in steps:
            request = self._waiting.pop(step.stream, None)
            if request is not None:
                with torch.inference_mode():
                    self._runner.prefill(self._table[step.stream].row, request.embeds)
        return super().decode(steps, return_logits=return_logits)
