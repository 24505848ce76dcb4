"""How close the megakernel's arithmetic is to float32, on the CPU's specification and on the GPU's kernel."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from decoder_voices import GREEDY, VoiceRequest, codes_of, logits_of, say, voice
from megakernel_helpers import CPU, DEVICES, megakernel, within
from megatalker.checkpoint import Checkpoint
from megatalker.interfaces import Frame, LoadContext
from megatalker.plugins.checked import CheckedTalker
from megatalker.sampling import SamplingParams
from megatalker.sampling.numpy_sampler import gumbel_noise
from megatalker_backends.reference.decoder import ReferenceDecoder, ReferenceSettings

FRAMES = 16
ERROR_RATIO = 1.5
NEAR = 10
"""Two ids are nearly tied when the oracle holds them this many root mean square errors apart, or less."""
CHECKPOINTS = ["tiny_custom_voice", "tiny_1b7", pytest.param("demo", marks=pytest.mark.slow)]
SAMPLINGS = {
    "greedy": GREEDY,
    # Without filters and penalty: how far two ids are apart can be read off their logits and the noise.
    "seeded": SamplingParams(
        seed=7, top_k=None, predictor_top_k=None, repetition_penalty=1.0, min_new_tokens=1000, predictor_temperature=0.7
    ),
}


@dataclass(frozen=True)
class Exact:
    """Results of the official modules in float32, and their error in bfloat16 along the same codes."""

    voice: VoiceRequest
    frames: list[Frame]
    official_error: Tensor

    @property
    def codes(self) -> list[tuple[int, ...]]:
        assert all(frame.codes is not None for frame in self.frames)
        return [frame.codes for frame in self.frames if frame.codes is not None]

    def error(self, frames: Sequence[Frame]) -> Tensor:
        return logits_of(frames) - logits_of(self.frames)


Oracle = Callable[[str, str], Exact]


@pytest.fixture(scope="module")
def oracle(request: pytest.FixtureRequest) -> Oracle:
    """Returns exact results by the names of a checkpoint and a sampling."""

    @cache
    def decoder(name: str, dtype: torch.dtype) -> CheckedTalker:
        checkpoint = request.getfixturevalue(name)
        context = LoadContext(CPU, dtype, ReferenceSettings())
        return CheckedTalker(ReferenceDecoder(checkpoint, context), checkpoint.config)

    @cache
    def ask(name: str, sampling: str) -> Exact:
        each = voice(request.getfixturevalue(name), 4, 21, FRAMES, SAMPLINGS[sampling])
        exact = Exact(each, say(decoder(name, torch.float32), each), torch.empty(0))
        official = say(decoder(name, torch.bfloat16), each, exact.codes)
        return Exact(each, exact.frames, exact.error(official))

    return ask


def rms(error: Tensor) -> float:
    return float(error.double().square().mean().sqrt())


@pytest.mark.parametrize("name", CHECKPOINTS)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.slow
def test_errors_are_bounded_by_those_of_the_official_modules_in_bfloat16(
    request: pytest.FixtureRequest, oracle: Oracle, name: str, device: str
) -> None:
    exact = oracle(name, "greedy")
    decoder = megakernel(request.getfixturevalue(name), device)
    ours, theirs = rms(exact.error(say(decoder, exact.voice, exact.codes))), rms(exact.official_error)
    print(f"{name} on {device}: logit error {ours:.3g}, reference in bfloat16 {theirs:.3g}")  # noqa: T201 - figures
    assert 0 < ours <= ERROR_RATIO * theirs


@pytest.mark.parametrize("name", CHECKPOINTS)
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("device", DEVICES)
def test_speech_parts_from_the_oracle_at_a_near_tie_only(
    request: pytest.FixtureRequest, oracle: Oracle, name: str, sampling: str, device: str
) -> None:
    exact = oracle(name, sampling)
    found = codes_of(say(megakernel(request.getfixturevalue(name), device), exact.voice))
    parting = first_difference(found, exact.codes)
    if parting is None:
        return
    frame, codebook, ours = parting
    gap = distance(exact.frames[frame], SAMPLINGS[sampling], frame, codebook, ours)
    tie = NEAR * rms(exact.official_error)
    print(f"{name} on {device}, {sampling}: parts at frame {frame}, code {codebook}: {gap:.3g} of {tie:.3g}")  # noqa: T201
    assert 0 <= gap <= tie


def first_difference(
    found: Sequence[tuple[int, ...] | None], expected: Sequence[tuple[int, ...]]
) -> tuple[int, int, int] | None:
    """Frame, codebook, and what was found there."""
    for frame, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert ours is not None
        for codebook, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            if one != other:
                return frame, codebook, one
    return None


def distance(exact: Frame, sampling: SamplingParams, frame: int, codebook: int, code: int) -> float:
    """Return how far the logit of ``code`` lies below that of the oracle's own choice."""
    assert exact.logits is not None
    assert exact.codes is not None
    row = (exact.logits.predictor[codebook - 1] if codebook else exact.logits.talker).numpy().astype(np.float64)
    if sampling.do_sample:
        temperature = sampling.predictor_temperature if codebook else sampling.temperature
        row = row + temperature * gumbel_noise(sampling.seed, codebook, frame, row.size)
    return float(row[exact.codes[codebook]] - row[code])


def test_a_wrong_arithmetic_would_be_seen(oracle: Oracle, tiny_1b7: Checkpoint) -> None:
    """The bound is not so wide that a dropped norm weight, or one layer's cache shifted by a place, would pass."""
    exact = oracle("tiny_1b7", "greedy")
    decoder = megakernel(tiny_1b7)
    model = within(decoder)._model
    model.talker_norms[: model.shape.talker.hidden] *= 1.05
    assert rms(exact.error(say(decoder, exact.voice, exact.codes))) > ERROR_RATIO * rms(exact.official_error)
