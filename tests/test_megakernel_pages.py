"""Pages of keys and values: who holds which, and what is remembered of prompts that begin alike."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from megatalker.errors import CapacityError
from megatalker_backends.megakernel.pages import PagePool
from megatalker_backends.megakernel.prefix import PrefixCache
from megatalker_kernels.shapes import PAGE, ROWS, KernelShape
from megatalker_kernels.trial import MODELS
from megatalker_kernels.workspace import Workspace


def begin(pool: PagePool, slot: int, positions: int) -> tuple[int, ...]:
    with pool.admit(slot, positions) as grant:
        return grant.pages


def test_a_stream_takes_pages_as_it_grows_and_gives_all_back() -> None:
    pool = PagePool(4)
    assert begin(pool, 7, PAGE) == (0,)
    assert pool.grow({7: PAGE}) == []
    (grant,) = pool.grow({7: PAGE + 1})
    assert (grant.slot, grant.first_chunk, grant.pages) == (7, 1, (1,))
    assert begin(pool, 2, PAGE + 1) == (2, 3)
    pool.release(7)
    assert pool.free == 2
    (grant,) = pool.grow({2: 3 * PAGE})
    assert (grant.first_chunk, grant.pages) == (2, (0,))
    assert list(pool.held(2)) == [2, 3, 0]


def test_growth_is_for_all_or_for_nobody() -> None:
    pool = PagePool(3)
    begin(pool, 0, PAGE)
    begin(pool, 1, PAGE)
    with pytest.raises(CapacityError, match="2 more pages of 64 positions are needed and 1 of 3 are free"):
        pool.grow({0: PAGE + 1, 1: PAGE + 1})
    assert (pool.free, len(pool.held(0)), len(pool.held(1))) == (1, 1, 1)
    assert len(pool.grow({0: PAGE + 1, 1: PAGE})) == 1


def test_a_stream_that_does_not_begin_holds_nothing() -> None:
    pool = PagePool(2)
    with pytest.raises(CapacityError), pool.admit(0, 3 * PAGE):
        raise AssertionError("there are not that many pages")
    with pytest.raises(ZeroDivisionError), pool.admit(0, 2 * PAGE):
        _ = 1 / 0
    assert pool.free == 2
    assert begin(pool, 0, 2 * PAGE) == (0, 1)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5 * PAGE)), max_size=60))
def test_no_page_is_lost_or_held_twice(events: list[tuple[int, int]]) -> None:
    pool, positions = PagePool(9), dict[int, int]()
    for slot, count in events:
        try:
            if slot not in positions:
                begin(pool, slot, count)
            elif count < positions[slot]:
                pool.release(slot)
                del positions[slot]
                continue
            else:
                pool.grow({slot: count})
            positions[slot] = count
        except CapacityError:
            pass
        held = [page for each in positions for page in pool.held(each)]
        assert len(set(held)) == len(held) == 9 - pool.free
        assert {each: len(pool.held(each)) for each in positions} == {
            each: -(-count // PAGE) for each, count in positions.items()
        }


class Book:
    """A cache on pages full of numbers, so that a copy can be told from every other place."""

    def __init__(self, rows: int, pages: int = 6) -> None:
        talker, predictor = MODELS["tiny"]
        shape = KernelShape.fit(talker, predictor, code_groups=16, max_positions=256, processors=3, capability=90)
        self.space = Workspace(shape, 1, pages, torch.device("cpu"))
        self.space.talker_kv.normal_(generator=torch.Generator().manual_seed(1))
        self.cache = PrefixCache(self.space, rows)

    def rows(self, pages: list[int], count: int) -> Tensor:
        """``[layers, 2, kv heads, count, head_dim]``: what lies at a stream's first positions."""
        return self.space.talker_kv[:, pages].permute(0, 2, 3, 1, 4, 5).flatten(3, 4)[:, :, :, :count].clone()


def prompt(rows: int, *, other_from: int | None = None, seed: int = 0) -> Tensor:
    """Random rows; from ``other_from`` on others than without."""
    embeds = torch.randn(rows, 96, generator=torch.Generator().manual_seed(0))
    if other_from is not None:
        embeds[other_from:] += 1 + seed
    return embeds


def test_a_prompt_gets_back_what_an_equal_head_left() -> None:
    book = Book(rows=256)
    first, second = prompt(100), prompt(90, other_from=75)
    book.cache.remember(book.cache.keys(first), [4, 1])
    left = book.rows([4, 1], 72)
    before = book.rows([0, 5], 128)
    assert book.cache.restore(book.cache.keys(second), [0, 5]) == 72
    assert torch.equal(book.rows([0, 5], 72), left)
    assert torch.equal(book.rows([0, 5], 128)[:, :, :, 72:], before[:, :, :, 72:])
    book.space.check_guards()


@pytest.mark.parametrize("rows", [2, ROWS, ROWS + 1, 3 * ROWS])
def test_the_last_pass_is_never_skipped(rows: int) -> None:
    book = Book(rows=256)
    keys = book.cache.keys(prompt(rows))
    book.cache.remember(keys, [0])
    assert book.cache.restore(keys, [1]) == (rows - 1) // ROWS * ROWS


def test_a_difference_in_one_row_is_another_prompt_from_there_on() -> None:
    book = Book(rows=256)
    book.cache.remember(book.cache.keys(prompt(60)), [0])
    assert book.cache.restore(book.cache.keys(prompt(60, other_from=0)), [1]) == 0
    changed = prompt(60)
    changed[17, 3] += 1e-6
    assert book.cache.restore(book.cache.keys(changed), [1]) == 16


def test_what_was_used_last_is_kept_and_heads_outlive_what_follows_them() -> None:
    book = Book(rows=4 * ROWS)
    old, shared = prompt(3 * ROWS, other_from=0), prompt(3 * ROWS)
    book.cache.remember(book.cache.keys(old), [0])
    book.cache.remember(book.cache.keys(shared), [1])
    assert book.cache.restore(book.cache.keys(old), [5]) == 2 * ROWS
    newer = [prompt(3 * ROWS, other_from=ROWS, seed=seed) for seed in (1, 2, 3)]
    for each in newer:
        assert book.cache.restore(book.cache.keys(each), [2]) >= ROWS
        book.cache.remember(book.cache.keys(each), [2])
    assert book.cache.restore(book.cache.keys(newer[-1]), [5]) == 2 * ROWS
    assert book.cache.restore(book.cache.keys(shared), [5]) == ROWS, "its head was in use, the rest was not"
    assert book.cache.restore(book.cache.keys(old), [5]) == 0


def test_a_prompt_longer_than_the_memory_keeps_its_head() -> None:
    book = Book(rows=2 * ROWS)
    keys = book.cache.keys(prompt(60))
    book.cache.remember(keys, [3])
    assert book.cache.restore(keys, [5]) == 2 * ROWS
    assert torch.equal(book.rows([5], 2 * ROWS), book.rows([3], 2 * ROWS))


def test_forgetting_and_remembering_nothing() -> None:
    book = Book(rows=2 * ROWS)
    keys = book.cache.keys(prompt(60))
    book.cache.remember(keys, [3])
    book.cache.clear()
    assert book.cache.restore(keys, [5]) == 0
    book.cache.remember(keys, [3])
    assert book.cache.restore(keys, [5]) == 2 * ROWS
    assert Book(rows=ROWS - 1).cache.keys(prompt(60)) == []
