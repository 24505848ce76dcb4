"""Products of a few rows: their bits are those of any other number of rows, in the libraries' own calls."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from commands import run_test_with_avx2
from megatalker_backends.streaming import products
from megatalker_backends.streaming.products import SIZES, lay_out, linear, product

INPUTS, OUTPUTS = 512, 768


def matrix() -> Tensor:
    weight = torch.randn(OUTPUTS, INPUTS, generator=torch.Generator().manual_seed(1)) / INPUTS**0.5
    return weight.t().contiguous().t()


def rows(count: int) -> Tensor:
    return torch.randn(1, count, INPUTS, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("counts", [(1,) * 70, (3, 1, 4, 1, 5, 9, 2, 6), (4, 4, 4), (31, 31), (5,)])
def test_a_row_has_the_same_bits_whatever_it_shares_a_call_with(counts: tuple[int, ...]) -> None:
    weight, bias = matrix(), torch.linspace(-1, 1, OUTPUTS)
    some = rows(sum(counts))
    alone = torch.cat([linear([row[None]], weight, bias)[0] for row in some.unbind(1)], dim=1)
    found = linear(some.split(list(counts), dim=1), weight, bias)
    assert [part.shape[1] for part in found] == list(counts)
    assert torch.equal(torch.cat(found, dim=1), alone)
    torch.testing.assert_close(alone, torch.nn.functional.linear(some, weight, bias), atol=1e-5, rtol=0)


def test_calls_are_of_sizes_whose_rows_are_alike() -> None:
    weight = matrix()
    linear([rows(1)], weight)
    sizes = products._sizes(weight, None)
    assert sizes[0] in (1, SIZES[0])
    some = rows(sizes[-1])[0]
    first = torch.nn.functional.linear(some[: sizes[0]], weight)
    for size in sizes:
        assert torch.equal(torch.nn.functional.linear(some[:size], weight)[: sizes[0]], first)


def test_a_library_whose_rows_are_never_alike_gets_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worst that can be: each row of a call is computed by a kernel of its own."""
    plain = torch.nn.functional.linear

    def uneven(some: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return plain(some, weight, bias) + torch.arange(some.shape[-2])[:, None]

    monkeypatch.setattr(products, "_alike", {})
    monkeypatch.setattr(products.F, "linear", uneven)
    (found,) = linear([rows(6)], matrix())
    torch.testing.assert_close(found, plain(rows(6), matrix()), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("outputs", "inputs", "steps"), [(768, 5376, 32), (384, 2688, 160), (96, 672, 1920), (10, 70, 1920), (1, 672, 1920)]
)
@pytest.mark.parametrize("plus_of_each_step", [False, True])
def test_a_product_of_many_steps_has_the_same_bits_with_any_number_of_threads(
    outputs: int, inputs: int, steps: int, plus_of_each_step: bool, torch_threads: Callable[[int], None]
) -> None:
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(outputs, inputs, generator=generator) / inputs**0.5
    columns = torch.randn(inputs, steps, generator=generator)
    plus = torch.randn(outputs, steps if plus_of_each_step else 1, generator=generator)
    found = []
    for threads in (1, 2, 3, 8):
        torch_threads(threads)
        found.append(product(weight, columns, plus))
    assert all(torch.equal(each, found[0]) for each in found)
    torch.testing.assert_close(found[0], weight @ columns + plus, atol=1e-5, rtol=0)


def test_matrices_keep_their_values_when_they_are_laid_out() -> None:
    class Layer(torch.nn.Module):
        few_rows = ("weight",)

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.arange(6.0).view(2, 3))

    layer = Layer()
    lay_out(torch.nn.Sequential(layer))
    assert layer.weight.stride() == (1, 2)
    assert layer.weight.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_the_bits_are_the_same_with_other_kernels_of_the_library() -> None:
    """With AVX2 MKL has two for the rows of one call."""
    found = run_test_with_avx2(f"{__file__}::test_a_row_has_the_same_bits_whatever_it_shares_a_call_with")
    assert found.returncode == 0, found.stdout
