"""The shell around a codec: what it lets through in either direction."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Self

import pytest
import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import FRAME_SAMPLES, CodecConfig
from megatalker.errors import CapacityError, InvalidRequestError, MalformedResultError, UnsupportedError
from megatalker.interfaces import (
    AVAILABLE,
    BackendSettings,
    Codec,
    CodecBackend,
    CodecCapabilities,
    CodecState,
    Limit,
    LoadContext,
)
from megatalker.plugins.checked import CheckedCodec, load_codec

ABLE = CodecCapabilities(frozenset({"cpu"}), frozenset({torch.float32}), max_streams=3, encode=True)


class Count(CodecState):
    def __init__(self, frames: int = 0) -> None:
        self.frames = frames

    def copy(self) -> Self:
        return type(self)(self.frames)


class CountingCodec(Codec):
    """Says how many frames each state has gone through; notes the codes that reach it."""

    def __init__(self, config: CodecConfig, capabilities: CodecCapabilities = ABLE) -> None:
        self.config, self.stated = config, capabilities
        self.given: list[Tensor] = []
        self.calls: list[str] = []
        self.answer: Callable[[list[Tensor]], Any] = lambda chunks: chunks
        self.codes: Any = torch.zeros(1, config.num_quantizers, dtype=torch.int64)
        self.state: type[Any] = Count

    @property
    def capabilities(self) -> CodecCapabilities:
        return self.stated

    def open(self) -> CodecState:
        return self.state()

    def decode(self, states: Sequence[CodecState], codes: Sequence[Tensor]) -> Any:
        self.given += codes
        chunks = []
        for state, fresh in zip(states, codes, strict=True):
            assert isinstance(state, Count)
            state.frames += len(fresh)
            chunks.append(torch.full((len(fresh) * FRAME_SAMPLES,), float(state.frames)))
        return self.answer(chunks)

    def encode(self, audio: Tensor) -> Tensor:
        self.given.append(audio)
        return self.codes

    def warmup(self) -> None:
        self.calls.append("warmup")

    def close(self) -> None:
        self.calls.append("close")


@pytest.fixture
def config(tiny_custom_voice: Checkpoint) -> CodecConfig:
    return tiny_custom_voice.codec_config


@pytest.fixture
def inner(config: CodecConfig) -> CountingCodec:
    return CountingCodec(config)


@pytest.fixture
def codec(inner: CountingCodec, config: CodecConfig) -> CheckedCodec:
    return CheckedCodec(inner, config)


@pytest.fixture
def codes(config: CodecConfig) -> Tensor:
    return torch.randint(config.codebook_size, (4, config.num_quantizers), generator=torch.Generator().manual_seed(1))


def test_limits_are_numbers_or_none(tiny_custom_voice: Checkpoint, inner: CountingCodec, config: CodecConfig) -> None:
    spec = CodecBackend(
        name="counting",
        summary="s",
        api_version=2,
        capabilities=ABLE,
        probe=lambda *_: AVAILABLE,
        load=lambda *_: inner,
    )
    context = LoadContext(torch.device("cpu"), torch.float32, BackendSettings())
    assert load_codec(spec, tiny_custom_voice, context).max_streams == 3
    assert CheckedCodec(CountingCodec(config, replace(ABLE, max_streams=Limit.NONE)), config).max_streams is None
    with pytest.raises(MalformedResultError, match=r"max_streams of the loaded instance is <Limit\.UNKNOWN"):
        CheckedCodec(CountingCodec(config, replace(ABLE, max_streams=Limit.UNKNOWN)), config)
    with pytest.raises(MalformedResultError, match="what the backend loaded is int, expected Codec"):
        load_codec(replace(spec, load=lambda *_: 7), tiny_custom_voice, context)  # type: ignore[arg-type, return-value]


def test_the_rest_is_passed_on(codec: CheckedCodec, inner: CountingCodec) -> None:
    codec.warmup()
    codec.close()
    assert inner.calls == ["warmup", "close"]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_codes_reach_the_backend_as_int64_on_the_cpu(
    codec: CheckedCodec, inner: CountingCodec, codes: Tensor, dtype: torch.dtype
) -> None:
    codec.decode([codec.open(), codec.open()], [codes.to(dtype), codes[:1].to(dtype)])
    assert [given.dtype for given in inner.given] == [torch.int64] * 2
    assert torch.equal(inner.given[0], codes)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda c: c[:0], r"\[0, 16\], expected integers \[frames >= 1, 16\]"),
        (lambda c: c[:, 1:], "expected integers"),
        (lambda c: c[0], "expected integers"),
        (lambda c: c.float(), "float32"),
        (lambda c: c > 0, "bool"),
        (lambda c: torch.full_like(c, -1), "span -1 to -1, expected 0 to 127; end-of-speech"),
        (lambda c: torch.full_like(c, 128), "span 128 to 128, expected 0 to 127"),
        (lambda c: c.index_fill(0, torch.tensor([1]), 10**6), "1000000, expected 0 to 127"),
    ],
)
def test_malformed_codes_advance_no_state(
    codec: CheckedCodec, inner: CountingCodec, codes: Tensor, spoil: Callable[[Tensor], Tensor], message: str
) -> None:
    good, bad = codec.open(), codec.open()
    with pytest.raises(InvalidRequestError, match=f"codes 1 .*{message}"):
        codec.decode([good, bad], [codes[:1], spoil(codes[:2])])
    with pytest.raises(InvalidRequestError, match="codes 0 "):
        codec.decode([bad], [spoil(codes[:2])])
    assert inner.given == []


def test_states_are_distinct_and_this_codecs_own(
    codec: CheckedCodec, inner: CountingCodec, config: CodecConfig, codes: Tensor
) -> None:
    state = codec.open()
    with pytest.raises(InvalidRequestError, match="1 states and 2 tensors"):
        codec.decode([state], [codes, codes])
    with pytest.raises(InvalidRequestError, match="2 states and 1 tensors"):
        codec.decode([state, codec.open()], [codes])
    with pytest.raises(InvalidRequestError, match="state 2 stands twice"):
        codec.decode([state, codec.open(), state], [codes, codes, codes])
    for stranger in (CheckedCodec(inner, config).open(), Count()):
        with pytest.raises(InvalidRequestError, match="state 1 was made by another codec"):
            codec.decode([state, stranger], [codes, codes])
    assert inner.given == []


def test_a_call_takes_as_many_states_as_the_codec_says_and_an_empty_one_asks_nothing(
    codec: CheckedCodec, inner: CountingCodec, codes: Tensor
) -> None:
    with pytest.raises(CapacityError, match="4 states in one call, this codec takes 3; split the call"):
        codec.decode([codec.open() for _ in range(4)], [codes] * 4)
    assert codec.decode([], []) == []
    assert inner.given == []


def test_a_copy_is_a_state_of_the_same_codec_with_a_future_of_its_own(codec: CheckedCodec, codes: Tensor) -> None:
    state = codec.open()
    codec.decode([state], [codes])
    twin = state.copy()
    first, second = codec.decode([state, twin], [codes[:1], codes[:2]])
    assert (float(first[0]), float(second[0])) == (5, 6)


class SharedStateCodec(Count):
    def copy(self) -> Self:
        return self


def test_a_copy_that_is_the_state_itself_is_a_fault(codec: CheckedCodec, inner: CountingCodec) -> None:
    inner.state = SharedStateCodec
    with pytest.raises(MalformedResultError, match="copy is the state itself"):
        codec.open().copy()
    inner.state = dict
    with pytest.raises(MalformedResultError, match="what open returned is dict, expected CodecState"):
        codec.open()


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda chunks: None, "returned NoneType for 2 states"),
        (lambda chunks: chunks[:1], "returned 1 chunks for 2 states"),
        (lambda chunks: [chunks[0], chunks[1][:-1]], r"chunk 1 is float32 \[3839\], expected float32 \[3840\]"),
        (lambda chunks: [chunks[0], chunks[1].double()], "chunk 1 is float64"),
        (lambda chunks: [chunks[0][None], chunks[1]], r"chunk 0 is float32 \[1, 1920\]"),
        (lambda chunks: [chunks[0], chunks[1].tolist()], "chunk 1 is list"),
    ],
)
def test_malformed_chunks_are_a_fault(
    codec: CheckedCodec, inner: CountingCodec, codes: Tensor, spoil: Callable[[list[Tensor]], Any], complaint: str
) -> None:
    inner.answer = spoil
    with pytest.raises(MalformedResultError, match=complaint):
        codec.decode([codec.open(), codec.open()], [codes[:1], codes[:2]])


def test_audio_reaches_the_backend_as_float32(codec: CheckedCodec, inner: CountingCodec) -> None:
    assert codec.encode(torch.tensor([0.0, 0.5], dtype=torch.float64)) is inner.codes
    assert torch.equal(inner.given[0], torch.tensor([0.0, 0.5]))


@pytest.mark.parametrize(
    ("audio", "complaint"),
    [
        (torch.zeros(0), r"audio is float32 \[0\], expected floating point"),
        (torch.zeros(2, 100), "mix to one channel"),
        (torch.zeros(100, dtype=torch.int16), "audio is int16"),
        (torch.tensor([0.0, float("nan")]), "NaN or infinity"),
    ],
)
def test_malformed_audio_is_described(codec: CheckedCodec, inner: CountingCodec, audio: Tensor, complaint: str) -> None:
    with pytest.raises(InvalidRequestError, match=complaint):
        codec.encode(audio)
    assert inner.given == []


@pytest.mark.parametrize("codes", [None, torch.zeros(1, 16), torch.zeros(16, dtype=torch.int64)])
def test_malformed_results_of_encoding_are_a_fault(codec: CheckedCodec, inner: CountingCodec, codes: Any) -> None:
    inner.codes = codes
    with pytest.raises(MalformedResultError, match="encode returned"):
        codec.encode(torch.zeros(1920))


def test_encoding_needs_the_capability(config: CodecConfig) -> None:
    mute = CheckedCodec(CountingCodec(config, replace(ABLE, encode=False)), config)
    with pytest.raises(UnsupportedError, match="CountingCodec does not encode audio"):
        mute.encode(torch.zeros(1920))
