"""The ``reference`` codec: one official full forward is the truth, chunks are slices of it."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import FRAME_SAMPLES, SAMPLE_RATE
from megatalker.checkpoint.official import load_official_codec
from megatalker.errors import InvalidRequestError
from megatalker.interfaces import BackendSettings, LoadContext
from megatalker_backends.reference.codec import ReferenceCodec

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def codec(tiny_base: Checkpoint) -> ReferenceCodec:
    return ReferenceCodec(tiny_base, LoadContext(CPU, torch.bfloat16, BackendSettings()))


@pytest.fixture(scope="module")
def codes(tiny_base: Checkpoint) -> Tensor:
    shape = (90, tiny_base.codec_config.num_quantizers)
    return torch.randint(tiny_base.codec_config.codebook_size, shape, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def whole(tiny_base: Checkpoint, codes: Tensor) -> Tensor:
    """One full forward of the official float32 decoder."""
    tokenizer = load_official_codec(tiny_base, CPU, torch.float32)
    with torch.inference_mode():
        samples: Tensor = tokenizer.model.decoder(codes.T[None])[0, 0]
    return samples


@pytest.mark.parametrize("sizes", [(90,), (1, 2, 7, 40, 40), (80, 10)])
def test_chunks_equal_one_full_forward_past_the_window(
    codec: ReferenceCodec, codes: Tensor, whole: Tensor, sizes: tuple[int, ...]
) -> None:
    state = codec.open()
    chunks = [codec.decode([state], [part])[0] for part in codes.split(sizes)]
    assert [len(chunk) for chunk in chunks] == [size * FRAME_SAMPLES for size in sizes]
    assert all(chunk.dtype == torch.float32 for chunk in chunks)
    torch.testing.assert_close(torch.cat(chunks), whole, atol=1e-4, rtol=0)


def test_states_are_independent_in_one_call_and_after_a_copy(
    codec: ReferenceCodec, codes: Tensor, whole: Tensor
) -> None:
    first, second = codec.open(), codec.open()
    codec.decode([first], [codes[:5]])
    long, short = codec.decode([first, second], [codes[5:9].int(), codes[:2]])
    assert (len(long), len(short)) == (4 * FRAME_SAMPLES, 2 * FRAME_SAMPLES)
    torch.testing.assert_close(long, whole[5 * FRAME_SAMPLES : 9 * FRAME_SAMPLES], atol=1e-4, rtol=0)
    torch.testing.assert_close(short, whole[: 2 * FRAME_SAMPLES], atol=1e-4, rtol=0)
    twin = second.copy()
    codec.decode([twin], [codes[50:60]])
    (after,) = codec.decode([second], [codes[2:4]])
    torch.testing.assert_close(after, whole[2 * FRAME_SAMPLES : 4 * FRAME_SAMPLES], atol=1e-4, rtol=0)


Spoil = Callable[[Tensor], Tensor]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda c: c[:0], r"\[0, 16\], expected integers \[frames >= 1, 16\]"),
        (lambda c: c[:, 1:], "expected integers"),
        (lambda c: c[0], "expected integers"),
        (lambda c: c.float(), "torch.float32"),
        (lambda c: c - 10**6, "end-of-speech"),
        (lambda c: c + 10**6, "end-of-speech"),
    ],
)
def test_malformed_codes_advance_no_state(
    codec: ReferenceCodec, codes: Tensor, whole: Tensor, spoil: Spoil, message: str
) -> None:
    good, bad = codec.open(), codec.open()
    with pytest.raises(InvalidRequestError, match=f"codes 1 .*{message}"):
        codec.decode([good, bad], [codes[:1], spoil(codes[:2])])
    (samples,) = codec.decode([good], [codes[:1]])
    torch.testing.assert_close(samples, whole[:FRAME_SAMPLES], atol=1e-4, rtol=0)


def test_states_are_distinct_and_this_codecs_own(codec: ReferenceCodec, codes: Tensor, tiny_base: Checkpoint) -> None:
    state = codec.open()
    with pytest.raises(InvalidRequestError, match="1 states and 2 tensors"):
        codec.decode([state], [codes, codes])
    with pytest.raises(InvalidRequestError, match="state 1 stands twice"):
        codec.decode([state, state], [codes, codes])
    other = ReferenceCodec(tiny_base, LoadContext(CPU, torch.float32, BackendSettings()))
    with pytest.raises(InvalidRequestError, match="made by another codec"):
        codec.decode([other.open()], [codes])


@pytest.mark.parametrize("samples", [1, 1_200, FRAME_SAMPLES, FRAME_SAMPLES + 1, SAMPLE_RATE])
def test_encode_equals_the_official_tokenizer(codec: ReferenceCodec, tiny_base: Checkpoint, samples: int) -> None:
    audio = (0.1 * np.random.default_rng(2).standard_normal(samples)).astype(np.float32)
    codes = codec.encode(torch.from_numpy(audio))
    official = load_official_codec(tiny_base, CPU, torch.float32).encode(audio, sr=SAMPLE_RATE).audio_codes[0]
    assert torch.equal(codes, official)
    assert codes.shape == (-(-samples // FRAME_SAMPLES), tiny_base.codec_config.num_quantizers)
    assert codes.dtype == torch.int64


@pytest.mark.parametrize("audio", [torch.zeros(0), torch.zeros(2, 100), torch.zeros(100, dtype=torch.int16)])
def test_encode_describes_malformed_audio(codec: ReferenceCodec, audio: Tensor) -> None:
    with pytest.raises(InvalidRequestError, match=r"audio is .* expected floating point"):
        codec.encode(audio)


def test_encode_refuses_audio_that_is_not_finite(codec: ReferenceCodec) -> None:
    with pytest.raises(InvalidRequestError, match="NaN or infinity"):
        codec.encode(torch.tensor([0.0, float("nan")]))
