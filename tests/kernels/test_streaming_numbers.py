"""Number formats of the streaming codec's kernels: values that float16 cannot hold, and the error of rounding to it."""

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from codec_emulator import CodecEmulator
from emulation import needs_compiler
from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import CodecConfig
from megatalker.errors import SettingsError
from megatalker.interfaces import LoadContext
from megatalker_backends.streaming.codec import StreamingCodec
from megatalker_backends.streaming.fused import choice, trial
from megatalker_backends.streaming.fused.runner import FusedRunner
from megatalker_backends.streaming.model import StreamingDecoder
from megatalker_backends.streaming.settings import StreamingSettings
from megatalker_backends.streaming.weights import Weights
from megatalker_kernels.codec.numbers import Numbers


@pytest.fixture
def loud(tiny_custom_voice: Checkpoint) -> Callable[[str, float], StreamingDecoder]:
    """Returns a decoder one of whose weights is multiplied by a factor."""

    def make(name: str, factor: float) -> StreamingDecoder:
        decoder = StreamingDecoder(tiny_custom_voice.codec_config, Weights(tiny_custom_voice.codec_tensor, "decoder"))
        decoder.get_buffer(name).mul_(factor)
        return decoder

    return make


class OnCpu:
    """Stands in for the compiled kernels."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.compiled: list[Numbers] = []
        monkeypatch.setattr(choice, "CodecKernels", self._kernels)
        for size in ("STREAMS", "FRAMES", "STEPS"):
            monkeypatch.setattr(trial, size, 1)

    def _kernels(self, _device: torch.device, numbers: Numbers) -> CodecEmulator:
        self.compiled.append(numbers)
        return CodecEmulator(numbers)


def _codes(config: CodecConfig) -> Tensor:
    """One frame."""
    shape = (1, 1, config.num_quantizers)
    return torch.randint(config.codebook_size, shape, generator=torch.Generator().manual_seed(1))


@torch.inference_mode()
def _run(runner: FusedRunner, config: CodecConfig) -> Tensor:
    return runner.run(_codes(config), [runner.open()])[0]


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("weight", "factor", "complaint"),
    [
        ("transformer.into", 1e8, "its weights reach"),
        ("codebooks.table", 1e5, "random codes give activations of"),
    ],
    ids=["weights", "activations"],
)
def test_numbers_beyond_float16_are_multiplied_in_tensorfloats(
    loud: Callable[[str, float], StreamingDecoder],
    tiny_custom_voice: Checkpoint,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    weight: str,
    factor: float,
    complaint: str,
) -> None:
    config, cpu, decoder = tiny_custom_voice.codec_config, OnCpu(monkeypatch), loud(weight, factor)
    settings = StreamingSettings(cuda_graphs=False, max_batch=1, max_frames=1)
    found = _run(choice.fused_runner(decoder, config, settings, torch.device("cpu")), config)
    with torch.inference_mode():
        expected, _ = decoder(_codes(config), torch.zeros(1, decoder.layout.size))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    assert cpu.compiled == [Numbers.HALVES, Numbers.TENSORFLOATS]
    assert complaint in caplog.text
    assert "half as fast" in caplog.text


@pytest.mark.slow
@needs_compiler
def test_fast_says_how_far_it_is_off(
    tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config, cpu = tiny_custom_voice.codec_config, OnCpu(monkeypatch)
    decoder = StreamingDecoder(config, Weights(tiny_custom_voice.codec_tensor, "decoder"))
    settings = StreamingSettings(cuda_graphs=False, max_batch=1, max_frames=1, precision="fast")
    _run(choice.fused_runner(decoder, config, settings, torch.device("cpu")), config)
    assert cpu.compiled == [Numbers.HALVES, Numbers.HALF]
    stated = re.search(r"samples of random codes are off by up to ([\d.e-]+)", caplog.text)
    assert stated is not None
    assert 1e-5 < float(stated[1]) < 0.1


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("weight", "factor", "complaint"),
    [
        ("transformer.into", 1e8, "its weights reach .*, more than float16 holds"),
        ("codebooks.table", 1e5, "random codes give activations of .*, too close to the end of float16"),
    ],
    ids=["weights", "activations"],
)
def test_fast_is_refused_for_numbers_beyond_float16(
    loud: Callable[[str, float], StreamingDecoder],
    tiny_custom_voice: Checkpoint,
    monkeypatch: pytest.MonkeyPatch,
    weight: str,
    factor: float,
    complaint: str,
) -> None:
    config, cpu = tiny_custom_voice.codec_config, OnCpu(monkeypatch)
    settings = StreamingSettings(cuda_graphs=False, max_batch=1, max_frames=1, precision="fast")
    with pytest.raises(SettingsError, match=rf"precision is 'fast', but {complaint}.*; set it to 'exact'"):
        choice.fused_runner(loud(weight, factor), config, settings, torch.device("cpu"))
    assert cpu.compiled == [Numbers.HALVES]


def test_fast_needs_the_kernels(tiny_custom_voice: Checkpoint) -> None:
    context = LoadContext(torch.device("cpu"), torch.float32, StreamingSettings(precision="fast"))
    with pytest.raises(SettingsError, match=r"codecs\.streaming\.precision 'fast' needs the CUDA kernels"):
        StreamingCodec(tiny_custom_voice, context)
