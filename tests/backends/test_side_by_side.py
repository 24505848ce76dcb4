"""Work on several frames in several threads: in order, each thread alone with its operations, after a fork, too."""

import os
import threading
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from megatalker_backends.streaming.side_by_side import side_by_side


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_results_come_in_the_order_of_their_parts(
    threads: int, count: int, torch_threads: Callable[[int], None]
) -> None:
    torch_threads(threads)
    ones, twos = [torch.full((2,), float(n)) for n in range(count)], [torch.tensor(float(n)) for n in range(count)]
    found = side_by_side(lambda one, two: one * 10 + two, ones, twos)
    assert [each.tolist() for each in found] == [[11.0 * n, 11.0 * n] for n in range(count)]


def test_operations_of_a_part_use_one_thread_and_those_of_others_as_many_as_before(
    torch_threads: Callable[[int], None],
) -> None:
    torch_threads(3)
    seen: set[tuple[str, int]] = set()

    def look(part: Tensor) -> Tensor:
        seen.add((threading.current_thread().name, torch.get_num_threads()))
        return part

    side_by_side(look, [torch.zeros(1)] * 50)
    assert {threads for _, threads in seen} == {1}
    assert all(name.startswith("megatalker-codec") for name, _ in seen)
    assert torch.get_num_threads() == 3
    elsewhere: list[int] = []
    other = threading.Thread(target=lambda: elsewhere.append(torch.get_num_threads()))
    other.start()
    other.join()
    assert elsewhere == [3]


def test_an_error_in_one_part_reaches_the_caller(torch_threads: Callable[[int], None]) -> None:
    torch_threads(2)

    def fail(part: Tensor) -> Tensor:
        if part.item() == 3:
            raise ValueError("part 3")
        return part

    with pytest.raises(ValueError, match="part 3"):
        side_by_side(fail, [torch.tensor(n) for n in range(6)])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_gets_threads_of_its_own(torch_threads: Callable[[int], None]) -> None:
    torch_threads(2)
    parts = [torch.tensor(n) for n in range(4)]
    side_by_side(lambda part: part, parts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: threads are lost, as they are meant to be
        child = os.fork()
    if child == 0:
        found = side_by_side(lambda part: part, parts)
        os._exit(0 if [each.item() for each in found] == [0, 1, 2, 3] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
