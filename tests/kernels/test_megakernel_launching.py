"""Arguments of each launch of the kernel, recorded by a driver that runs nothing."""

import ctypes
from typing import Any

import pytest
import torch

from megatalker_benchmarks.timed_device import IdleModule
from megatalker_kernels.launching import Kernel
from megatalker_kernels.module import Arguments
from megatalker_kernels.params import Structures
from megatalker_kernels.plan import REMEMBERED, _plan_of_one, plan_rows, remember_plans
from megatalker_kernels.schedule import Launch, PackedRows, Row
from megatalker_kernels.shapes import KernelShape
from megatalker_kernels.trial import MODELS, random_model
from megatalker_kernels.workspace import Workspace

CPU = torch.device("cpu")
SHAPE = KernelShape.fit(*MODELS["tiny"], code_groups=16, max_positions=256, processors=3, capability=90)
PARAMS: Any = Structures(SHAPE).params
WIDE_PARAMS: Any = Structures(SHAPE).wide_params


def told(arguments: Arguments, kind: Any) -> Any:
    """A copy of the only argument."""
    return kind.from_buffer_copy(
        ctypes.string_at(ctypes.c_void_p.from_address(arguments.address).value, ctypes.sizeof(kind))
    )


class RecordingModule(IdleModule):
    """A module that records launches instead of running them."""

    def __init__(self) -> None:
        super().__init__(SHAPE)
        self.launched: list[Any] = []

    def start_together(self, function: str, blocks: int, threads: int, shared_bytes: int, arguments: Arguments) -> None:
        self.launched.append(told(arguments, {"megatalker_frame": PARAMS, "megatalker_wide": WIDE_PARAMS}[function]))


def test_a_launch_gets_the_current_address_of_the_pages() -> None:
    listener = RecordingModule()
    space = Workspace(SHAPE, slots=1, pages=2, device=CPU)
    kernel = Kernel(random_model(SHAPE, CPU), space, listener, listener)
    seen = []
    for pages in (2, 5, 6):
        if pages > space.pages:
            space.grow(pages)
        for wide in (False, True):
            kernel.run(Launch("decode", (Row(0, 0),), wide=wide))
            seen.append((space.talker_kv.data_ptr(), pages))
    launched = [params.to for params in listener.launched]
    assert [(to.talker_kv, to.pages) for to in launched] == seen
    assert {(to.predictor_kv, to.stream) for to in launched} == {
        (space.predictor_kv.data_ptr(), space.stream.data_ptr()),
        (space.wide.predictor_kv.data_ptr(), space.stream.data_ptr()),
    }


@pytest.mark.parametrize(
    "parts", [[(4, range(1), True)], [(0, range(3, 40), False), (2, range(120, 300), True), (7, range(2), True)]]
)
def test_rows_of_prompts_are_planned_as_rows_one_by_one(parts: list[tuple[int, range, bool]]) -> None:
    shape = KernelShape.fit(*MODELS["0.6B"], code_groups=16, max_positions=4096, processors=132, capability=90)
    rows = PackedRows(parts)
    single = tuple(
        Row(slot, position, heard=heard and position == positions[-1])
        for slot, positions, heard in parts
        for position in positions
    )
    assert (len(rows), tuple(rows)) == (len(single), single)
    ours, theirs = (plan_rows(shape, Launch("prefill", some, wide=True)).joined() for some in (rows, single))
    assert torch.equal(ours, theirs)


def test_plans_of_lone_prompts_are_remembered_before_the_first() -> None:
    remember_plans(SHAPE)
    made = _plan_of_one.cache_info().misses
    for length in (1, REMEMBERED):
        plan_rows(SHAPE, Launch("prefill", PackedRows([(2, range(length), True)]), wide=True))
    assert _plan_of_one.cache_info().misses == made
