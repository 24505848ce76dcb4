"""How a deliberate mistake is written down: a backend's class, and the tests of the suite that must catch it."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from megatalker.checkpoint import Checkpoint
from megatalker.interfaces import (
    Codec,
    CodecBackend,
    CodecCapabilities,
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
from megatalker_backends.compiled.decoder import CompiledDecoder
from megatalker_backends.compiled.spec import TALKER
from megatalker_backends.reference.codec import ReferenceCodec
from megatalker_backends.reference.spec import CODEC
from megatalker_backends.streaming.codec import CAPABILITIES, StreamingCodec
from megatalker_backends.streaming.spec import CODEC as STREAMING
from megatalker_backends.streaming.steps import FixedSteps

Row = tuple[str, str, str | Sequence[str], Any] | tuple[str, str, str | Sequence[str], Any, Sequence[str]]
"""Name, summary, tests that catch it, the changed attribute, and options of the run that shows it, if any."""
BackendT = TypeVar("BackendT", bound=type[TalkerDecoder] | type[Codec])


class Decoder(CompiledDecoder):
    """Healthy, and loaded without a compiler, so that each of its broken children is ready at once."""

    def warmup(self) -> None:
        pass


class WideDecoder(Decoder):
    """Healthy, with 64 streams."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        settings = context.settings.model_copy(update={"max_streams": 64, "max_positions": 1024})
        super().__init__(checkpoint, replace(context, settings=settings))


class VeryWideDecoder(Decoder):
    """Healthy, with 130 streams."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        settings = context.settings.model_copy(update={"max_streams": 130, "max_positions": 512})
        super().__init__(checkpoint, replace(context, settings=settings))


class EightBitDecoder(Decoder):
    """Healthy, with weights of 8 bits."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        settings = context.settings.model_copy(update={"weights": "int8"})
        super().__init__(checkpoint, replace(context, settings=settings))


class FourBitDecoder(Decoder):
    """Healthy, with weights of 4 bits."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        settings = context.settings.model_copy(update={"weights": "int4"})
        super().__init__(checkpoint, replace(context, settings=settings))


class Quick(StreamingCodec):
    """Healthy, in steps of several frames and states: schedules are played in a third of the time."""

    decoder: Any

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, context)
        steps = self._runner._steps  # type: ignore[attr-defined]
        self.decoder = steps._decode.__self__
        self._runner._steps = FixedSteps(self.decoder, steps.shape, lambda work: work)  # type: ignore[attr-defined]

    def warmup(self) -> None:
        """Nothing is compiled, so there is nothing to run before the first call."""

    @property
    def capabilities(self) -> CodecCapabilities:
        return CAPABILITIES


class RoundedProducts(TorchFunctionMode):
    """Rounds what is multiplied to numbers of fewer bits; sums stay as they are."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.nn.functional.linear, torch.addmm):
            operands = slice(0, 2) if func is torch.nn.functional.linear else slice(1, 3)
            args = list(args)
            args[operands] = [operand.to(self._dtype).float() for operand in args[operands]]
        return func(*args, **kwargs or {})


class HalfCodec(Quick):
    """Healthy, multiplying float16 numbers."""

    rounded = torch.float16

    @property
    def capabilities(self) -> CodecCapabilities:
        return replace(CAPABILITIES, product_bits=16)

    def decode(self, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[Tensor]:
        with RoundedProducts(self.rounded):
            return super().decode(states, codes)


INVARIANT = {"batch_invariant": True, "exact_continuation": True}


class InvariantDecoder(Decoder):
    """Healthy, one stream after another, so that no bit depends on the others; frames of a prefill are decoded."""

    @property
    def capabilities(self) -> TalkerCapabilities:
        return replace(super().capabilities, **INVARIANT)

    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        handles = []
        for request in requests:
            codes, text = request.codes, request.text
            if codes is None or text is None:
                handles += super().prefill([request])
                continue
            rows = len(request.embeds) - len(codes)
            handles += super().prefill([StreamRequest(request.embeds[:rows], request.sampling)])
            for frame, row in zip(codes.tolist(), text, strict=True):
                self.decode([DecodeStep(handles[-1], row, forced=frame)])
        return handles

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> list[Frame]:
        return [
            frame
            for step in steps
            for frame in super(InvariantDecoder, self).decode([step], return_logits=return_logits)()
        ]


def _backend(spec: TalkerBackend | CodecBackend, name: str, load: type) -> TalkerBackend | CodecBackend:
    return replace(spec, name=name, summary=" ".join((load.__doc__ or "").split()), load=load, rank=-100)


HEALTHY: dict[type, TalkerBackend | CodecBackend] = {
    TalkerDecoder: _backend(TALKER, "healthy", Decoder),
    WideDecoder: _backend(TALKER, "healthy_wide", WideDecoder),
    VeryWideDecoder: _backend(TALKER, "healthy_very_wide", VeryWideDecoder),
    EightBitDecoder: _backend(TALKER, "healthy_8_bits", EightBitDecoder),
    FourBitDecoder: _backend(TALKER, "healthy_4_bits", FourBitDecoder),
    InvariantDecoder: _backend(
        replace(TALKER, capabilities=replace(TALKER.capabilities, **INVARIANT)),
        "healthy_invariant",
        InvariantDecoder,
    ),
    ReferenceCodec: _backend(CODEC, "healthy", ReferenceCodec),
    StreamingCodec: _backend(STREAMING, "healthy_streaming", StreamingCodec),
    Quick: _backend(STREAMING, "healthy_quick", Quick),
    HalfCodec: _backend(STREAMING, "healthy_half", HalfCodec),
}
"""Backends without a mistake, by the class that mistakes are made in."""


@dataclass(frozen=True)
class Mistake:
    """One broken backend."""

    backend: TalkerBackend | CodecBackend
    healthy: TalkerBackend | CodecBackend
    """The same without the mistake."""
    caught_by: frozenset[str]
    """Names of tests: each of them must fail."""
    options: tuple[str, ...]
    """Options of the run that shows it, such as ``--dtype=bfloat16``."""


CATALOGUE: list[Mistake] = []
"""Filled while the modules of this package are imported."""


def mistake(*tests: str, options: Iterable[str] = ()) -> Callable[[BackendT], BackendT]:
    """Enter a class as a backend that these tests catch; its docstring says what is wrong with it."""

    def enter(broken: BackendT) -> BackendT:
        name = re.sub(r"(?<!^)(?=[A-Z]|(?<![0-9])[0-9])", "_", broken.__name__).lower()
        healthy = next(HEALTHY[base] for base in broken.__mro__ if base in HEALTHY)
        CATALOGUE.append(Mistake(_backend(healthy, name, broken), healthy, frozenset(tests), tuple(options)))
        return broken

    return enter


def enter_all(base: type, attribute: str, *rows: Row) -> None:
    """Enter children of ``base`` that differ from it in one method or attribute."""
    for name, summary, tests, change, *options in rows:
        broken = type(name, (base,), {attribute: change, "__doc__": summary, "__module__": base.__module__})
        mistake(*([tests] if isinstance(tests, str) else tests), options=chain.from_iterable(options))(broken)
