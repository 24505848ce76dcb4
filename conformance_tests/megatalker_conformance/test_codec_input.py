"""What a codec accepts, and how it refuses the rest: before any state has advanced."""

from typing import Self

import pytest
import torch
from torch import Tensor

from megatalker.errors import InvalidRequestError, UnsupportedError
from megatalker.interfaces import Codec, CodecBackend, CodecState
from megatalker_conformance.checks import require
from megatalker_conformance.codes import CodeSource, OfficialCodec

CASES = ("no-frames", "flat", "few-groups", "float", "negative", "beyond-codebook")


def _malformed(case: str, good: Tensor, codebook_size: int) -> Tensor:
    wild = good.clone()
    wild[1, 3] = -1 if case == "negative" else codebook_size
    return {
        "no-frames": good[:0],
        "flat": good[0],
        "few-groups": good[:, :-1],
        "float": good.float(),
        "negative": wild,
        "beyond-codebook": wild,
    }[case]


@pytest.mark.parametrize("case", CASES)
def test_malformed_codes_are_refused_and_no_state_advances(codec: Codec, code_source: CodeSource, case: str) -> None:
    good = code_source.random(4, seed=1)
    state, other, untouched = codec.open(), codec.open(), codec.open()
    codec.decode([state, other], [good, good])
    codec.decode([untouched], [good])
    with pytest.raises(InvalidRequestError):
        codec.decode([state, other], [good, _malformed(case, good, code_source.codebook_size)])
    (after,), (expected,) = codec.decode([state], [good]), codec.decode([untouched], [good])
    torch.testing.assert_close(after, expected, rtol=0, atol=1e-5)


def test_a_state_named_twice_is_refused(codec: Codec, code_source: CodeSource) -> None:
    state, good = codec.open(), code_source.random(2, seed=1)
    with pytest.raises(InvalidRequestError):
        codec.decode([state, state], [good, good])


class Stranger(CodecState):
    """A state that no codec under test has made."""

    def copy(self) -> Self:
        return self


def test_a_state_of_another_codec_is_refused(codec: Codec, code_source: CodeSource) -> None:
    with pytest.raises(InvalidRequestError):
        codec.decode([Stranger()], [code_source.random(2, seed=1)])


def test_states_and_codes_must_pair_up(codec: Codec, code_source: CodeSource) -> None:
    good = code_source.random(2, seed=1)
    with pytest.raises(InvalidRequestError):
        codec.decode([codec.open(), codec.open()], [good])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.int16])
def test_codes_may_be_any_integer_type_and_are_copied(
    codec: Codec, code_source: CodeSource, dtype: torch.dtype
) -> None:
    codes = code_source.random(5, seed=1)
    state, twin, scratch = codec.open(), codec.open(), codes.to(dtype).clone()
    (first,) = codec.decode([state], [scratch])
    scratch.zero_()
    (expected,) = codec.decode([twin], [codes])
    torch.testing.assert_close(first, expected, rtol=0, atol=1e-5)
    (after,), (expected,) = codec.decode([state], [codes]), codec.decode([twin], [codes])
    torch.testing.assert_close(after, expected, rtol=0, atol=1e-5)


def test_the_loaded_instance_has_the_abilities_of_its_specification(codec: Codec, codec_backend: CodecBackend) -> None:
    assert codec.capabilities.encode == codec_backend.capabilities.encode


@pytest.mark.optional
def test_encoding_equals_the_official_encoder(
    codec: Codec, code_source: CodeSource, official_codec: OfficialCodec
) -> None:
    require(codec.capabilities, "encode")
    audio = official_codec.decode(code_source.random(25, seed=6))
    codes = codec.encode(audio)
    assert codes.dtype == torch.int64
    assert torch.equal(codes.cpu(), official_codec.encode(audio))


def test_a_codec_that_does_not_encode_says_so(codec: Codec) -> None:
    if codec.capabilities.encode:
        pytest.skip("the codec's capabilities list encode")
    with pytest.raises(UnsupportedError):
        codec.encode(torch.zeros(1920))
