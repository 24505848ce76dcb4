"""Memory of tensors that were read can be let go of, and comes back from the file."""

import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.pages import release_pages
from megatalker.checkpoint.tensors import TensorFiles

MEGABYTES = 64


def resident_file_pages() -> int:
    """Megabytes of mapped files that this process holds in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("RssFile"))) // 1024


@pytest.mark.skipif(sys.platform != "linux", reason="pages are let go of under Linux only")
def test_pages_of_a_mapped_tensor_go_and_come_back(tmp_path: Path) -> None:
    save_file({"large": torch.arange(MEGABYTES * 2**18, dtype=torch.float32)}, tmp_path / "x.safetensors")
    with safe_open(tmp_path / "x.safetensors", framework="pt") as file:
        tensor = file.get_tensor("large")
        total = tensor.sum()
        held = resident_file_pages()
        release_pages([tensor])
        assert held - resident_file_pages() > MEGABYTES // 2
        assert tensor.sum() == total


def test_a_checkpoint_reads_the_same_afterwards(tiny_custom_voice: Checkpoint) -> None:
    names = tiny_custom_voice.tensor_names()
    kept = {name: tiny_custom_voice.tensor(name) for name in names}
    before = {name: tensor.clone() for name, tensor in kept.items()}
    tiny_custom_voice.release_pages()
    for name in names:
        assert torch.equal(kept[name], before[name])
        assert torch.equal(tiny_custom_voice.tensor(name), before[name])


@pytest.mark.skipif(sys.platform != "linux", reason="pages are let go of under Linux only")
def test_reading_a_tensor_lets_go_of_the_one_before(tmp_path: Path) -> None:
    tensors = {name: torch.arange(MEGABYTES * 2**18, dtype=torch.float32) for name in "abc"}
    save_file(tensors, tmp_path / "model.safetensors")
    files, before = TensorFiles(tmp_path), resident_file_pages()
    kept = [files.tensor(name) for name in "abc"]
    assert resident_file_pages() - before < 3 * MEGABYTES // 2
    assert all(torch.equal(read, tensors[name]) for read, name in zip(kept, "abc", strict=True))
