"""Pages of keys and values: their allocation, and the cache of prompts that begin alike."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from megatalker.errors import CapacityError
from megatalker_backends.megakernel.pages import PagePool
from megatalker_backends.megakernel.prefix import LEAST_ROWS, PrefixCache
from megatalker_backends.megakernel.settings import MegakernelSettings, choose_first_pages, choose_page_limit
from megatalker_kernels.constants import PAGE, ROWS
from megatalker_kernels.errors import GuardError
from megatalker_kernels.shapes import KernelShape
from megatalker_kernels.trial import MODELS
from megatalker_kernels.workspace import GUARD_BYTES, Workspace

CPU = torch.device("cpu")
PAGE_BYTES = 28 * 2 * 8 * PAGE * 128 * 2
"""Bytes of a page of the 0.6B talker."""


def pool_of(pages: int, limit: int | None = None, enlarged: list[int] | None = None) -> PagePool:
    """Make a pool that appends to ``enlarged`` every size it asks for."""
    return PagePool(pages, limit or pages, (enlarged if enlarged is not None else []).append)


def begin(pool: PagePool, slot: int, positions: int) -> tuple[int, ...]:
    with pool.admit({slot: positions}) as (grant,):
        return grant.pages


def test_a_stream_takes_pages_as_it_grows_and_gives_all_back() -> None:
    pool = pool_of(4)
    assert begin(pool, 7, PAGE) == (1,)
    assert pool.grow({7: PAGE}) == []
    (grant,) = pool.grow({7: PAGE + 1})
    assert (grant.slot, grant.first_chunk, grant.pages) == (7, 1, (2,))
    assert begin(pool, 2, PAGE + 1) == (3, 4)
    pool.release(7)
    assert pool.free == 2
    (grant,) = pool.grow({2: 3 * PAGE})
    assert (grant.first_chunk, grant.pages) == (2, (1,))
    assert list(pool.held(2)) == [3, 4, 1]


def test_pages_double_up_to_the_limit_and_only_when_none_is_left() -> None:
    enlarged: list[int] = []
    pool = pool_of(2, 11, enlarged)
    assert begin(pool, 0, 2 * PAGE) == (1, 2)
    assert enlarged == []
    assert begin(pool, 1, PAGE) == (3,)
    assert enlarged == [4]
    assert begin(pool, 2, 6 * PAGE) == (4, 5, 6, 7, 8, 9)
    assert enlarged == [4, 9], "doubling to 8 pages would not suffice"
    pool.release(0)
    pool.grow({1: 3 * PAGE})
    assert enlarged == [4, 9]
    pool.grow({1: 4 * PAGE})
    assert enlarged == [4, 9, 11]
    with pytest.raises(CapacityError, match="2 more pages of 64 positions are needed and 1 of 11 are free"):
        pool.grow({1: 6 * PAGE})
    assert list(pool.held(1)) == [3, 1, 2, 10]
    assert enlarged == [4, 9, 11]


def test_a_request_for_pages_that_cannot_be_made_receives_none() -> None:
    def refuse(pages: int) -> None:
        raise CapacityError(f"no room for {pages}")

    pool = PagePool(2, 8, refuse)
    begin(pool, 0, PAGE)
    for _ in range(2):
        with pytest.raises(CapacityError, match="no room for 4"), pool.admit({1: 2 * PAGE}):
            raise AssertionError("there are not that many pages")
        with pytest.raises(CapacityError, match="no room for 4"):
            pool.grow({0: 3 * PAGE})
    assert (pool.free, list(pool.held(0))) == (7, [1])
    assert begin(pool, 1, PAGE) == (2,)


def test_the_pool_begins_with_256_mib_of_pages_and_never_exceeds_its_limit() -> None:
    shape = KernelShape.fit(*MODELS["0.6B"], code_groups=16, max_positions=4096, processors=132, capability=90)
    limit = choose_page_limit(shape, MegakernelSettings(), 1024)
    assert (limit, choose_first_pages(shape, limit, 1024, CPU)) == (1024 * 64, 2**28 // PAGE_BYTES)
    assert choose_page_limit(shape, MegakernelSettings(pages=5), 8) == choose_first_pages(shape, 5, 8, CPU) == 5


@pytest.mark.parametrize(
    ("streams", "free", "limit", "pages"),
    [
        (8, 80 * 10**9, 8 * 64, 2**28 // PAGE_BYTES),
        (300, 80 * 10**9, 300 * 64, 600),
        (300, 80 * 10**9, 500, 500),
        (300, 10 * 10**9, 300 * 64, 10**10 // 4 // PAGE_BYTES),
    ],
)
def test_a_gpu_has_two_pages_a_stream_from_the_first_where_a_quarter_of_its_free_memory_holds_them(
    monkeypatch: pytest.MonkeyPatch, streams: int, free: int, limit: int, pages: int
) -> None:
    shape = KernelShape.fit(*MODELS["0.6B"], code_groups=16, max_positions=4096, processors=132, capability=90)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda _device: (free, 2 * free))
    assert choose_first_pages(shape, limit, streams, torch.device("cuda")) == pages


def test_growth_is_for_all_slots_or_for_none() -> None:
    pool = pool_of(3)
    begin(pool, 0, PAGE)
    begin(pool, 1, PAGE)
    with pytest.raises(CapacityError, match="2 more pages of 64 positions are needed and 1 of 3 are free"):
        pool.grow({0: PAGE + 1, 1: PAGE + 1})
    assert (pool.free, len(pool.held(0)), len(pool.held(1))) == (1, 1, 1)
    assert len(pool.grow({0: PAGE + 1, 1: PAGE})) == 1


def test_a_stream_that_does_not_begin_holds_nothing() -> None:
    pool = pool_of(2)
    with pytest.raises(CapacityError, match="3 more pages"), pool.admit({0: PAGE, 1: 2 * PAGE}):
        raise AssertionError("there are not that many pages")
    with pytest.raises(ZeroDivisionError), pool.admit({0: PAGE, 1: PAGE}):
        _ = 1 / pool.free
    assert pool.free == 2
    assert begin(pool, 0, 2 * PAGE) == (1, 2)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5 * PAGE)), max_size=60))
def test_no_page_is_lost_or_held_twice(events: list[tuple[int, int]]) -> None:
    pool, positions = pool_of(1, 9), dict[int, int]()
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

    def keys(self, prompt: Tensor) -> list[bytes]:
        (keys,) = self.cache.keys([prompt])
        return keys

    def remember(self, keys: list[bytes], pages: list[int]) -> None:
        self.cache.remember([(keys, pages)])

    def restore(self, keys: list[bytes], pages: list[int]) -> int:
        (positions,) = self.cache.restore([(keys, pages)])
        return positions

    def rows(self, pages: list[int], count: int) -> Tensor:
        """``[layers, 2, kv heads, count, head_dim]``: what lies at a stream's first positions."""
        return self.space.talker_kv[:, pages].permute(0, 2, 3, 1, 4, 5).flatten(3, 4)[:, :, :, :count].clone()


def test_pages_keep_their_contents_when_the_workspace_grows() -> None:
    book = Book(rows=256)
    old = book.space.talker_kv.clone()
    book.space.grow(13)
    assert book.space.pages == book.space.talker_kv.shape[1] == 13
    assert torch.equal(book.space.talker_kv[:, :6], old)
    assert not book.space.talker_kv[:, 6:].any()
    book.space.check_guards()
    book.space._raw["talker_kv"][-GUARD_BYTES] = 0
    book.space.grow(14)
    with pytest.raises(GuardError, match="talker_kv"):
        book.space.check_guards()


def prompt(rows: int, *, other_from: int | None = None, seed: int = 0) -> Tensor:
    """Random rows; from ``other_from`` on others than without."""
    embeds = torch.randn(rows, 96, generator=torch.Generator().manual_seed(0))
    if other_from is not None:
        embeds[other_from:] += 1 + seed
    return embeds


def test_a_prompt_reuses_keys_and_values_of_an_equal_head() -> None:
    book = Book(rows=256)
    first, second = prompt(100), prompt(90, other_from=75)
    book.remember(book.keys(first), [4, 1])
    left = book.rows([4, 1], 72)
    before = book.rows([0, 5], 128)
    assert book.restore(book.keys(second), [0, 5]) == 72
    assert torch.equal(book.rows([0, 5], 72), left)
    assert torch.equal(book.rows([0, 5], 128)[:, :, :, 72:], before[:, :, :, 72:])
    book.space.check_guards()


def test_remembered_passes_outlive_their_pages() -> None:
    book = Book(rows=256)
    keys = book.keys(prompt(100))
    book.remember(keys, [4, 1])
    left = book.rows([4, 1], 96)
    book.space.grow(9)
    assert book.restore(keys, [8, 0]) == 96
    assert torch.equal(book.rows([8, 0], 96), left)


@pytest.mark.parametrize("rows", [LEAST_ROWS, LEAST_ROWS + 1, LEAST_ROWS + ROWS])
def test_the_last_pass_is_never_skipped(rows: int) -> None:
    book = Book(rows=256)
    keys = book.keys(prompt(rows))
    book.remember(keys, [0])
    assert book.restore(keys, [1]) == (rows - 1) // ROWS * ROWS


@pytest.mark.parametrize("rows", [2, ROWS, LEAST_ROWS - 1])
def test_short_prompts_are_computed_anew(rows: int) -> None:
    book = Book(rows=256)
    long, short = prompt(LEAST_ROWS), prompt(rows)
    keys = book.cache.keys([short, long, short])
    assert keys == [[], book.keys(long), []]
    assert book.keys(short) == []


def test_a_difference_in_one_row_is_another_prompt_from_there_on() -> None:
    book = Book(rows=256)
    book.remember(book.keys(prompt(60)), [0])
    assert book.restore(book.keys(prompt(60, other_from=0)), [1]) == 0
    changed = prompt(60)
    changed[17, 3] += 1e-6
    assert book.restore(book.keys(changed), [1]) == 16


def test_recently_used_passes_are_kept_and_heads_longest() -> None:
    kept = LEAST_ROWS - ROWS  # of each prompt
    book = Book(rows=ROWS + 3 * (kept - ROWS))
    old, shared = prompt(LEAST_ROWS, other_from=0), prompt(LEAST_ROWS)
    book.remember(book.keys(old), [0])
    book.remember(book.keys(shared), [1])
    assert book.restore(book.keys(old), [5]) == kept
    newer = [prompt(LEAST_ROWS, other_from=ROWS, seed=seed) for seed in (1, 2, 3)]
    for each in newer:
        assert book.restore(book.keys(each), [2]) >= ROWS
        book.remember(book.keys(each), [2])
    assert book.restore(book.keys(newer[-1]), [5]) == kept
    assert book.restore(book.keys(shared), [5]) == ROWS, "its head was in use, the rest was not"
    assert book.restore(book.keys(old), [5]) == 0


def test_a_prompt_longer_than_the_memory_keeps_its_head() -> None:
    book = Book(rows=2 * ROWS)
    keys = book.keys(prompt(60))
    book.remember(keys, [3])
    assert book.restore(keys, [5]) == 2 * ROWS
    assert torch.equal(book.rows([5], 2 * ROWS), book.rows([3], 2 * ROWS))


def test_forgetting_and_remembering_nothing() -> None:
    book = Book(rows=2 * ROWS)
    keys = book.keys(prompt(60))
    book.remember(keys, [3])
    book.cache.clear()
    assert book.restore(keys, [5]) == 0
    book.remember(keys, [3])
    assert book.restore(keys, [5]) == 2 * ROWS
    assert Book(rows=ROWS - 1).keys(prompt(60)) == []


def test_prompts_that_lie_together_have_the_names_they_have_alone() -> None:
    book = Book(rows=256)
    prompts = [prompt(60), prompt(7), prompt(70, other_from=20), prompt(53)]
    together = book.cache.keys(prompts)
    assert together == [book.keys(each) for each in prompts]


def test_equal_bytes_of_another_type_are_another_prompt() -> None:
    book = Book(rows=256)
    rows = prompt(60).bfloat16()
    assert not set(book.keys(rows)) & set(book.keys(rows.view(torch.float16)))


def test_several_prompts_are_restored_at_once() -> None:
    book = Book(rows=256)
    book.remember(book.keys(prompt(100)), [4, 1])
    left = book.rows([4, 1], 96)
    long, short = book.keys(prompt(97)), book.keys(prompt(50, other_from=20))
    assert book.cache.restore([(long, [0, 5]), (short, [3]), ([], [2])]) == [96, 16, 0]
    assert torch.equal(book.rows([0, 5], 96), left)
    assert torch.equal(book.rows([3], 16), left[:, :, :, :16])


@pytest.mark.parametrize("rows", [256, 4 * ROWS])
def test_several_prompts_are_remembered_as_one_after_another(rows: int) -> None:
    together, alone = Book(rows), Book(rows)
    prompts = [prompt(60), prompt(33), prompt(40, other_from=20), prompt(60, other_from=0), prompt(30)]
    keys = [together.keys(each) for each in prompts]
    held = [(each, [page]) for page, each in enumerate(keys)]
    together.cache.remember(held)
    for one in held:
        alone.cache.remember([one])
    assert together.cache._places == alone.cache._places
    for each in keys:
        found = [book.restore(each, [5]) for book in (together, alone)]
        assert found[0] == found[1]
        assert torch.equal(together.rows([5], found[0]), alone.rows([5], found[0]))
