"""The streaming codec's encoder behind the contract: official codes, and no decoder where nobody asks for one."""

import pytest
import torch

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.official import load_official_codec
from megatalker.interfaces import LoadContext
from megatalker.plugins.checked import load_codec
from megatalker.plugins.precision import exact_products
from megatalker_backends.streaming.codec import StreamingCodec
from megatalker_backends.streaming.settings import StreamingSettings
from megatalker_backends.streaming.spec import CODEC
from voice_recordings import speech

CPU = torch.device("cpu")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")


def on(device: str, *, encoder_only: bool = False) -> LoadContext[StreamingSettings]:
    return LoadContext(torch.device(device), torch.float32, StreamingSettings(), encoder_only=encoder_only)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])
@pytest.mark.parametrize("encoder_only", [False, True])
def test_codes_are_the_official_ones(tiny_custom_voice: Checkpoint, device: str, encoder_only: bool) -> None:
    codec = load_codec(CODEC, tiny_custom_voice, on(device, encoder_only=encoder_only))
    official = load_official_codec(tiny_custom_voice, torch.device(device), torch.float32)
    for count in (1, 1919, 1920, 31_201, 300_007):
        audio = torch.from_numpy(speech(20.0)[:count])
        with exact_products(torch.device(device)):
            expected = official.encode(audio.numpy(), sr=24_000).audio_codes[0]
        assert torch.equal(codec.encode(audio), expected)
        assert torch.equal(codec.encode(audio), expected), "again"
    assert codec.capabilities.encode


def test_a_decoder_is_loaded_only_where_it_is_needed(
    tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, tensor = set(), Checkpoint.codec_tensor

    def watched(checkpoint: Checkpoint, name: str) -> torch.Tensor:
        read.add(name.partition(".")[0])
        return tensor(checkpoint, name)

    monkeypatch.setattr(Checkpoint, "codec_tensor", watched)
    codec = StreamingCodec(tiny_custom_voice, on("cpu", encoder_only=True))
    codec.encode(torch.zeros(1920))
    assert codec.capabilities.encode
    assert read == {"encoder"}
    read.clear()
    codec = StreamingCodec(tiny_custom_voice, on("cpu"))
    codec.decode([codec.open()], [torch.zeros(1, 16, dtype=torch.int64)])
    assert read == {"decoder"}
    codec.encode(torch.zeros(1920))
    assert read == {"decoder", "encoder"}


def test_precision_chosen_by_the_program_is_left_alone() -> None:
    parts = [torch.backends.mkldnn.matmul, torch.backends.mkldnn.conv]  # type: ignore[attr-defined]
    before = [part.fp32_precision for part in parts]
    try:
        for part in parts:
            part.fp32_precision = "bf16"
        with exact_products(CPU):
            assert [part.fp32_precision for part in parts] == ["ieee", "ieee"]
        assert [part.fp32_precision for part in parts] == ["bf16", "bf16"]
    finally:
        for part, precision in zip(parts, before, strict=True):
            part.fp32_precision = precision
