"""What a codec makes of what its shell lets through, and what it says of itself."""

import pytest
import torch

from megatalker.interfaces import CodecBackend
from megatalker.plugins.checked import CheckedCodec
from megatalker_conformance.checks import require
from megatalker_conformance.codes import CodeSource, OfficialCodec


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.int16])
def test_codes_may_be_any_integer_type_and_are_copied(
    codec: CheckedCodec, code_source: CodeSource, dtype: torch.dtype
) -> None:
    codes = code_source.random(5, seed=1)
    state, twin, scratch = codec.open(), codec.open(), codes.to(dtype).clone()
    (first,) = codec.decode([state], [scratch])
    scratch.zero_()
    (expected,) = codec.decode([twin], [codes])
    torch.testing.assert_close(first, expected, rtol=0, atol=1e-5)
    (after,), (expected,) = codec.decode([state], [codes]), codec.decode([twin], [codes])
    torch.testing.assert_close(after, expected, rtol=0, atol=1e-5)


def test_the_loaded_instance_has_the_abilities_of_its_specification(
    codec: CheckedCodec, codec_backend: CodecBackend
) -> None:
    assert codec.capabilities.encode == codec_backend.capabilities.encode


@pytest.mark.optional
def test_encoding_equals_the_official_encoder(
    codec: CheckedCodec, code_source: CodeSource, official_codec: OfficialCodec
) -> None:
    require(codec.capabilities, "encode")
    audio = official_codec.decode(code_source.random(25, seed=6))
    codes = codec.encode(audio)
    assert codes.dtype == torch.int64
    assert torch.equal(codes.cpu(), official_codec.encode(audio))
