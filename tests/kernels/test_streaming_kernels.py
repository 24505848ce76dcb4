"""The streaming codec's kernels, run on the CPU: products in every tile, attention past its window, a whole stream."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from codec_emulator import CodecEmulator
from emulation import needs_compiler
from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import FRAME_SAMPLES
from megatalker.errors import BackendUnavailableError
from megatalker.plugins.graphs import run_directly
from megatalker_backends.streaming.fused import choice, kernels
from megatalker_backends.streaming.fused import weights as fused_weights
from megatalker_backends.streaming.fused.decoder import MAX_TILES, FusedDecoder
from megatalker_backends.streaming.fused.kernels import Kernels
from megatalker_backends.streaming.fused.runner import FusedRunner
from megatalker_backends.streaming.fused.weights import FusedWeights, PackedProduct, Wave
from megatalker_backends.streaming.model import StreamingDecoder
from megatalker_backends.streaming.settings import StreamingSettings
from megatalker_backends.streaming.weights import Weights
from megatalker_kernels import nvrtc
from megatalker_kernels.codec.launcher import compile_codec, target
from megatalker_kernels.codec.numbers import Numbers
from megatalker_kernels.codec.structures import MAX_FRAMES, Activation
from megatalker_kernels.codec.tiles import (
    FEW,
    TILES,
    WARPGROUP,
    WARPGROUP_TILES,
    Tile,
    Tiling,
    WarpgroupTile,
    choose_tiling,
    warpgroup_depth,
)
from megatalker_kernels.errors import ToolchainError

SLOT = 8
"""Floats before the context, so that a forgotten offset shows."""
needs_nvrtc = pytest.mark.skipif(nvrtc.why_not_compile() is not None, reason=str(nvrtc.why_not_compile()))
EVERY_TILE = [(numbers, tile) for numbers in Numbers for tile in (*TILES, *WARPGROUP_TILES[numbers])]
TERMS = {FEW: 4096, WARPGROUP: 1024}
"""Terms of the longest sums."""
every_tile = pytest.mark.parametrize(
    ("emulator", "tile"), EVERY_TILE, indirect=["emulator"], ids=lambda part: getattr(part, "kernel", None)
)


@pytest.fixture(scope="module", params=list(Numbers))
def emulator(request: pytest.FixtureRequest) -> CodecEmulator:
    return CodecEmulator(request.param)


def step_of(numbers: Numbers) -> float:
    """Relative rounding error of a packed number, at most; nearly nothing where it keeps what float32 has."""
    return 2.0**-11 if numbers is Numbers.HALF else 2.0**-21


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class ProductBench:
    """Two streams' contexts, and kernels that use them."""

    def __init__(self, emulator: CodecEmulator, context: int, rows: int, *, streams: int = 2) -> None:
        self.now = emulator.numbers.pack(noise(streams, SLOT + context, seed=1))
        self.next = torch.zeros_like(self.now)
        tickets = [[now.data_ptr(), after.data_ptr(), 0, 0] for now, after in zip(self.now, self.next, strict=True)]
        self._words = torch.tensor(tickets)
        self.arrivals = torch.zeros(256, dtype=torch.int32)
        self.run = Kernels(emulator, SimpleNamespace(), self._words, rows, self.arrivals)  # type: ignore[arg-type]


def force(monkeypatch: pytest.MonkeyPatch, tile: Tile | WarpgroupTile, shares: int) -> None:
    """All products are computed in such tiles."""
    if isinstance(tile, WarpgroupTile):
        monkeypatch.setattr(fused_weights, "warpgroup_depth", lambda _numbers, _words: tile.depth)
    monkeypatch.setattr(kernels, "choose_tiling", lambda *_sizes, **_options: Tiling(tile, shares))


def packed_matrix(emulator: CodecEmulator, weight: Tensor, **others: Any) -> tuple[PackedProduct, Tensor]:
    """Return a matrix for products, and the weights that it holds."""
    cpu, numbers = torch.device("cpu"), emulator.numbers
    matrix = PackedProduct.packed(numbers, weight, cpu, warpgroups=emulator.has_warpgroups, **others)
    held = numbers.unpack(matrix.weight) * matrix.scale
    torch.testing.assert_close(held, weight, atol=1e-9 * float(weight.abs().max()), rtol=step_of(numbers))
    return matrix, held


def packed_rows(emulator: CodecEmulator, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows as products read them, and the numbers that they hold."""
    packed = emulator.numbers.pack(rows)
    assert packed.shape == (len(rows), emulator.numbers.words(rows.shape[1]))
    held = emulator.numbers.unpack(packed)
    torch.testing.assert_close(held, rows, atol=2.0**-24, rtol=step_of(emulator.numbers))
    return packed, held


@needs_compiler
@every_tile
@pytest.mark.parametrize("shares", [1, 3])
@pytest.mark.parametrize(
    ("time", "channels", "taps", "dilation", "columns"),
    [(1, 64, 1, 1, 48), (3, 24, 7, 3, 24), (70, 40, 7, 9, 104), (37, 16, 2, 1, 104), (260, 8, 3, 5, 8)],
    ids=["linear", "shorter than its context", "many tiles", "two taps", "tiles within a stream"],
)
def test_products_are_exact_in_every_tile(
    emulator: CodecEmulator,
    monkeypatch: pytest.MonkeyPatch,
    tile: Tile | WarpgroupTile,
    shares: int,
    time: int,
    channels: int,
    taps: int,
    dilation: int,
    columns: int,
) -> None:
    force(monkeypatch, tile, shares)
    context = (taps - 1) * dilation
    numbers = emulator.numbers
    bench = ProductBench(emulator, context * channels, time)
    weight, bias = noise(columns, taps, channels, seed=2) / (taps * channels) ** 0.5, noise(columns, seed=3)
    inputs, rows = packed_rows(emulator, noise(2 * time, channels, seed=4))
    residual = noise(2 * time, columns, seed=5)
    repeats = 2 if columns % 16 == 0 else 1
    wave = Wave(noise(columns // repeats, seed=6), noise(columns // repeats, seed=7))
    slot = numbers.words(SLOT)
    matrix, weight = packed_matrix(emulator, weight, bias=bias, dilation=dilation, slot=slot)
    raw, packed = bench.run.multiply_both(matrix, inputs, wave, residual=residual)
    waved = numbers.unpack(packed)

    past = numbers.unpack(bench.now[:, slot:].view(2, context, numbers.words(channels)))
    known = torch.cat((past, rows.view(2, time, channels)), dim=1)
    windows = torch.stack([known[:, tap * dilation :][:, :time] for tap in range(taps)], dim=2).reshape(2 * time, -1)
    expected = windows.double() @ weight.flatten(1).T.double() + bias + residual
    torch.testing.assert_close(raw.double(), expected, atol=5e-6, rtol=0)
    frequency, height = wave.frequency.repeat(repeats), wave.height.repeat(repeats)
    expected += height * (expected * frequency).sin() ** 2
    torch.testing.assert_close(waved.double(), expected, atol=2e-5, rtol=step_of(numbers))
    if taps > 1:
        kept = bench.next[:, slot:].view(2, context, numbers.words(channels))
        assert torch.equal(numbers.unpack(kept), known[:, time:])
    assert not bench.arrivals.any(), "the next product would not know its last block"


@needs_compiler
@pytest.mark.parametrize(
    ("emulator", "tile", "terms"),
    [(numbers, tile, TERMS[tile]) for numbers, tile in EVERY_TILE if tile in TERMS],
    indirect=["emulator"],
)
def test_long_sums_keep_the_precision_of_float32(
    emulator: CodecEmulator, monkeypatch: pytest.MonkeyPatch, tile: Tile | WarpgroupTile, terms: int
) -> None:
    """Tensor cores cut sums off instead of rounding them: with terms of one sign the losses would add up. Warpgroups
    allow it where the terms themselves were rounded.
    """
    rounded = emulator.numbers is Numbers.HALF and isinstance(tile, WarpgroupTile)
    force(monkeypatch, tile, 1)
    inputs, rows = packed_rows(emulator, noise(2, terms, seed=1).abs())
    matrix, weight = packed_matrix(emulator, noise(16, 1, terms, seed=2).abs())
    found = ProductBench(emulator, 0, 1).run.multiply(matrix, inputs)
    torch.testing.assert_close(
        found.double(), rows.double() @ weight[:, 0].T.double(), atol=0, rtol=1e-5 if rounded else 1e-6
    )


@needs_compiler
def test_small_weights_keep_the_precision_of_float32(emulator: CodecEmulator) -> None:
    """Float16 alone would round the low parts of such weights away."""
    inputs, rows = packed_rows(emulator, noise(2, 64, seed=1))
    matrix, weight = packed_matrix(emulator, noise(16, 1, 64, seed=2) * 1e-4)
    found = ProductBench(emulator, 0, 1).run.multiply(matrix, inputs)
    torch.testing.assert_close(found.double(), rows.double() @ weight[:, 0].T.double(), atol=1e-9, rtol=0)


@needs_compiler
@every_tile
def test_sums_are_normalised_and_shaped(
    emulator: CodecEmulator, monkeypatch: pytest.MonkeyPatch, tile: Tile | WarpgroupTile
) -> None:
    force(monkeypatch, tile, 1)
    run, unpack = ProductBench(emulator, 0, 5).run, emulator.numbers.unpack
    packed, rows = packed_rows(emulator, noise(10, 72, seed=1))
    matrix, weight = packed_matrix(emulator, noise(48, 1, 72, seed=2) / 8, bias=noise(48, seed=3))
    summed = F.linear(rows, weight.flatten(1), matrix.bias)
    torch.testing.assert_close(run.multiply(matrix, packed), summed)
    if isinstance(tile, Tile):
        normed = F.rms_norm(rows, (72,), eps=1e-3)
        torch.testing.assert_close(run.multiply(matrix, packed, eps=1e-3), F.linear(normed, weight[:, 0], matrix.bias))
    gated = F.silu(summed[:, ::2]) * summed[:, 1::2]
    for activation, expected in ((Activation.GELU, F.gelu(summed)), (Activation.GATED, gated)):
        found = unpack(run.multiply_packed(matrix, packed, activation=activation))
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=step_of(emulator.numbers))
    samples = run.multiply(matrix, packed, activation=Activation.SAMPLE)
    torch.testing.assert_close(samples, summed[:, :1].clamp(-1, 1))


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(("voice", "parts"), [("tiny_custom_voice", [1, 3]), ("demo", [1, 1])])
def test_a_stream_in_any_chunks_equals_the_torch_decoder(
    emulator: CodecEmulator, voice: str, parts: list[int], request: pytest.FixtureRequest
) -> None:
    """The demo voice ends in ten channels, where kernels take four at a time."""
    checkpoint: Checkpoint = request.getfixturevalue(voice)
    config = checkpoint.codec_config
    decoder = StreamingDecoder(config, Weights(checkpoint.codec_tensor, "decoder"))
    cpu = torch.device("cpu")
    weights = FusedWeights(decoder, cpu, emulator.numbers, warpgroups=emulator.has_warpgroups)
    fused = FusedDecoder(weights, config, emulator)
    sizes = {"groups": config.num_quantizers, "max_streams": 3, "max_frames": 2}
    runner = FusedRunner(fused, cpu, **sizes, prepare=run_directly)
    generator = torch.Generator().manual_seed(1)
    codes = torch.randint(config.codebook_size, (1, sum(parts), config.num_quantizers), generator=generator)
    memory, chunks = runner.open(), []
    with torch.inference_mode():
        expected, _ = decoder(codes, torch.zeros(1, decoder.layout.size))
        for part in codes.split(parts, dim=1):
            samples, (successor,) = runner.run(part, [memory])
            memory.copy_(successor)
            chunks.append(samples)
    most = 0.02 if emulator.numbers is Numbers.HALF else 2e-5
    torch.testing.assert_close(torch.cat(chunks, dim=1), expected, atol=most, rtol=0)


@pytest.mark.parametrize(
    ("streams", "expected"), [(1, [(1, 8), (1, 1)]), (3, [(4, 8), (4, 1)]), (40, [(64, 4)] * 2 + [(64, 1)])]
)
def test_steps_of_many_streams_take_fewer_frames(streams: int, expected: list[tuple[int, int]]) -> None:
    steps = []

    class CountingDecoder:
        context_size = cache_size = 4

        def step(self, words: Tensor, frames: int) -> Tensor:
            steps.append((len(words), frames))
            return torch.full((len(words), frames * FRAME_SAMPLES), float(len(steps)))

    sizes = {"groups": 2, "max_streams": 64, "max_frames": MAX_FRAMES}
    runner = FusedRunner(CountingDecoder(), torch.device("cpu"), **sizes, prepare=run_directly)  # type: ignore[arg-type]
    memories = [runner.open() for _ in range(streams)]
    samples, successors = runner.run(torch.zeros(streams, 9, 2, dtype=torch.int64), memories)
    assert steps == expected
    assert samples.shape == (streams, 9 * FRAME_SAMPLES)
    assert samples[:, -1].tolist() == [len(steps)] * streams
    assert [successor.frames for successor in successors] == [9] * streams


@needs_compiler
@pytest.mark.parametrize("position", [0, 5, 71, 1000])
@pytest.mark.parametrize("frames", [1, MAX_FRAMES])
def test_attention_sees_its_window_alone(emulator: CodecEmulator, position: int, frames: int) -> None:
    """Two heads share keys; one stream of two is looked at, whose ring holds what a real one would."""
    window, width, heads, kv_heads = 72, 24, 4, 2
    config = SimpleNamespace(sliding_window=window, head_dim=width, num_heads=heads, num_kv_heads=kv_heads)
    ring = window - 1 + MAX_FRAMES
    frequencies = 1 / 10_000 ** (torch.arange(width // 2) / (width // 2))
    past = noise(position + frames, heads + 2 * kv_heads, width, seed=1)
    angles = torch.arange(position + frames)[:, None, None] * frequencies
    first, second = past.chunk(2, dim=-1)
    turned = torch.cat((first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()), -1)
    queries, keys, values = turned[:, :heads], turned[:, heads : heads + kv_heads], past[:, heads + kv_heads :]
    cache = torch.full((2, 1 + 2 * ring * 2 * kv_heads * width), torch.nan)
    rings = cache[1, 1:].view(2, ring, 2 * kv_heads, width)
    for frame in range(max(0, position - ring), position):
        rings[1, frame % ring] = torch.cat((keys[frame], values[frame]))

    tickets = [[0, 0, own[1:].data_ptr(), position] for own in cache]
    words = torch.tensor(tickets)
    run = Kernels(emulator, config, words, frames, torch.zeros(1, dtype=torch.int32))  # type: ignore[arg-type]
    found = emulator.numbers.unpack(run.attend(1, past[position:].flatten(1).repeat(2, 1), frequencies)[frames:])

    age = torch.arange(position, position + frames)[:, None] - torch.arange(position + frames)
    mask = (age >= 0) & (age < window)
    keys, values = (part.repeat_interleave(heads // kv_heads, dim=1) for part in (keys, values))
    expected = F.scaled_dot_product_attention(
        queries[position:].transpose(0, 1), keys.transpose(0, 1), values.transpose(0, 1), attn_mask=mask
    )
    most = step_of(emulator.numbers)
    torch.testing.assert_close(found, expected.transpose(0, 1).flatten(1), atol=2e-5, rtol=most)
    for frame in range(position, position + frames):
        torch.testing.assert_close(rings[1, frame % ring, :kv_heads], turned[frame, heads : heads + kv_heads])
        assert torch.equal(rings[1, frame % ring, kv_heads:], past[frame, heads + kv_heads :])


def test_kernels_that_do_not_compile_are_an_error_that_names_the_way_out(
    tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_device: torch.device, _numbers: Numbers) -> None:
        raise ToolchainError("no such architecture")

    monkeypatch.setattr(choice, "CodecKernels", refuse)
    config = tiny_custom_voice.codec_config
    decoder = StreamingDecoder(config, Weights(tiny_custom_voice.codec_tensor, "decoder"))
    with pytest.raises(BackendUnavailableError, match=r"no such architecture; set codecs\.streaming\.kernels to 'off'"):
        choice.fused_runner(decoder, config, StreamingSettings(), torch.device("cpu"))


@pytest.mark.slow
@needs_nvrtc
@pytest.mark.parametrize(
    ("numbers", "capability"),
    [
        *((Numbers.HALVES, capability) for capability in (80, 86, 89, 90, 100, 120)),
        (Numbers.TENSORFLOATS, 80),
        (Numbers.TENSORFLOATS, 90),
        *((Numbers.HALF, capability) for capability in (80, 90)),
    ],
    ids=str,
)
def test_kernels_compile_for_every_architecture(capability: int, numbers: Numbers) -> None:
    usage = compile_codec(*target(capability, numbers)).usage
    assert usage.spilled_bytes <= 256, "some bytes around a loop are no loss, sums of products would be"
    assert usage.registers <= 255


def test_blocks_of_every_tile_fit_into_the_smallest_shared_memory() -> None:
    assert max(tile.shared_bytes for tile in TILES) <= 99 << 10
    for tile in itertools.chain.from_iterable(WARPGROUP_TILES.values()):
        assert tile.resident * (tile.shared_bytes + (1 << 10) + 16 * tile.rows) <= 228 << 10, tile.kernel


@pytest.mark.parametrize("rows", [1, 8, 9, 64, 160, 1920, 15_360, 122_880])
@pytest.mark.parametrize("warpgroups", [None, Numbers.HALVES, Numbers.HALF])
def test_every_stage_of_a_share_has_work(rows: int, warpgroups: Numbers | None) -> None:
    shapes = ((8, 7, 96), (96, 7, 96), (768, 7, 768), (6144, 2, 1536), (512, 1, 1024), (24, 1, 16))
    for columns, taps, channels in shapes:
        words = warpgroups.words(channels) if warpgroups else channels
        chosen = choose_tiling(rows, columns, taps, words, 132, whole=False, warpgroups=warpgroups)
        assert 1 <= chosen.shares <= chosen.tile.stages_of(taps, words)
        if isinstance(chosen.tile, WarpgroupTile):
            assert warpgroups is not None
            assert chosen.tile.depth == warpgroup_depth(warpgroups, words), "weights lie in stages of that depth"
        assert chosen.shares == 1 or chosen.tile.count(rows, columns) <= MAX_TILES
        whole = choose_tiling(rows, columns, taps, words, 132, whole=True, warpgroups=None)
        assert whole.shares == 1
        assert isinstance(whole.tile, Tile)
