"""Decisions that tests share: how codes are chosen, and whether a backend has a capability."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from megatalker.interfaces import CodecCapabilities, TalkerCapabilities
from megatalker.sampling import SamplingParams
from megatalker_conformance.oracle import Oracle
from megatalker_conformance.precision import Divergence, first_divergence
from megatalker_conformance.promises import PARITY, Promise, broken
from megatalker_conformance.streams import GREEDY, PLAIN_GREEDY, Codes, StreamCase
from megatalker_conformance.ties import Margin, sixteen_bit_margin

_ENDLESS = 10_000


def require(capabilities: TalkerCapabilities | CodecCapabilities, name: str) -> None:
    """Skip the test unless the loaded backend says it can do this."""
    if not getattr(capabilities, name):
        pytest.skip(f"the backend's capabilities do not list {name}")


class Judge:
    """Decides whether a decoder's codes are right: equal to the oracle's in float32, and in a 16-bit type parting from
    them at a near-tie only.

    Args:
        oracle: float32 ``reference``.
        dtype: what the decoder under test computes in.
        capabilities: of that decoder.
        eos_id: code 0 of an ended stream.
    """

    def __init__(self, oracle: Oracle, dtype: torch.dtype, capabilities: TalkerCapabilities, eos_id: int) -> None:
        self._oracle = oracle
        self._dtype = dtype
        self._seeded = capabilities.seeded_sampling
        self._eos_id = eos_id

    @property
    def greedy(self) -> SamplingParams:
        """Greedy decoding that never ends, on any checkpoint; with the repetition penalty where it can be compared."""
        return replace(GREEDY if self._dtype == torch.float32 else PLAIN_GREEDY, min_new_tokens=_ENDLESS)

    @property
    def manner(self) -> SamplingParams:
        """Sampling for tests of other things: as varied as this run can be compared in."""
        if self._dtype == torch.float32 and self._seeded:
            return SamplingParams(seed=1, min_new_tokens=_ENDLESS)
        return self.greedy

    def __call__(self, case: StreamCase, codes: Sequence[Codes], frames: int, promise: Promise = PARITY) -> None:
        """Fail unless ``codes`` are those of the first ``frames`` frames of ``case``."""
        expected = self._oracle.codes(case, frames)
        divergence = first_divergence(codes, expected)
        if divergence is None:
            return
        found = f"parts at {divergence}"
        if self._dtype != torch.float32:
            margin = self.gap(case, frames, divergence)
            if margin.near:
                return
            found += f", {margin}"
        at = slice(divergence.frame, divergence.frame + 1)
        broken(
            promise,
            shown_by=f"{case.name}, {frames} frames, {case.sampling}",
            expected=f"frame {divergence.frame}: {expected[at] or 'the end'}",
            found=f"{found}: {list(codes[at]) or 'the end'}",
        )

    def gap(self, case: StreamCase, frames: int, divergence: Divergence) -> Margin:
        """Return how much the oracle prefers its code in a 16-bit run, and how much at most in a near-tie."""
        return sixteen_bit_margin(self._oracle, case, frames, divergence, self._dtype, self._eos_id)
