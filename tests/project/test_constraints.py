"""The sets of constraints, on stub wheels that ask for what the real ones do; `make resolve` asks the real ones."""

import ctypes
import importlib
import os
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

FOLDER = Path(__file__).parents[2] / "constraints"
MODULES = ("dry_run", "choose", "resolve")
TORCH_ASKS_FOR = "cuda-toolkit==13.0.3"
SIZE = "3.0 GB to download, 6.0 GB on disk"


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The three scripts, imported as they import each other."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    for name in MODULES:
        del sys.modules[name]


def write_wheel(folder: Path, name: str, version: str, *needs: str) -> None:
    folder.mkdir(exist_ok=True)
    information = f"{name.replace('-', '_')}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + "".join(
        f"Requires-Dist: {need}\n" for need in needs
    )
    with zipfile.ZipFile(folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{information}/METADATA", metadata)
        wheel.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{information}/RECORD", "")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All that pip can see: the default build of torch and every CUDA toolkit it might be given."""
    folder = tmp_path / "index"
    write_wheel(folder, "torch", "2.13.0", TORCH_ASKS_FOR, "nvidia-nvjitlink>=13.0.88,<14", "triton==3.7.1")
    write_wheel(folder, "triton", "3.7.1")
    for version in ("13.0.3.0", "13.4.3"):
        write_wheel(folder, "cuda-toolkit", version)
    for version in ("13.0.88", "13.5.37"):
        write_wheel(folder, "nvidia-nvjitlink", version)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    return folder


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_a_set_agrees_with_what_torch_asks_for(scripts: SimpleNamespace, index: Path, name: str) -> None:
    chosen = {item.name: item.version for item in scripts.dry_run.dry_run(["torch"], FOLDER / f"{name}.txt")}
    assert chosen["torch"] == "2.13.0"
    assert chosen["cuda-toolkit"] == "13.0.3.0"


@pytest.mark.parametrize(("name", "version"), [("cpu", "2.13.0+cpu"), ("cuda", "2.13.0")])
def test_where_both_builds_are_offered(scripts: SimpleNamespace, index: Path, name: str, version: str) -> None:
    write_wheel(index, "torch", "2.13.0+cpu")
    assert scripts.dry_run.dry_run(["torch"], FOLDER / f"{name}.txt")[0].version == version


def test_a_contradiction_is_told_in_pips_words(scripts: SimpleNamespace, index: Path, tmp_path: Path) -> None:
    (tmp_path / "wrong.txt").write_text("torch==2.13.0\ncuda-toolkit==13.4.3\n")
    with pytest.raises(scripts.dry_run.ResolverError, match=re.escape(TORCH_ASKS_FOR)):
        scripts.dry_run.dry_run(["torch"], tmp_path / "wrong.txt")


@pytest.mark.parametrize(
    ("torch", "driver", "offered", "expected", "says"),
    [
        ("auto", True, True, "cuda", f"an NVIDIA driver is here. {SIZE}"),
        ("cuda", False, True, "cuda", f"no NVIDIA driver is here. {SIZE}"),
        ("auto", False, True, "cpu", "for CPUs: no NVIDIA driver is here"),
        ("cpu", True, True, "cpu", "for CPUs: as asked for"),
        ("auto", False, False, "cpu", "default build, which brings CUDA: no NVIDIA driver is here, but"),
        ("cpu", True, False, "cpu", "default build, which brings CUDA: as asked for, but"),
    ],
)
def test_choice(
    scripts: SimpleNamespace,
    index: Path,
    monkeypatch: pytest.MonkeyPatch,
    torch: str,
    driver: bool,
    offered: bool,
    expected: str,
    says: str,
) -> None:
    monkeypatch.setattr(scripts.choose, "has_driver", lambda: driver)
    monkeypatch.setattr(sys, "platform", "linux")
    if offered:
        write_wheel(index, "torch", "2.13.0+cpu")
    name, options, sentence = scripts.choose.choose(torch, "")
    assert (name, options) == (expected, [])
    assert says in sentence
    assert SIZE in sentence  # the cost of CUDA is said before any of it is downloaded


def test_a_page_of_cpu_builds_is_used_only_where_the_index_has_none(
    scripts: SimpleNamespace, index: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page"
    write_wheel(page, "torch", "2.13.0+cpu")
    assert scripts.choose.cpu_options(str(page)) == ["--find-links", str(page)]
    write_wheel(index, "torch", "2.13.0+cpu")
    assert scripts.choose.cpu_options(str(page)) == []


def test_off_linux_the_default_build_is_for_cpus(scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts.choose, "has_driver", lambda: False)
    monkeypatch.setattr(sys, "platform", "darwin")
    name, options, sentence = scripts.choose.choose("auto", "http://nowhere.invalid/")
    assert (name, options) == ("cpu", [])
    assert "GB" not in sentence


def start(scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["choose.py", *arguments])
    scripts.choose.main()


def test_the_choice_is_made_once_and_pip_follows_it(
    scripts: SimpleNamespace,
    index: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(scripts.choose, "has_driver", lambda: False)
    monkeypatch.setattr(sys, "platform", "linux")
    write_wheel(tmp_path / "page", "torch", "2.13.0+cpu")
    target = tmp_path / "constraints.txt"
    arguments = ("--cpu-wheels", str(tmp_path / "page"), str(target))
    start(scripts, monkeypatch, *arguments)
    assert "torch for CPUs" in capsys.readouterr().out
    assert scripts.dry_run.dry_run(["torch"], target)[0].version == "2.13.0+cpu"

    written = target.stat().st_mtime_ns
    start(scripts, monkeypatch, *arguments)
    start(scripts, monkeypatch, "--torch", "cpu", *arguments)
    assert capsys.readouterr().out == ""
    assert target.stat().st_mtime_ns == written
    with pytest.raises(SystemExit, match=r"made for TORCH=cpu, not cuda: run `make clean`"):
        start(scripts, monkeypatch, "--torch", "cuda", *arguments)


def test_no_build_of_torch_at_all(
    scripts: SimpleNamespace, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (index / "torch-2.13.0-py3-none-any.whl").unlink()
    with pytest.raises(SystemExit, match=r"(?s)pip cannot choose a build of torch.*torch==2\.13\.0"):
        start(scripts, monkeypatch, "--torch", "cpu", str(tmp_path / "constraints.txt"))
    assert not (tmp_path / "constraints.txt").exists()


def libcuda(answer: int | None) -> object:
    def load(name: str) -> SimpleNamespace:
        if answer is None:
            raise OSError(name)
        return SimpleNamespace(cuInit=lambda flags: answer)

    return load


@pytest.mark.parametrize(("answer", "expected"), [(None, False), (100, False), (0, True)])
def test_driver(scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, answer: int | None, expected: bool) -> None:
    monkeypatch.setattr(ctypes, "CDLL", libcuda(answer))
    assert scripts.choose.has_driver() is expected


def test_the_check_sees_the_public_index_alone(scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIND_LINKS", "INDEX_URL", "EXTRA_INDEX_URL", "NO_INDEX", "CONSTRAINT", "CERT"):
        monkeypatch.setenv(f"PIP_{name}", "x")
    environment = scripts.resolve.public()
    assert {name for name in environment if name.startswith("PIP_")} <= scripts.resolve.KEPT | {"PIP_CONFIG_FILE"}
    assert environment["PIP_CERT"] == "x"
    assert environment["PIP_CONFIG_FILE"] == os.devnull


def test_the_check_covers_every_python_that_the_project_names(scripts: SimpleNamespace) -> None:
    assert scripts.resolve.versions() == ["3.11", "3.12", "3.13"]


def test_interpreters(scripts: SimpleNamespace) -> None:
    assert scripts.resolve.interpreter("{}.{}".format(*sys.version_info[:2])) == sys.executable
    assert scripts.resolve.interpreter("3.99") is None


def answer(scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    chosen = [scripts.dry_run.Chosen(name, "1.0", f"file:///{name}") for name in names]
    monkeypatch.setattr(scripts.resolve, "dry_run", lambda *_arguments, **_options: chosen)


def test_a_version_left_open_is_a_fault(scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(scripts, monkeypatch, "megatalker", "torch", "nvidia-cublas", "triton", "Typing.Extensions")
    assert scripts.resolve.check_set("cuda", "3.12", "python3.12") is None
    answer(scripts, monkeypatch, "torch", "Some_Thing")
    fault = scripts.resolve.check_set("cuda", "3.12", "python3.12")
    assert fault == "cuda leaves versions open on Python 3.12, pin them in base.txt: some-thing==1.0"


def test_a_set_that_does_not_resolve_is_a_fault(scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise scripts.resolve.ResolverError("torch depends on cuda-toolkit==13.0.3")

    monkeypatch.setattr(scripts.resolve, "dry_run", refuse)
    fault = scripts.resolve.check_set("cpu", "3.13", "python3.13")
    assert fault == "cpu does not resolve on Python 3.13:\ntorch depends on cuda-toolkit==13.0.3"


@pytest.mark.parametrize(("measured", "right"), [(3.0, True), (2.9, True), (3.4, False), (2.0, False)])
def test_the_stated_size_is_checked(
    scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, measured: float, right: bool
) -> None:
    answer(scripts, monkeypatch, "torch")
    monkeypatch.setattr(scripts.resolve, "gigabytes", lambda _chosen: measured)
    fault = scripts.resolve.check_size()
    assert (fault is None) is right
    if fault is not None:
        assert f"# size: {measured:.1f} GB to download" in fault


def check_all(scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, fault: str | None) -> None:
    here = "{}.{}".format(*sys.version_info[:2])
    monkeypatch.setattr(scripts.resolve, "versions", lambda: [here, "3.99"])
    monkeypatch.setattr(scripts.resolve, "check_set", lambda name, _version, _python: fault if name == "cpu" else None)
    monkeypatch.setattr(scripts.resolve, "check_size", lambda: None)
    scripts.resolve.main()


def test_a_missing_python_is_named_and_fails_in_ci(
    scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CI", raising=False)
    check_all(scripts, monkeypatch, fault=None)
    assert "NOT CHECKED on Python 3.99" in capsys.readouterr().out
    monkeypatch.setenv("CI", "true")
    with pytest.raises(SystemExit, match=r"CI has to check Python 3\.99"):
        check_all(scripts, monkeypatch, fault=None)


def test_a_fault_fails_the_check_and_is_told(
    scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(SystemExit, match="cpu is wrong"):
        check_all(scripts, monkeypatch, fault="cpu is wrong")
    assert re.findall(r"^(\w+) on Python .*: (\w+)$", capsys.readouterr().out, re.MULTILINE)[:2] == [
        ("cpu", "FAILS"),
        ("cuda", "resolves"),
    ]
