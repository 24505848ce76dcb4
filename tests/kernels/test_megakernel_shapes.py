"""The rules a model must meet, each named when it fails, and the fit to a device."""

from dataclasses import replace

import pytest

from megatalker_kernels.errors import ShapeError
from megatalker_kernels.shapes import SHARED_MEMORY, KernelShape, StackShape, shared_bytes, why_not
from megatalker_kernels.trial import MODELS


def fit(model: str = "0.6B", *, capability: int = 90, processors: int = 132) -> KernelShape:
    talker, predictor = MODELS[model]
    return KernelShape.fit(
        talker, predictor, code_groups=16, max_positions=4096, processors=processors, capability=capability
    )


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("capability", SHARED_MEMORY)
def test_every_model_fits_every_device(model: str, capability: int) -> None:
    shape = fit(model, capability=capability)
    assert why_not(shape) is None
    limit = SHARED_MEMORY[capability] * 1024
    assert shared_bytes(shape) <= limit < shared_bytes(replace(shape, stages=shape.stages + 1))


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"hidden": 1000}, "hidden size is 1000, expected a multiple of 32"),
        ({"intermediate": 3080}, "intermediate size is 3080"),
        ({"head_dim": 96}, "head size is 96, expected 32, 64 or 128"),
        ({"kv_heads": 5}, "16 heads do not divide by its 5 KV heads"),
        ({"kv_heads": 1}, "16 heads share a KV head"),
        ({"vocab": 3076}, "vocabulary has 3076 ids"),
        ({"vocab": 1024}, "vocabulary has 1024 ids"),
        ({"vocab": 8192}, "vocabulary has 8192 ids"),
        ({"hidden": 4096}, "hidden size 4096 exceeds its vocabulary"),
        ({"layers": 0}, "layer count is 0"),
    ],
)
def test_a_broken_rule_is_named(change: dict[str, int], rule: str) -> None:
    shape = fit()
    reason = why_not(replace(shape, talker=replace(shape.talker, **change)))
    assert reason is not None
    assert rule in reason


def test_fit_refuses_impossible_sizes() -> None:
    with pytest.raises(ShapeError, match="sm_70"):
        fit(capability=70)
    talker = StackShape(1024, 3072, 28, 16, 8, 96, 3072)
    with pytest.raises(ShapeError, match="head size is 96"):
        KernelShape.fit(talker, MODELS["0.6B"][1], code_groups=16, max_positions=64, processors=1, capability=90)


def test_few_processors_own_more_of_the_residual_stream() -> None:
    small, large = fit("1.7B", processors=16), fit("1.7B", processors=132)
    assert (small.owned_tiles, large.owned_tiles) == (16, 2)
