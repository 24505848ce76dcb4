"""The ``reference`` codec: one official full forward is the truth, chunks are slices of it."""

import numpy as np
import pytest
import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import FRAME_SAMPLES, SAMPLE_RATE
from megatalker.checkpoint.official import load_official_codec
from megatalker.interfaces import BackendSettings, LoadContext
from megatalker.plugins.checked import CheckedCodec
from megatalker_backends.reference.codec import ReferenceCodec

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def codec(tiny_base: Checkpoint) -> CheckedCodec:
    codec = ReferenceCodec(tiny_base, LoadContext(CPU, torch.bfloat16, BackendSettings()))
    return CheckedCodec(codec, tiny_base.codec_config)


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
    codec: CheckedCodec, codes: Tensor, whole: Tensor, sizes: tuple[int, ...]
) -> None:
    state = codec.open()
    chunks = [codec.decode([state], [part])[0] for part in codes.split(sizes)]
    assert [len(chunk) for chunk in chunks] == [size * FRAME_SAMPLES for size in sizes]
    assert all(chunk.dtype == torch.float32 for chunk in chunks)
    torch.testing.assert_close(torch.cat(chunks), whole, atol=1e-4, rtol=0)


def test_states_are_independent_in_one_call_and_after_a_copy(codec: CheckedCodec, codes: Tensor, whole: Tensor) -> None:
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


def test_a_failure_advances_no_state(
    codec: CheckedCodec, codes: Tensor, whole: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(codec.codec, ReferenceCodec)
    model = codec.codec._tokenizer.model
    decode, states = model.decoder.forward, [codec.open(), codec.open()]

    def fail_on_two_frames(codes: Tensor) -> Tensor:
        if codes.shape[-1] == 2:
            raise RuntimeError("out of memory")
        return decode(codes)

    with monkeypatch.context() as patch:
        patch.setattr(model.decoder, "forward", fail_on_two_frames)
        with pytest.raises(RuntimeError, match="out of memory"):
            codec.decode(states, [codes[:1], codes[:2]])
    for chunk in codec.decode(states, [codes[:1], codes[:1]]):
        torch.testing.assert_close(chunk, whole[:FRAME_SAMPLES], atol=1e-4, rtol=0)


@pytest.mark.parametrize("samples", [1, 1_200, FRAME_SAMPLES, FRAME_SAMPLES + 1, SAMPLE_RATE])
def test_encode_equals_the_official_tokenizer(codec: CheckedCodec, tiny_base: Checkpoint, samples: int) -> None:
    audio = (0.1 * np.random.default_rng(2).standard_normal(samples)).astype(np.float32)
    codes = codec.encode(torch.from_numpy(audio))
    official = load_official_codec(tiny_base, CPU, torch.float32).encode(audio, sr=SAMPLE_RATE).audio_codes[0]
    assert torch.equal(codes, official)
    assert codes.shape == (-(-samples // FRAME_SAMPLES), tiny_base.codec_config.num_quantizers)
    assert codes.dtype == torch.int64
