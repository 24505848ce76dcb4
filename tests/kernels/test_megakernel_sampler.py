"""The kernel's choices are those of the sampling contract, bit for bit: its specification, and on a GPU itself."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoder_voices import say_together, voice
from megakernel_helpers import CPU, DEVICES, megakernel
from megatalker.checkpoint import Checkpoint
from megatalker.sampling import CodeVocabulary, SamplerRows, SamplingParams
from megatalker.sampling.numpy_sampler import choose
from megatalker_backends.megakernel.decoder import MegakernelDecoder
from megatalker_backends.megakernel.inputs import kernel_sampling
from megatalker_backends.megakernel.settings import MegakernelSettings, choose_shape
from megatalker_backends.megakernel.weights import pack_checkpoint
from megatalker_kernels.schedule import Launch, Row
from megatalker_kernels.spec.frame import Specification
from megatalker_kernels.workspace import Assignment, Workspace

TEMPERATURES = st.sampled_from([1e-6, 0.2, 0.9, 1.0, 1.7, 50.0, 1e6])
TOP_K = st.sampled_from([None, 1, 2, 7, 50, 64, 65, 100, 1000, 2**31 - 1])
TOP_P = st.sampled_from([1.0, 1.0 - 2**-53, 0.95, 0.8, 0.3, 1e-3, 1e-300])
PARAMS = st.builds(
    SamplingParams,
    do_sample=st.booleans(),
    temperature=TEMPERATURES,
    top_k=TOP_K,
    top_p=TOP_P,
    repetition_penalty=st.sampled_from([1.0, 1.05, 1.5, 0.7]),
    min_new_tokens=st.integers(0, 4),
    predictor_do_sample=st.booleans(),
    predictor_temperature=TEMPERATURES,
    predictor_top_k=TOP_K,
    predictor_top_p=TOP_P,
    seed=st.integers(0, 2**64 - 1),
)
STEPS = st.sampled_from([0.0, 1e-3, 0.5, 4.0])
"""Logits are multiples of this: the larger, the more of them are equal. 0: as they come."""


class SamplingDesk:
    """The specification's sampler on logits of our own."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        shape = choose_shape(checkpoint.config, MegakernelSettings(interpret=True, blocks=4, max_positions=64), CPU)
        self.space = Workspace(shape, 2, 1, CPU)
        self.vocabulary = CodeVocabulary.from_config(checkpoint.config)
        self._specification = Specification(pack_checkpoint(checkpoint, shape, CPU), self.space)

    def fill(self, seed: int, scale: float, step: float) -> None:
        noise = torch.Generator().manual_seed(seed)
        for logits in (self.space.pending, self.space.predictor_logits):
            logits.normal_(std=scale, generator=noise)
            if step:
                logits.div_(step).round_().mul_(step)

    def codes(self, params: SamplingParams, frame: int, history: tuple[int, ...]) -> list[int]:
        self.space.assign([Assignment(1, kernel_sampling(params), history)])
        return self._specification.choices(Launch("decode", (Row(1, 0, frame),)))[0]


@pytest.fixture(scope="module")
def desk(tiny_1b7: Checkpoint) -> SamplingDesk:
    return SamplingDesk(tiny_1b7)


@settings(deadline=None, max_examples=200, derandomize=True)
@given(
    params=PARAMS,
    seed=st.integers(0, 2**32),
    scale=st.sampled_from([0.1, 3.0, 30.0]),
    step=STEPS,
    frame=st.integers(0, 2**31 - 1) | st.integers(0, 5),
    history=st.lists(st.integers(0, 1151), max_size=40).map(tuple),
)
def test_choices_are_those_of_the_contract(
    desk: SamplingDesk,
    params: SamplingParams,
    seed: int,
    scale: float,
    step: float,
    frame: int,
    history: tuple[int, ...],
) -> None:
    desk.fill(seed, scale, step)
    rows = [desk.space.pending[1], *desk.space.predictor_logits[0]]
    expected = [
        choose(row.numpy(), params, codebook=codebook, frame=frame, history=history, vocabulary=desk.vocabulary)
        for codebook, row in enumerate(rows)
    ]
    assert desk.codes(params, frame, history) == expected


@pytest.mark.parametrize("seed", range(4))
def test_choices_are_those_of_the_torch_sampler(desk: SamplingDesk, seed: int) -> None:
    params = SamplingParams(seed=seed, top_p=0.9, predictor_top_p=0.6, top_k=None if seed % 2 else 30)
    desk.fill(seed, 2.5, 0.25)
    history = (5, 5, 9, 600, 31, 32, 63)
    sampler, row = SamplerRows(1, desk.vocabulary, CPU), torch.tensor([0])
    sampler.assign(0, params, history)
    expected = [int(sampler.choose_first(row, desk.space.pending[1:]))]
    for codebook, logits in enumerate(desk.space.predictor_logits[0], start=1):
        expected.append(int(sampler.choose_rest(row, logits[None], codebook)))
    assert desk.codes(params, len(history), history) == expected


def test_the_lowest_of_equal_ids_wins(desk: SamplingDesk) -> None:
    desk.space.pending.zero_()
    desk.space.predictor_logits.zero_()
    desk.space.pending[1, [7, 3]] = 1.0
    desk.space.predictor_logits[0, :, [9, 4]] = 1.0
    assert desk.codes(SamplingParams(do_sample=False, predictor_do_sample=False), 0, ()) == [3] + [4] * 15


MANNERS = {
    "official": SamplingParams(seed=1),
    "greedy": SamplingParams(do_sample=False, predictor_do_sample=False),
    "top-p": SamplingParams(seed=2, top_k=None, top_p=0.8, predictor_top_k=None, predictor_top_p=0.5),
    "many": SamplingParams(seed=2**64 - 1, top_k=300, top_p=0.95, predictor_top_k=65, repetition_penalty=1.4),
    "hot": SamplingParams(seed=3, temperature=50, top_k=None, predictor_temperature=50, predictor_top_k=None),
}


@pytest.fixture(scope="module", params=DEVICES)
def decoder(request: pytest.FixtureRequest, tiny_1b7: Checkpoint) -> Iterator[MegakernelDecoder]:
    decoder = megakernel(tiny_1b7, request.param)
    yield decoder
    decoder.close()


def test_codes_of_a_frame_are_chosen_from_its_logits(decoder: MegakernelDecoder, tiny_1b7: Checkpoint) -> None:
    """The whole way: seen ids, frame counter and noise of streams that share launches and differ in everything."""
    vocabulary = CodeVocabulary.from_config(tiny_1b7.config)
    voices = [
        voice(tiny_1b7, index, 4 + index, 8, replace(params, min_new_tokens=index + 5))
        for index, params in enumerate(MANNERS.values())
    ]
    for each, frames in zip(voices, say_together(decoder, voices), strict=True):
        history: list[int] = []
        for index, frame in enumerate(frames):
            assert frame.codes is not None
            assert frame.logits is not None
            rows = [frame.logits.talker.cpu(), *frame.logits.predictor.cpu()]
            expected = tuple(
                choose(
                    row.numpy(),
                    each.request.sampling,
                    codebook=codebook,
                    frame=index,
                    history=history,
                    vocabulary=vocabulary,
                )
                for codebook, row in enumerate(rows)
            )
            assert frame.codes == expected
            history.append(frame.codes[0])


def test_parameters_reach_the_kernel_as_they_are() -> None:
    found = kernel_sampling(SamplingParams(seed=2**40 + 3, top_k=None, predictor_top_k=9, top_p=0.25, min_new_tokens=6))
    assert (found.key[0], found.key[1], found.min_frames) == (3, 2**8, 6)
    assert (found.talker.top_k, found.talker.dropped, found.talker.do_sample) == (2**31 - 1, 0.75, 1)
    assert (found.predictor.top_k, found.predictor.dropped) == (9, -1.0)
    assert np.float32(0.9) == found.talker.temperature
    assert np.float32(1.05) == found.penalty
