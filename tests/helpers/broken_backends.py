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
from megatalker.errors import InvalidRequestError
from megatalker.interfaces import (
    Availability,
    Capabilities,
    Codec,
    CodecBackend,
    CodecState,
    DecodeStep,
    Frame,
    LoadContext,
    StreamHandle,
    StreamRequest,
    TalkerBackend,
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


class OffByOneFrame(Decoder):
    """Each frame gets the text row of the frame before."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, context)
        self._late: dict[StreamHandle, Tensor] = {}

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> list[Frame]:
        late = [replace(step, text=self._late.get(step.stream, step.text)) for step in steps]
        frames = super().decode(late, return_logits=return_logits)
        self._late |= {step.stream: step.text for step in steps}
        return frames


class Leaking(Decoder):
    """A released stream leaves something of its prompt to the next one."""

    _residue: Tensor | float = 0.0

    def prefill(self, request: StreamRequest) -> StreamHandle:
        handle = super().prefill(replace(request, embeds=request.embeds + self._residue))
        self._last = request.embeds[-1] * 0.3
        return handle

    def release(self, stream: StreamHandle) -> None:
        super().release(stream)
        self._residue = self._last


class Mixing(Decoder):
    """Streams of one call share their text rows."""

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> list[Frame]:
        if len(steps) > 1 and len({step.text.shape for step in steps}) == 1:
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

    def prefill(self, request: StreamRequest) -> StreamHandle:
        return super().prefill(replace(request, sampling=replace(request.sampling, repetition_penalty=1.0)))


class Seedless(Decoder):
    """Ignores the seed."""

    def prefill(self, request: StreamRequest) -> StreamHandle:
        return super().prefill(replace(request, sampling=replace(request.sampling, seed=0)))


class Buffering(Decoder):
    """Computes eight frames at a time and hands them out one by one."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, context)
        self._buffer: defaultdict[StreamHandle, list[Frame]] = defaultdict(list)

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> list[Frame]:
        if any(step.forced for step in steps) or return_logits:
            return super().decode(steps, return_logits=return_logits)
        for step in steps:
            if not self._buffer[step.stream]:
                self._buffer[step.stream] = [frame for _ in range(8) for frame in super(Buffering, self).decode([step])]
        return [self._buffer[step.stream].pop(0) for step in steps]


class Hasty(Decoder):
    """Begins a frame with the rows of the step that it began before."""

    _rows: Tensor | None = None

    def begin(self, steps: Sequence[DecodeStep]) -> Callable[[], list[Frame]]:
        rows = torch.stack([step.text for step in steps])
        known = rows if self._rows is None or self._rows.shape != rows.shape else self._rows
        self._rows = rows
        return lambda: self.decode([replace(step, text=row) for step, row in zip(steps, known, strict=True)])


class Fallback(TalkerDecoder):
    """Its kernel does not work here, so another decoder quietly does everything."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        self._inner = Decoder(checkpoint, context)

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    def prefill(self, request: StreamRequest) -> StreamHandle:
        return self._inner.prefill(request)

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> list[Frame]:
        return self._inner.decode(steps, return_logits=return_logits)

    def release(self, stream: StreamHandle) -> None:
        self._inner.release(stream)


class WrongDtype(Decoder):
    """Computes in bfloat16, whatever was asked for."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, replace(context, dtype=torch.bfloat16))


class Hoarding(Decoder):
    """Forgets a released stream, but keeps its row."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, context)
        self._gone: set[StreamHandle] = set()

    def release(self, stream: StreamHandle) -> None:
        if stream in self._gone:
            raise InvalidRequestError(f"stream {stream} was released")
        self._gone.add(stream)


class Credulous(Decoder):
    """Makes something of any prompt."""

    def prefill(self, request: StreamRequest) -> StreamHandle:
        return super().prefill(replace(request, embeds=request.embeds.nan_to_num(0.0, 0.0, 0.0)))


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
        return EntangledState(fresh.codec, fresh.codes)


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
        _talker(Credulous, "credulous"),
        _talker(NotHere, "not_here", probe=lambda *_: Availability("it needs a device of another kind")),
        _codec(ReferenceCodec, "healthy"),
        _codec(Windowed, "windowed"),
        _codec(Forgetful, "forgetful"),
        _codec(Delaying, "delaying"),
        _codec(Entangled, "entangled"),
        _codec(StreamingCodec, "healthy_streaming", STREAMING),
        _codec(Regrouping, "regrouping", STREAMING),
    ]
