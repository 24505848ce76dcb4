"""The ``streaming`` codec: chunks equal one full official forward, and streams do not see each other."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import FRAME_SAMPLES, CodecConfig
from megatalker.checkpoint.official import load_official_codec, load_qwen_tts
from megatalker.checkpoint.shapes import codec_decoder_shapes
from megatalker.errors import SettingsError
from megatalker.interfaces import LoadContext
from megatalker.plugins.checked import CheckedCodec
from megatalker.testing.configs import codec_config
from megatalker.testing.recipe import PUBLISHED_0B6
from megatalker.testing.weights import random_tensor
from megatalker_backends.streaming.codec import StreamingCodec, StreamingState
from megatalker_backends.streaming.fused.choice import fused_runner, wants_kernels
from megatalker_backends.streaming.fused.runner import FusedMemory
from megatalker_backends.streaming.model import StreamingDecoder
from megatalker_backends.streaming.runner import CodecRunner, StreamMemory, TorchRunner
from megatalker_backends.streaming.settings import StreamingSettings
from megatalker_backends.streaming.steps import FixedSteps, Steps, StepShape
from megatalker_backends.streaming.weights import Weights

FRAMES = 160
"""More than twice the attention window of 72."""
TOLERANCE = 1e-4
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")


def on(device: str, **settings: bool | int | str) -> LoadContext:
    return LoadContext(torch.device(device), torch.float32, StreamingSettings.model_validate(settings))


def random_codes(config: CodecConfig, frames: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(config.codebook_size, (frames, config.num_quantizers), generator=generator)


def spoken(samples: Tensor, frames: slice) -> Tensor:
    return samples[frames.start * FRAME_SAMPLES : frames.stop * FRAME_SAMPLES]


def assert_same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found.cpu(), expected.cpu(), atol=TOLERANCE, rtol=0)


@pytest.fixture(
    scope="module",
    params=[
        "cpu",
        pytest.param("cuda", marks=needs_cuda),
    ],
)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def codec(tiny_custom_voice: Checkpoint, device: str) -> StreamingCodec:
    codec = StreamingCodec(tiny_custom_voice, on(device))
    codec.warmup()
    return codec


@pytest.fixture(scope="module")
def codes(tiny_custom_voice: Checkpoint) -> Tensor:
    return random_codes(tiny_custom_voice.codec_config, FRAMES, seed=1)


@pytest.fixture(scope="module")
def other_codes(tiny_custom_voice: Checkpoint) -> Tensor:
    return random_codes(tiny_custom_voice.codec_config, 100, seed=2)


@pytest.fixture(scope="module")
def official(tiny_custom_voice: Checkpoint) -> Callable[[Tensor], Tensor]:
    """One full forward of the official float32 decoder, on the CPU."""
    decoder = load_official_codec(tiny_custom_voice, torch.device("cpu"), torch.float32).model.decoder

    @torch.inference_mode()
    def decode(codes: Tensor) -> Tensor:
        samples: Tensor = decoder(codes.T[None])[0, 0]
        return samples

    return decode


@pytest.fixture(scope="module")
def whole(official: Callable[[Tensor], Tensor], codes: Tensor) -> Tensor:
    samples = official(codes)
    assert 0.05 < samples.square().mean().sqrt() < 0.8, "a near-silent or clipped signal would hide errors"
    return samples


@pytest.fixture(scope="module")
def other_whole(official: Callable[[Tensor], Tensor], other_codes: Tensor) -> Tensor:
    return official(other_codes)


def random_sizes(total: int) -> list[int]:
    generator = torch.Generator().manual_seed(3)
    sizes: list[int] = []
    while sum(sizes) < total:
        sizes.append(min(int(torch.randint(1, 20, (), generator=generator)), total - sum(sizes)))
    return sizes


def tensors(memory: StreamMemory) -> list[Tensor]:
    if isinstance(memory, FusedMemory):
        return [memory.contexts, memory.cache]
    assert isinstance(memory, Tensor)
    return [memory]


@pytest.mark.parametrize(
    "sizes",
    [[1] * FRAMES, [2] * (FRAMES // 2), [3] * 53 + [1], [7] * 22 + [6], random_sizes(FRAMES), [FRAMES]],
    ids=["1", "2", "3", "7", "random", "at once"],
)
def test_any_chunking_equals_one_full_forward(
    codec: StreamingCodec, codes: Tensor, whole: Tensor, sizes: list[int]
) -> None:
    state = codec.open()
    chunks = [codec.decode([state], [part])[0] for part in codes.split(sizes)]
    assert [len(chunk) for chunk in chunks] == [size * FRAME_SAMPLES for size in sizes]
    assert all(chunk.dtype == torch.float32 for chunk in chunks)
    assert_same(torch.cat(chunks), whole)


def test_interleaved_streams_of_different_ages_and_counts_equal_their_solo_runs(
    codec: StreamingCodec, codes: Tensor, whole: Tensor, other_codes: Tensor, other_whole: Tensor
) -> None:
    """More streams than one batch holds; each starts later than the last and takes its own counts of frames."""
    sources = [(codes, whole), (other_codes, other_whole)] * 5
    states = [codec.open() for _ in sources]
    done = [0] * len(sources)
    for turn in range(40):
        active = [stream for stream in range(len(sources)) if turn >= stream]
        parts = [slice(done[stream], done[stream] + 1 + (stream + turn) % 3) for stream in active]
        chunks = codec.decode(
            [states[stream] for stream in active],
            [sources[stream][0][part] for stream, part in zip(active, parts, strict=True)],
        )
        for stream, part, chunk in zip(active, parts, chunks, strict=True):
            assert_same(chunk, spoken(sources[stream][1], part))
            done[stream] = part.stop
    assert min(done) > 50
    assert max(done) > 72, "no stream has gone past the attention window"


def test_a_copy_and_its_original_go_separate_ways(
    codec: StreamingCodec, codes: Tensor, whole: Tensor, other_codes: Tensor
) -> None:
    state = codec.open()
    codec.decode([state], [codes[:5]])
    twin = state.copy()
    codec.decode([state], [other_codes[:9]])
    (chunk,) = codec.decode([twin], [codes[5:8]])
    assert_same(chunk, spoken(whole, slice(5, 8)))


def test_a_neighbour_does_not_change_a_stream(codec: StreamingCodec, codes: Tensor, other_codes: Tensor) -> None:
    """Bit for bit: even a leak far below the tolerance between streams of one batch would show."""
    outcomes = []
    for neighbour in (codes[:20], other_codes[:20]):
        state, beside = codec.open(), codec.open()
        outcomes.append(codec.decode([state, beside], [codes[:20], neighbour])[0])
    assert torch.equal(*outcomes)


def test_a_new_state_starts_from_silence_whatever_was_decoded_before(
    codec: StreamingCodec, codes: Tensor, other_codes: Tensor
) -> None:
    first = codec.decode([codec.open()], [codes[:3]])[0].clone()
    codec.decode([codec.open()], [other_codes[:50]])
    assert torch.equal(codec.decode([codec.open()], [codes[:3]])[0], first)


def test_states_stay_small_however_long_the_stream(codec: StreamingCodec, codes: Tensor) -> None:
    state = codec.open()
    before = [(part.data_ptr(), part.untyped_storage().nbytes()) for part in tensors(state.memory)]
    codec.decode([state, codec.open()], [codes[:100], codes[:100]])
    assert [(part.data_ptr(), part.untyped_storage().nbytes()) for part in tensors(state.memory)] == before
    assert sum(size for _, size in before) < 300_000


@torch.inference_mode()
def test_thousands_of_frames_into_a_stream_the_rotary_angles_are_still_the_official_ones(
    tiny_custom_voice: Checkpoint, device: str
) -> None:
    """Only the transformer depends on the position in the stream, so it is compared alone."""
    tokenizer = load_official_codec(tiny_custom_voice, torch.device("cpu"), torch.float32)
    config, weights = tiny_custom_voice.codec_config, Weights(tiny_custom_voice.codec_tensor, "decoder")
    decoder = StreamingDecoder(config, weights).to(device)
    rows = torch.randn(1, 3_000, config.latent_dim, generator=torch.Generator().manual_seed(4))
    memory = decoder.layout.split(torch.zeros(1, decoder.layout.size, device=device))
    found = torch.cat([decoder.transformer([part], [memory])[0] for part in rows.to(device).split(60, dim=1)], dim=1)
    assert_same(found, tokenizer.model.decoder.pre_transformer(inputs_embeds=rows).last_hidden_state)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_codes_may_be_of_any_integer_type_and_on_any_device(
    codec: StreamingCodec,
    tiny_custom_voice: Checkpoint,
    codes: Tensor,
    whole: Tensor,
    device: str,
    dtype: torch.dtype,
) -> None:
    checked = CheckedCodec(codec, tiny_custom_voice.codec_config)
    (chunk,) = checked.decode([checked.open()], [codes[:2].to(device, dtype)])
    assert chunk.device.type == device
    assert_same(chunk, whole[: 2 * FRAME_SAMPLES])


def test_small_limits_split_a_call_into_more_steps(
    tiny_custom_voice: Checkpoint, device: str, codes: Tensor, whole: Tensor
) -> None:
    codec = StreamingCodec(tiny_custom_voice, on(device, max_batch=3, max_frames=3))
    states = [codec.open() for _ in range(5)]
    for chunk in codec.decode(states, [codes[:11]] * 5):
        assert_same(chunk, whole[: 11 * FRAME_SAMPLES])


def test_precision_chosen_by_the_program_is_left_alone_and_not_used(
    codec: StreamingCodec, codes: Tensor, whole: Tensor, device: str
) -> None:
    backend = torch.backends.cuda.matmul if device == "cuda" else torch.backends.mkldnn.matmul
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    chosen = backend.fp32_precision
    try:
        (chunk,) = codec.decode([codec.open()], [codes[:10]])
        assert backend.fp32_precision == chosen != "ieee"
    finally:
        torch.set_float32_matmul_precision(before)
    assert_same(chunk, whole[: 10 * FRAME_SAMPLES])


def test_a_failure_in_one_batch_advances_no_stream(
    tiny_custom_voice: Checkpoint, device: str, codes: Tensor, whole: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    codec = StreamingCodec(tiny_custom_voice, on(device))
    states: list[StreamingState] = [codec.open(), codec.open()]
    run = codec._runner.run

    def fail_on_two_frames(codes: Tensor, memories: Sequence[StreamMemory]) -> tuple[Tensor, Sequence[StreamMemory]]:
        if codes.shape[1] == 2:
            raise RuntimeError("out of memory")
        return run(codes, memories)

    with monkeypatch.context() as patch:
        patch.setattr(codec._runner, "run", fail_on_two_frames)
        with pytest.raises(RuntimeError, match="out of memory"):
            codec.decode(states, [codes[:1], codes[:2]])
    for chunk in codec.decode(states, [codes[:1], codes[:1]]):
        assert_same(chunk, whole[:FRAME_SAMPLES])


class StaticSteps:
    """Steps like those of CUDA graphs, without one: the next run of any step overwrites results."""

    def __init__(self) -> None:
        self.prepared = 0
        self._last: tuple[Tensor, ...] = ()

    def __call__(self, work: Callable[[], tuple[Tensor, Tensor]]) -> Callable[[], tuple[Tensor, Tensor]]:
        self.prepared += 1

        def run() -> tuple[Tensor, Tensor]:
            for stale in self._last:
                stale.fill_(torch.nan)
            self._last = results = work()
            return results

        return run


@pytest.mark.parametrize(("kind", "count", "streams"), [("fixed", 16, 6), ("one size", 1, 1)])
def test_warming_up_says_how_far_it_is(kind: str, count: int, streams: int, caplog: pytest.LogCaptureFixture) -> None:
    def decode(codes: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        return codes[..., 0].float(), states

    shape = StepShape(16, 3, 6, 30, torch.device("cpu"))
    small = replace(shape, max_frames=5)
    steps = FixedSteps(decode, small, lambda work: work) if kind == "fixed" else Steps(decode, shape)
    with caplog.at_level(logging.INFO, logger="megatalker_backends"):
        steps.warmup()
    told = [record.message.partition(" frames ")[0].rpartition(":")[0] for record in caplog.records]
    assert told == [f"streaming: warming up {done} of {count}" for done in range(1, count + 1)]
    assert f"frames of each of {streams} streams" in caplog.text


def test_fixed_steps_pad_streams_and_split_frames(tiny_custom_voice: Checkpoint, codes: Tensor, whole: Tensor) -> None:
    config, weights = tiny_custom_voice.codec_config, Weights(tiny_custom_voice.codec_tensor, "decoder")
    decoder = StreamingDecoder(config, weights)
    shape = StepShape(config.num_quantizers, decoder.layout.size, 6, 5, torch.device("cpu"))
    static = StaticSteps()
    steps = FixedSteps(decoder, shape, static)
    assert steps.split(13) == [5, 5, 2, 1]
    with torch.inference_mode():
        steps.warmup()
        assert static.prepared == 16, "a step for each of 1, 2, 4, 6 streams and 1, 2, 4, 5 frames"
        for streams in (5, 3, 1):
            found, _ = steps.run(codes[:13].expand(streams, -1, -1), [torch.zeros(shape.state_size)] * streams)
            for samples in found:
                assert_same(samples, whole[: 13 * FRAME_SAMPLES])
    assert static.prepared == 16, "a step of an unforeseen size was prepared while decoding"


@needs_cuda
@pytest.mark.parametrize(
    "settings",
    [{"kernels": "on", "cuda_graphs": False}, {"kernels": "off"}, {"kernels": "off", "cuda_graphs": False}],
    ids=["launches", "torch graphs", "torch"],
)
def test_every_way_of_running_on_cuda_is_exact(
    tiny_custom_voice: Checkpoint, codes: Tensor, whole: Tensor, settings: dict[str, bool | str]
) -> None:
    codec = StreamingCodec(tiny_custom_voice, on("cuda", **settings))
    states = [codec.open() for _ in range(3)]
    for start in range(0, FRAMES, 13):
        part = codes[start : start + 13]
        for chunk in codec.decode(states, [part] * 3):
            assert_same(chunk, spoken(whole, slice(start, start + len(part))))


@needs_cuda
@pytest.mark.parametrize("voice", ["tiny_custom_voice", "demo"])
def test_kernels_and_torch_agree_thousands_of_frames_into_a_stream(voice: str, request: pytest.FixtureRequest) -> None:
    checkpoint: Checkpoint = request.getfixturevalue(voice)
    codes = random_codes(checkpoint.codec_config, 3_000, seed=6)
    found, expected = (
        codec.decode([codec.open()], [codes])[0]
        for codec in (StreamingCodec(checkpoint, on("cuda", kernels=kernels)) for kernels in ("on", "off"))
    )
    assert_same(found, expected)


@needs_cuda
def test_compiling_is_for_the_cpu(tiny_custom_voice: Checkpoint) -> None:
    with pytest.raises(SettingsError, match="compile is for the CPU"):
        StreamingCodec(tiny_custom_voice, on("cuda", compile=True))


def test_kernels_that_were_asked_for_need_a_device_that_runs_them(tiny_custom_voice: Checkpoint) -> None:
    with pytest.raises(SettingsError, match="kernels is 'on', but the kernels need a CUDA device, not cpu"):
        StreamingCodec(tiny_custom_voice, on("cpu", kernels="on"))


@pytest.mark.slow
def test_the_published_decoder_shape_is_exact_past_the_window(device: str) -> None:
    raw = codec_config(PUBLISHED_0B6)
    config = CodecConfig.parse(raw)
    tensors = {
        name: torch.from_numpy(random_tensor(name, shape, 0, 0)) for name, shape in codec_decoder_shapes(config).items()
    }
    codes = random_codes(config, 76, seed=5)
    decoder, settings = StreamingDecoder(config, Weights(tensors.__getitem__, "decoder")), StreamingSettings()
    make = fused_runner if wants_kernels(config, settings, torch.device(device)) else TorchRunner
    ours: CodecRunner = make(decoder, config, settings, torch.device(device))
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
