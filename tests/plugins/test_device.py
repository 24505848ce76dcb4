import pytest
import torch

from megatalker.errors import SettingsError
from megatalker.plugins.device import resolve_device, resolve_dtype


@pytest.mark.parametrize("name", ["gpu", "", "mps", "cuda:x", "meta"])
def test_unknown_device_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(SettingsError, match=rf"device is '{name}', expected auto, cpu, cuda or cuda:N"):
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
