"""The `megakernel` decoder that tests of this folder share."""

from collections.abc import Callable, Iterator

import pytest
import torch

from megakernel_helpers import DEVICES, megakernel, within
from megatalker.checkpoint import Checkpoint
from megatalker.plugins.checked import CheckedTalker


@pytest.fixture(scope="module", params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def torch_threads() -> Iterator[Callable[[int], None]]:
    """Sets the threads of torch's operations until the test ends."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def decoder(device: str, tiny_1b7: Checkpoint) -> Iterator[CheckedTalker]:
    """Warm, with room for a batch of two launches."""
    decoder = megakernel(tiny_1b7, device, max_streams=10)
    decoder.warmup()
    yield decoder
    within(decoder)._space.check_guards()
    decoder.close()
