"""Weights in stream order: every tile where the kernel looks for it, and back again."""

import pytest
import torch

from megatalker_kernels.constants import KBLOCK, TILE, WARPS, WEIGHT
from megatalker_kernels.errors import ShapeError
from megatalker_kernels.model import rope_table
from megatalker_kernels.packing import FRAGMENT, PAIRS, PackedWeights, interleave
from megatalker_kernels.shapes import KernelShape, StackShape
from megatalker_kernels.trial import MODELS, random_model

CPU = torch.device("cpu")


def tiny_shape(processors: int = 5) -> KernelShape:
    talker, predictor = MODELS["tiny"]
    return KernelShape.fit(talker, predictor, code_groups=16, max_positions=256, processors=processors, capability=90)


@pytest.mark.parametrize("processors", [1, 5, 7, 132])
def test_matrices_survive_packing_on_any_grid(processors: int) -> None:
    packed = PackedWeights(tiny_shape(processors), CPU)
    generator = torch.Generator().manual_seed(1)
    weights = {
        name: torch.randn(matrix.rows, matrix.columns, generator=generator).to(torch.bfloat16)
        for name, matrix in packed.layout.matrices.items()
    }
    for name, weight in weights.items():
        packed.put(name, weight)
    for name, weight in weights.items():
        assert torch.equal(packed.get(name), weight), name
    every = torch.cat([packed.layout.fragments_of(name).flatten() for name in weights])
    assert torch.equal(every.sort().values, torch.arange(packed.layout.fragments)), "no fragment unused or shared"


def walk(shape: KernelShape, block: int, names: list[str], packed: PackedWeights) -> list[tuple[str, int, int]]:
    """The (matrix, tile, first column) of each stage in the order in which ``fetch_all`` walks a block's stream."""
    stages = []
    for name in names:
        matrix = packed.layout.matrices[name]
        tiles = range(block, matrix.tiles, shape.blocks)
        for pair in (tiles[first : first + 2] for first in range(0, len(tiles), 2)):
            stages += [(name, tile, k) for k in range(0, matrix.columns, shape.stage_columns) for tile in pair]
    return stages


def test_the_stream_of_a_block_is_what_the_kernel_reads() -> None:
    talker = StackShape(1152, 1056, 1, 4, 2, 32, 1152)  # more columns than one stage holds
    shape = KernelShape.fit(talker, MODELS["tiny"][1], code_groups=3, max_positions=64, processors=7, capability=90)
    packed = PackedWeights(shape, CPU)
    weights = {}
    for index, (name, matrix) in enumerate(packed.layout.matrices.items()):
        values = torch.arange(matrix.rows * matrix.columns) * 7 + index  # bfloat16 keeps few of them apart: see below
        weights[name] = (values % 251).float().view(matrix.rows, matrix.columns)
        packed.put(name, weights[name])
    block = 3
    at = int(packed.block_offset[block]) // (FRAGMENT * WEIGHT.itemsize)
    for name, tile, start in walk(shape, block, list(weights), packed):
        columns = min(shape.stage_columns, weights[name].shape[1] - start)
        blocks = list(range(start, start + columns, KBLOCK))
        if columns == shape.stage_columns:  # those of each warp side by side
            blocks = [block for warp in range(WARPS) for block in blocks[warp::WARPS]]
        for k in blocks:
            matrices = packed.data[at].view(len(PAIRS), TILE, KBLOCK // 4)
            for number, row in ((0, 0), (1, 5), (2, 3), (3, 7)):
                eights = weights[name][tile * TILE + row, k : k + KBLOCK].view(-1, 8)
                pairs = eights[:, 2 * PAIRS[number] :][:, :2].flatten()
                assert matrices[number, row].tolist() == pairs.tolist(), (name, tile, k)
            at += 1
    assert at == int(packed.layout.block_starts[block] + packed.layout.block_fragments[block])


def test_order_of_the_matrices() -> None:
    names = list(PackedWeights(tiny_shape(), CPU).layout.matrices)
    assert names[:5] == ["projection", "predictor.0.qkv", "predictor.0.out", "predictor.0.gate_up", "predictor.0.down"]
    assert names[9:12] == ["predictor.head.1", "predictor.head.2", "predictor.head.3"]
    assert names[24] == "talker.0.qkv"
    assert names[-1] == "talker.head"


def test_a_tile_of_gate_and_up_holds_four_of_each() -> None:
    gate, up = torch.arange(16.0).view(8, 2), 100 + torch.arange(16.0).view(8, 2)
    rows = interleave(gate, up)
    assert torch.equal(rows[:4], gate[:4])
    assert torch.equal(rows[4:8], up[:4])
    assert torch.equal(rows[8:12], gate[4:])


def test_a_wrong_shape_is_named() -> None:
    packed = PackedWeights(tiny_shape(), CPU)
    with pytest.raises(ShapeError, match=r"talker\.head has shape \[2, 3\], expected \[1152, 96\]"):
        packed.put("talker.head", torch.zeros(2, 3))


def test_projected_tables_hold_the_predictor_s_input() -> None:
    model = random_model(tiny_shape(), CPU)
    weight, bias = model.weights.get("projection").float(), model.projection_bias
    expected = model.sum_tables[4].float() @ weight.T + bias
    assert model.input_tables[4].shape == (128, 64)
    torch.testing.assert_close(model.input_tables[4].float(), expected, rtol=2**-7, atol=1e-3)


def test_rope_table() -> None:
    table = rope_table(MODELS["tiny"][1], 1e6, 40, CPU)
    angle = torch.tensor(39.0) / 1e6 ** torch.tensor(2 * 3 / 32)
    torch.testing.assert_close(table[39, :, 3], torch.stack((angle.cos(), angle.sin())))
