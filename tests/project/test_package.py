"""The published packages: all of them and nothing else, with the description of the project."""

import subprocess
import tomllib
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import BytesParser
from pathlib import Path, PurePosixPath

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
PACKAGES = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    builder = WheelBuilder(str(ROOT))
    (path,) = builder.build(directory=str(tmp_path_factory.mktemp("wheel")), versions=["standard"])
    with zipfile.ZipFile(path) as opened:
        yield opened


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return BytesParser().parsebytes(wheel.read(name))


def test_every_file_of_the_packages_and_no_other(wheel: zipfile.ZipFile) -> None:
    listing = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True)
    ours = {str(PurePosixPath(*PurePosixPath(name).parts[1:])) for name in listing.stdout.splitlines()}
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == ours


@pytest.mark.parametrize(
    "name",
    [
        "megatalker/py.typed",
        "megatalker/__init__.pyi",
        "megatalker/checkpoint/demo/model.safetensors",
        "megatalker/checkpoint/demo/speech_tokenizer/model.safetensors",
        "megatalker/checkpoint/demo/MODEL_CARD.md",
        "megatalker/checkpoint/demo_base/difference.safetensors",
        "megatalker/checkpoint/demo_base/speech_tokenizer/difference.safetensors",
        "megatalker/checkpoint/demo_base/MODEL_CARD.md",
        "megatalker/serving/server/static/index.html",
        "megatalker/serving/server/static/player_worklet.js",
        "megatalker_kernels/csrc/frame.cu",
        "megatalker_kernels/csrc/codec/codec.cu",
        "megatalker_pipecat/page/client/index.html",
    ],
)
def test_files_other_than_python_are_packaged(wheel: zipfile.ZipFile, name: str) -> None:
    assert wheel.getinfo(name).file_size >= (0 if name.endswith("py.typed") else 100)


def test_a_wheel_is_small_enough_to_publish(wheel: zipfile.ZipFile) -> None:
    assert wheel.filename is not None
    assert Path(wheel.filename).stat().st_size < 20e6


def test_it_says_which_python_and_which_extras(metadata: Message) -> None:
    assert metadata["Requires-Python"] == PROJECT["requires-python"]
    lowest = PROJECT["requires-python"].removeprefix(">=")
    pythons = [line.rpartition(" ")[2] for line in metadata.get_all("Classifier", []) if "Python :: 3." in line]
    assert pythons[0] == lowest
    assert set(metadata.get_all("Provides-Extra", [])) == PROJECT["optional-dependencies"].keys()
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata["License-Expression"] == PROJECT["license"]


def test_commands_and_plugins_are_registered(wheel: zipfile.ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    text = wheel.read(name).decode()
    groups = {"console_scripts": PROJECT["scripts"], **PROJECT["entry-points"]}
    for group, entries in groups.items():
        assert f"[{group}]" in text
        for entry, target in entries.items():
            assert f"{entry} = {target}\n" in text
