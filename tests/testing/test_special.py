"""Special models do what they are made for."""

from pathlib import Path

import numpy as np
import pytest
import torch

from megatalker.checkpoint import Checkpoint
from megatalker.interfaces import DecodeStep, LoadContext, StreamRequest
from megatalker.sampling import SamplingParams
from megatalker.testing.random_checkpoint import write_checkpoint
from megatalker.testing.recipe import TINY
from megatalker.testing.special import OpenModel, extreme
from megatalker_backends.reference.decoder import ReferenceDecoder, ReferenceSettings


def load(checkpoint: Checkpoint) -> ReferenceDecoder:
    return ReferenceDecoder(checkpoint, LoadContext(torch.device("cpu"), torch.float32, ReferenceSettings()))


def test_the_logits_of_an_open_model_are_those_that_the_caller_chose(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(write_checkpoint(tmp_path, TINY, OpenModel.change))
    model, decoder = OpenModel(lambda name: checkpoint.tensor(name).numpy()), load(checkpoint)
    first, second = model.row({3: 9.0, 5: 9.0, OpenModel.END: -2.5}, special=4.0), model.row({0: 1.0}, others=0.5)
    (stream,) = decoder.prefill([StreamRequest(torch.from_numpy(np.stack([second, first])), SamplingParams())])
    for row, fed, codes in ((first, None, (3, *range(15))), (second, (3, *range(15)), (0,) * 16)):
        (frame,) = decoder.decode([DecodeStep(stream, torch.from_numpy(second), codes)], return_logits=True)
        assert frame.logits is not None
        assert frame.logits.talker.numpy() == pytest.approx(model.talker_logits(row, fed), abs=1e-4)
        for codebook in range(1, 16):
            expected = model.predictor_logits(codebook, codes[codebook - 1])
            assert frame.logits.predictor[codebook - 1].numpy() == pytest.approx(expected, abs=1e-4)
    logits = model.talker_logits(first, None)
    assert logits[[3, 5, OpenModel.END, 4, 127, 128]] == pytest.approx([9, 9, -2.5, -30, -30, 4], abs=1e-3)
    assert logits[3] == logits[5]


def test_activations_of_the_extreme_model_are_as_large_as_epsilon_before_every_norm(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(write_checkpoint(tmp_path, TINY, extreme))
    decoder = load(checkpoint)
    sizes: dict[str, float] = {}
    for name, module in decoder._talker.named_modules():
        if name.endswith("norm"):
            module.register_forward_hook(
                lambda _, inputs, __, name=name: sizes.update({name: float(inputs[0].float().square().mean())})
            )
    rows = checkpoint.tensor("talker.model.codec_embedding.weight")[:20]
    (stream,) = decoder.prefill([StreamRequest(rows, SamplingParams(min_new_tokens=9))])
    decoder.decode([DecodeStep(stream, rows[0])])
    assert len(sizes) >= 4 * 5 + 2
    assert {name: size for name, size in sizes.items() if not 2e-8 < size < 2e-5} == {}
