"""The ``streaming`` codec at the sizes of the published checkpoints."""

import pytest
import torch
from torch import Tensor

from megatalker.checkpoint.config import CodecConfig
from megatalker.checkpoint.official import load_qwen_tts
from megatalker.checkpoint.shapes import codec_decoder_shapes
from megatalker.testing.configs import codec_config
from megatalker.testing.recipe import PUBLISHED_0B6
from megatalker.testing.weights import random_tensor
from megatalker_backends.streaming.fused.choice import fused_runner, wants_kernels
from megatalker_backends.streaming.model import StreamingDecoder
from megatalker_backends.streaming.runner import Runner, TorchRunner
from megatalker_backends.streaming.settings import StreamingSettings
from megatalker_backends.streaming.weights import Weights
from streaming_codec_helpers import assert_same, needs_cuda, random_codes


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])
def test_the_published_decoder_shape_is_exact_past_the_window(device: str) -> None:
    raw = codec_config(PUBLISHED_0B6)
    config = CodecConfig.parse(raw)
    tensors = {
        name: torch.from_numpy(random_tensor(name, shape, 0, 0)) for name, shape in codec_decoder_shapes(config).items()
    }
    codes = random_codes(config, 76, seed=5)
    decoder, settings = StreamingDecoder(config, Weights(tensors.__getitem__, "decoder")), StreamingSettings()
    make = fused_runner if wants_kernels(config, settings, torch.device(device)) else TorchRunner
    ours: Runner = make(decoder, config, settings, torch.device(device))
    memory, chunks = ours.open(), []
    with torch.inference_mode():
        for part in codes.split([1, 2, 3, 7, 18, 1, 20, 20, 1, 1, 1, 1]):
            samples, (successor,) = ours.run(part[None], [memory])
            memory.copy_(successor)
            chunks.append(samples[0])
        expected = _official_decoder(raw, tensors)(codes.T[None])[0, 0]
    assert 0.05 < expected.square().mean().sqrt() < 0.8
    assert_same(torch.cat(chunks), expected)


def _official_decoder(raw: dict[str, dict[str, object]], tensors: dict[str, Tensor]) -> torch.nn.Module:
    load_qwen_tts()
    from qwen_tts.core.tokenizer_12hz import configuration_qwen3_tts_tokenizer_v2 as configuration
    from qwen_tts.core.tokenizer_12hz import modeling_qwen3_tts_tokenizer_v2 as modeling

    config = configuration.Qwen3TTSTokenizerV2DecoderConfig(**raw["decoder_config"])
    decoder: torch.nn.Module = modeling.Qwen3TTSTokenizerV2Decoder(config)
    state = {name.removeprefix("decoder."): tensor for name, tensor in tensors.items()}
    missing, unexpected = decoder.load_state_dict(state, strict=False)
    assert all("input_proj" in name for name in missing)
    assert not unexpected
    return decoder.eval()
