"""``megatalker bench codec-error`` on the CPU, with the kernels' own sources; GPU results: ``benchmarks/results``."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from codec_emulator import CodecEmulator
from emulation import needs_compiler
from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.plugins.graphs import run_directly
from megatalker_backends.streaming.fused.decoder import FusedDecoder
from megatalker_backends.streaming.fused.runner import FusedRunner
from megatalker_backends.streaming.fused.weights import FusedWeights
from megatalker_backends.streaming.model import StreamingDecoder
from megatalker_backends.streaming.weights import Weights
from megatalker_benchmarks import codec_error
from megatalker_benchmarks.codec_error import by_layer, codes_of, draw, errors, telephone
from megatalker_benchmarks.codec_frame import official_samples
from megatalker_kernels.codec.numbers import Numbers

CPU = torch.device("cpu")
FRAMES = 12
WORST_DB = 45.0


def tone(amplitude: float, seconds: float = 2.0) -> Tensor:
    return amplitude * torch.sin(torch.arange(int(seconds * SAMPLE_RATE)) * 0.2)


def test_errors_are_those_of_the_whole_and_of_the_worst_second_that_is_heard() -> None:
    loud, noise = tone(0.5), tone(0.005, 1.0)
    second_half = torch.cat((torch.zeros(SAMPLE_RATE), noise))
    found = errors(loud, loud + second_half)
    assert found["worst_second_snr_db"] == 40.0
    assert found["snr_db"] == 43.0
    assert found["max_abs_error"] == pytest.approx(0.005, rel=1e-3)
    quiet = torch.cat((loud, tone(0.001, 1.0)))
    assert errors(quiet, quiet + tone(0.0005, 3.0))["worst_second_snr_db"] == 60.0, "a silent second counts as none"
    assert errors(loud, loud)["snr_db"] == float("inf")


def test_a_telephone_hides_what_mulaw_is_louder_than() -> None:
    speech = tone(0.3) + tone(0.1, 2.0).roll(7).square()
    same, worse = (telephone(speech, speech + noise) for noise in (0.0, tone(0.03).flip(0)))
    assert same["mulaw_snr_db"] == same["fast_mulaw_snr_db"]
    assert 30 < same["mulaw_snr_db"] < 45
    assert worse["fast_mulaw_snr_db"] < same["mulaw_snr_db"] - 10


@pytest.mark.slow
@needs_compiler
def test_fast_is_closer_to_the_truth_than_the_official_decoder_in_float16(demo: Checkpoint, tmp_path: Path) -> None:
    codes = codes_of(demo, "The small boats sail home.", FRAMES + 6)[6:]
    config = demo.codec_config
    decoder, emulator = StreamingDecoder(config, Weights(demo.codec_tensor, "decoder")), CodecEmulator(Numbers.HALF)
    weights = FusedWeights(decoder, CPU, Numbers.HALF, warpgroups=True)
    sizes = {"groups": config.num_quantizers, "max_streams": 1, "max_frames": 8}
    runner = FusedRunner(FusedDecoder(weights, config, emulator), CPU, **sizes, prepare=run_directly)
    memory, chunks = runner.open(), []
    with torch.inference_mode():
        for start, end in pairwise((0, 1, 4, FRAMES)):
            samples, (after,) = runner.run(codes[None, start:end], [memory])
            memory.copy_(after)
            chunks.append(samples[0].clone())
    truth, fast = official_samples(demo, codes, CPU, torch.float32), torch.cat(chunks)
    ours, theirs = (errors(truth, found) for found in (fast, official_samples(demo, codes, CPU, torch.float16)))
    assert WORST_DB < theirs["snr_db"] < ours["snr_db"] < 80, "above it would be another arithmetic"
    assert ours["max_abs_error"] < theirs["max_abs_error"]
    draw(truth, fast, tmp_path / "both.png")
    assert (tmp_path / "both.png").stat().st_size > 10_000


@pytest.mark.slow
@needs_compiler
def test_every_product_of_the_decoder_has_its_error(
    tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codec_error, "CodecKernels", lambda _device, numbers: CodecEmulator(numbers))
    found = by_layer(tiny_custom_voice, codes_of(tiny_custom_voice, None, 1), CPU)
    config = tiny_custom_voice.codec_config
    assert len(found) == len(set(found))
    assert (next(iter(found)), next(reversed(found))) == ("pre", "last")
    assert sum(name.startswith("layers.") for name in found) == 4 * config.num_layers
    assert all(20 < ratio < 100 for ratio in found.values()), found
