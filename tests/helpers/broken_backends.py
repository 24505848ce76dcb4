"""A plug-in of backends with one deliberate mistake each, and healthy ones beside them."""

import json
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.interfaces import (
    Availability,
    Codec,
    CodecBackend,
    CodecState,
    DecodeStep,
    Frame,
    LoadContext,
    StreamHandle,
    StreamRequest,
    TalkerBackend,
    TalkerCapabilities,
    TalkerDecoder,
)
from megatalker.plugins import hookimpl
from megatalker_backends.compiled.decoder import CompiledDecoder
from megatalker_backends.compiled.spec import TALKER
from megatalker_backends.reference.codec import ReferenceCodec, ReferenceCodecState
from megatalker_backends.reference.spec import CODEC
from megatalker_backends.streaming.codec import StreamingCodec
from megatalker_backends.streaming.spec import CODEC as STREAMING


class Decoder(CompiledDecoder):
    """Healthy, and loaded without a compiler, so that each of its broken children is ready at once."""

    def warmup(self) -> None:
        pass


def with_sampling(request: StreamRequest, **changes: Any) -> StreamRequest:
    return replace(request, sampling=replace(request.sampling, **changes))


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


class Leaking(Decoder):
    """A released stream leaves something of its prompt to the next one."""

    _residue: Tensor | float = 0.0

    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        self._last = requests[-1].embeds[-1] * 0.3
        return super().prefill([replace(request, embeds=request.embeds + self._residue) for request in requests])

    def release(self, stream: StreamHandle) -> None:
        super().release(stream)
        self._residue = self._last


class Mixing(Decoder):
    """Streams of one call share their text rows."""

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> Callable[[], list[Frame]]:
        if len(steps) > 1:
            mean = torch.stack([step.text for step in steps]).mean(0)
            steps = [replace(step, text=mean) for step in steps]
        return super().decode(steps, return_logits=return_logits)


class WrongRopeBase(Decoder):
    """Turns positions with another base than the checkpoint's."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(shutil.copytree(checkpoint.folder, Path(scratch) / "checkpoint"))
            config = json.loads((folder / "config.json").read_text())
            config["talker_config"]["rope_theta"] /= 100
            (folder / "config.json").write_text(json.dumps(config))
            super().__init__(Checkpoint.open(folder), context)


class NoPenalty(Decoder):
    """Skips the repetition penalty."""

    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        return super().prefill([with_sampling(request, repetition_penalty=1.0) for request in requests])


class Seedless(Decoder):
    """Ignores the seed."""

    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        return super().prefill([with_sampling(request, seed=0) for request in requests])


class Swapping(Decoder):
    """Gives the first of several prompts the place of the last, and the other way round."""

    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        return super().prefill(requests[::-1])


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


class WrongDtype(Decoder):
    """Computes in bfloat16, whatever was asked for."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, replace(context, dtype=torch.bfloat16))


class Hoarding(Decoder):
    """Keeps the row of a released stream."""

    def release(self, stream: StreamHandle) -> None:
        pass


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


class Windowed(ReferenceCodec):
    """Remembers 25 frames, as the official chunking does."""

    kept = 25

    def decode(self, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[Tensor]:
        chunks = super().decode(states, codes)
        for state in states:
            assert isinstance(state, ReferenceCodecState)
            state.codes = state.codes[len(state.codes) - self.kept :] if len(state.codes) > self.kept else state.codes
        return chunks


class Forgetful(Windowed):
    """Decodes each chunk on its own."""

    kept = 0


class Delaying(ReferenceCodec):
    """Hands out each chunk's samples half a frame late."""

    def decode(self, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[Tensor]:
        return [torch.cat((torch.zeros(960), chunk[:-960])) for chunk in super().decode(states, codes)]


class EntangledState(ReferenceCodecState):
    def copy(self) -> "EntangledState":
        return self


class Entangled(ReferenceCodec):
    """A copy of a state is the state itself."""

    def open(self) -> EntangledState:
        fresh = super().open()
        return EntangledState(fresh.codes)


class Regrouping(StreamingCodec):
    """Says that chunking changes no bit, and adds up in another order in calls of several frames or streams."""

    def decode(self, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[Tensor]:
        chunks = super().decode(states, codes)
        several = len(codes) > 1 or len(codes[0]) > 1
        return [torch.nextafter(chunk, torch.zeros(())) for chunk in chunks] if several else chunks


class NotHere(Decoder):
    """Needs a device that this machine lacks."""


def _talker(load: type[TalkerDecoder], name: str, **changes: Any) -> TalkerBackend:
    return replace(TALKER, name=name, summary=load.__doc__ or "", load=load, rank=-100, **changes)


def _codec(load: type[Codec], name: str, spec: CodecBackend = CODEC) -> CodecBackend:
    return replace(spec, name=name, summary=load.__doc__ or "", load=load, rank=-100)


@hookimpl
def megatalker_backends() -> list[TalkerBackend | CodecBackend]:
    return [
        _talker(Decoder, "healthy"),
        _talker(OffByOneFrame, "off_by_one_frame"),
        _talker(Leaking, "leaking"),
        _talker(Mixing, "mixing"),
        _talker(WrongRopeBase, "wrong_rope_base"),
        _talker(NoPenalty, "no_penalty"),
        _talker(Buffering, "buffering"),
        _talker(Hasty, "hasty"),
        _talker(Fallback, "fallback"),
        _talker(WrongDtype, "wrong_dtype"),
        _talker(Seedless, "seedless"),
        _talker(Hoarding, "hoarding"),
        _talker(Swapping, "swapping"),
        _talker(Borrowing, "borrowing"),
        _talker(NotHere, "not_here", probe=lambda *_: Availability("it needs a device of another kind")),
        _codec(ReferenceCodec, "healthy"),
        _codec(Windowed, "windowed"),
        _codec(Forgetful, "forgetful"),
        _codec(Delaying, "delaying"),
        _codec(Entangled, "entangled"),
        _codec(StreamingCodec, "healthy_streaming", STREAMING),
        _codec(Regrouping, "regrouping", STREAMING),
    ]
