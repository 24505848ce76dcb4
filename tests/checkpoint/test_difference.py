"""Weights stored as a difference: what comes back, how much room it takes, and that it is put together once."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from megatalker.checkpoint import composed as composing
from megatalker.checkpoint.composed import composed
from megatalker.checkpoint.difference import DIFFERENCE, WEIGHTS, apply_difference, difference, nearest
from megatalker.errors import CheckpointError


@pytest.fixture
def base() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    shapes = {
        "matrix": (8, 64),
        "kernel": (4, 8, 3),
        "odd": (3, 5),
        "vector": (64,),
        "codebook": (4, 32),
        "same": (2, 32),
    }
    return {name: torch.randn(shape).bfloat16() for name, shape in shapes.items()}


@pytest.fixture
def wanted(base: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    changed = {name: tensor.float() + 0.1 * torch.randn(tensor.shape) for name, tensor in base.items()}
    return {**changed, "same": base["same"].clone(), "new": torch.randn(2, 32)}


def test_what_comes_back_is_near_and_takes_little_room(
    base: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]
) -> None:
    stored = difference(base, wanted, whole=("codebook",))
    made = apply_difference(base, stored)
    assert made.keys() == wanted.keys()
    for name in ("odd", "vector", "codebook", "new", "same"):
        assert torch.equal(made[name], wanted[name].bfloat16()), name
    for name in ("matrix", "kernel"):
        left, whole = (made[name].float() - wanted[name]).std(), (base[name].float() - wanted[name]).std()
        assert left < 0.15 * whole
        assert torch.equal(made[name].float(), nearest(base[name], wanted[name])), "learned with is stored"
        packed = sum(part.nbytes for part_name, part in stored.items() if part_name.startswith(f"{name}."))
        assert packed == wanted[name].numel() * 4.5 / 8
    assert not any(name.startswith("same") for name in stored)


def test_nothing_changes_where_nothing_differs(base: dict[str, torch.Tensor]) -> None:
    assert difference(base, base) == {}
    assert torch.equal(nearest(base["matrix"], base["matrix"].float()), base["matrix"].float())


def test_steps_reach_both_ends() -> None:
    base = {"w": torch.zeros(1, 32).bfloat16()}
    wanted = {"w": torch.linspace(-7, 7, 32).reshape(1, 32)}
    made = apply_difference(base, difference(base, wanted))["w"].float()
    assert made.flatten().tolist() == wanted["w"].round().flatten().tolist()


@pytest.fixture
def parts(
    base: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    whole, addition = tmp_path / "whole", tmp_path / "addition"
    for folder in (whole / "inner", addition / "inner"):
        folder.mkdir(parents=True)
    for part in (".", "inner"):
        save_file(base, whole / part / WEIGHTS)
        save_file(difference(base, wanted), addition / part / DIFFERENCE)
    (whole / "config.json").write_text("old")
    (whole / "vocab.json").write_text("kept")
    (whole / "MODEL_CARD.md").write_text("of another")
    (addition / "config.json").write_text("new")
    return whole, addition


def test_a_folder_is_put_together_and_found_again(
    parts: tuple[Path, Path], base: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    folder = composed("small", *parts)
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert files == ["config.json", f"inner/{WEIGHTS}", WEIGHTS, "vocab.json"]
    assert [(folder / name).read_text() for name in ("config.json", "vocab.json")] == ["new", "kept"]
    expected = apply_difference(base, difference(base, wanted))
    for part in (".", "inner"):
        made = load_file(folder / part / WEIGHTS)
        assert made.keys() == expected.keys()
        assert all(torch.equal(made[name], expected[name]) for name in made)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name], "nothing is left behind"

    monkeypatch.setattr(composing, "_compose", None)  # not called again
    assert composed("small", *parts) == folder


def test_other_content_is_another_folder(parts: tuple[Path, Path]) -> None:
    before = composed("small", *parts)
    (parts[1] / "config.json").write_text("newer")
    assert composed("small", *parts) != before


def test_two_at_once_make_one(parts: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    make = composing._compose

    def slower(*arguments: Path) -> None:
        monkeypatch.setattr(composing, "_compose", make)
        composed("small", *parts)
        make(*arguments)

    monkeypatch.setattr(composing, "_compose", slower)
    folder = composed("small", *parts)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_cache_that_cannot_be_written_is_named(
    parts: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(CheckpointError, match=r"cannot be written.*XDG_CACHE_HOME"):
        composed("small", *parts)
