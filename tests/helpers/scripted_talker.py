"""A talker decoder that does as it is told, right or wrong: what stands in the shell in the shell's own tests."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from megatalker.checkpoint.config import ModelConfig
from megatalker.interfaces import (
    DecodeStep,
    Frame,
    FrameLogits,
    StreamHandle,
    StreamRequest,
    TalkerCapabilities,
    TalkerDecoder,
)
from megatalker.plugins.checked import CheckedTalker

ABLE = TalkerCapabilities(
    frozenset({"cpu"}), frozenset({torch.float32}), max_streams=2, max_positions=5, forced_codes=True
)


class Scripted(TalkerDecoder):
    """Emits zeros, or what it is forced to, or end-of-speech; notes every call that reaches it."""

    def __init__(self, config: ModelConfig, capabilities: TalkerCapabilities = ABLE) -> None:
        self.config, self.stated = config, capabilities
        self.calls: list[str] = []
        self.ends = False
        self.handles: Any = None
        """Value that ``prefill`` returns instead of new handles."""
        self.answer: Callable[[list[Frame]], Any] = lambda frames: frames
        """Makes what decode returns of the right frames."""
        self._issued = 0

    @property
    def capabilities(self) -> TalkerCapabilities:
        return self.stated

    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        self.calls.append("prefill")
        if self.handles is not None:
            return self.handles
        self._issued += len(requests)
        return [StreamHandle(self._issued - index) for index in reversed(range(len(requests)))]

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> Any:
        self.calls.append("decode")
        return self.answer([self._frame(step, return_logits) for step in steps])

    def _frame(self, step: DecodeStep, return_logits: bool) -> Frame:
        config = self.config
        codes = None if self.ends else tuple(step.forced or [0] * config.num_code_groups)
        if codes is not None and codes[0] == config.codec_eos_id:
            codes = None
        rest = torch.zeros(0 if codes is None else config.num_code_groups - 1, config.predictor.vocab_size)
        logits = FrameLogits(torch.zeros(config.talker.vocab_size), rest) if return_logits else None
        return Frame(step.stream, codes, logits)

    def release(self, stream: StreamHandle) -> None:
        self.calls.append("release")

    def warmup(self) -> None:
        self.calls.append("warmup")

    def close(self) -> None:
        self.calls.append("close")


def begin(talker: CheckedTalker, hidden: int, rows: int = 2) -> DecodeStep:
    (stream,) = talker.prefill([StreamRequest(torch.zeros(rows, hidden))])
    return DecodeStep(stream, torch.zeros(hidden))
