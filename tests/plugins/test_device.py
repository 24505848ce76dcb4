import dataclasses
from types import SimpleNamespace

import pytest
import torch

from megatalker.checkpoint import Checkpoint
from megatalker.errors import SettingsError
from megatalker.plugins.device import NO_APPLE_GPU, resolve_device, resolve_dtype, resolve_threads, why_no_device


@pytest.mark.parametrize("name", ["gpu", "", "mps:1", "cuda:x", "meta"])
def test_unknown_device_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(SettingsError, match=rf"device is '{name}', expected auto, cpu, cuda, cuda:N or mps"):
        resolve_device(name)


def test_missing_cuda_device_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"'cuda:99', but this machine has \d+ usable CUDA devices"):
        resolve_device("cuda:99")


def test_auto_takes_cuda_where_there_is_one() -> None:
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


def test_auto_dtype_follows_the_device() -> None:
    assert resolve_dtype("auto", torch.device("cpu")) == torch.float32
    assert resolve_dtype("auto", torch.device("cuda")) == torch.bfloat16
    assert resolve_dtype("float16", torch.device("cpu")) == torch.float16


def test_operations_are_shared_between_threads_where_they_are_large(tiny_custom_voice: Checkpoint) -> None:
    talker = dataclasses.replace(tiny_custom_voice.config.talker, hidden_size=1024)
    large = SimpleNamespace(config=dataclasses.replace(tiny_custom_voice.config, talker=talker))
    cpu, gpu = torch.device("cpu"), torch.device("cuda", 0)
    torch.set_num_threads(3)
    try:
        assert [resolve_threads("auto", checkpoint, cpu) for checkpoint in (tiny_custom_voice, large)] == [1, 3]
        assert resolve_threads("auto", large, gpu) == 1, "they are short there"
        assert resolve_threads(2, large, gpu) == 2
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("name", ["mps", "mps:0"])
def test_an_apple_gpu_is_used_by_name_only(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    device = resolve_device(name)
    assert device == torch.device("mps", 0)
    assert why_no_device(device) is None
    assert resolve_dtype("auto", device) == torch.float32
    assert resolve_device("auto") == torch.device("cpu")


def test_a_missing_apple_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(SettingsError, match=r"device is 'mps', but this torch sees no Apple GPU; use a Mac"):
        resolve_device("mps")
    assert why_no_device(torch.device("mps")) == NO_APPLE_GPU
