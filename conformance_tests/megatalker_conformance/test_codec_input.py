"""Capabilities that a codec states, and its encoding of audio."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from megatalker.checkpoint.config import FRAME_SAMPLES
from megatalker.interfaces import CodecBackend
from megatalker.plugins.checked import CheckedCodec
from megatalker_conformance.checks import require
from megatalker_conformance.codes import CodeSource, OfficialCodec
from megatalker_conformance.promises import ENCODING, broken

SPOKEN = 160
"""Frames of speech to encode: 12.8 s, more than encoders that work in pieces take at a time."""


def test_the_loaded_instance_has_the_abilities_of_its_specification(
    codec: CheckedCodec, codec_backend: CodecBackend
) -> None:
    assert codec.capabilities.encode == codec_backend.capabilities.encode


@pytest.fixture
def speech(codec: CheckedCodec, code_source: CodeSource, official_codec: OfficialCodec) -> Tensor:
    """Audio for codecs that encode."""
    require(codec.capabilities, "encode")
    return official_codec.decode(code_source.random(SPOKEN, seed=6))


def _expect_official(codes: Tensor, audio: Tensor, what: str, official: OfficialCodec) -> None:
    expected = official.encode(audio)
    if codes.dtype != torch.int64 or not torch.equal(codes.cpu(), expected):
        wrong = "shape" if codes.shape != expected.shape else f"{int((codes.cpu() != expected).sum())} codes"
        shown, theirs = (
            f"{each.dtype} {list(each.shape)}, first frame {each[:1].tolist()}" for each in (codes, expected)
        )
        broken(ENCODING, shown_by=f"encode {what}", expected=theirs, found=f"{shown}; wrong: {wrong}")


@pytest.mark.optional
@pytest.mark.parametrize(
    "samples", [1, 100, FRAME_SAMPLES - 1, FRAME_SAMPLES, FRAME_SAMPLES + 1, 12_345, 48_000, SPOKEN * FRAME_SAMPLES - 7]
)
def test_encoding_equals_the_official_encoder(
    codec: CheckedCodec, speech: Tensor, official_codec: OfficialCodec, samples: int
) -> None:
    audio = speech[:samples]
    _expect_official(codec.encode(audio), audio, f"{samples} samples of speech", official_codec)


@pytest.mark.optional
def test_silence_and_clipped_audio_are_encoded_as_officially(
    codec: CheckedCodec, speech: Tensor, official_codec: OfficialCodec
) -> None:
    for what, audio in (
        ("silence", torch.zeros(5000)),
        ("clipped speech", (speech[:20_000] * 50).clamp(-1, 1)),
        ("samples beyond 1", speech[:20_000] * 20),
    ):
        _expect_official(codec.encode(audio), audio, what, official_codec)


@pytest.mark.optional
def test_audio_may_be_strided_and_come_from_any_thread(
    codec: CheckedCodec, speech: Tensor, official_codec: OfficialCodec
) -> None:
    audio, wide = speech[:9000], speech[:9000].repeat_interleave(2)
    _expect_official(codec.encode(wide[::2]), audio, "every other of 18000 samples", official_codec)
    with ThreadPoolExecutor(1) as thread:
        _expect_official(thread.submit(codec.encode, audio).result(), audio, "from another thread", official_codec)
    wide.zero_()
    _expect_official(codec.encode(audio), audio, "9000 samples after all that", official_codec)
