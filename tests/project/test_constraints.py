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


def test_the_check_sees_the_public_index_alone(
    scripts: SimpleNamespace, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FIND_LINKS", "INDEX_URL", "EXTRA_INDEX_URL", "DEFAULT_INDEX", "NO_INDEX", "CONSTRAINT", "CERT"):
        monkeypatch.setenv(f"PIP_{name}", "x")
        monkeypatch.setenv(f"UV_{name}", "x")
    monkeypatch.setenv("UV_CACHE_DIR", "kept")
    environment = scripts.resolve.public()
    assert {name for name in environment if name.startswith("UV_")} <= {"UV_CACHE_DIR", *scripts.resolve.REACH.values()}
    assert environment["UV_CACHE_DIR"] == "kept"
    assert environment["SSL_CERT_FILE"] == "x", "uv reaches the index with the settings of pip"
    assert scripts.resolve.INDEX == ("--default-index", "https://pypi.org/simple")


def test_the_check_covers_every_python_that_the_project_names(scripts: SimpleNamespace) -> None:
    assert scripts.resolve.versions() == ["3.11", "3.12", "3.13"]


@pytest.fixture
def asks(scripts: SimpleNamespace, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose packages the check finds among the stub wheels."""
    monkeypatch.setattr(scripts.resolve, "INDEX", ("--no-index", "--find-links", str(index)))
    monkeypatch.delenv("UV_CACHE_DIR", raising=False)
    project = tmp_path / "pyproject.toml"
    needs = ["torch", "audioop-lts; python_version >= '3.13'"]
    project.write_text(f'[project]\nname = "asks"\nversion = "1"\ndependencies = {needs}\n')
    return project


@pytest.mark.parametrize("version", ["3.11", "3.99"])
def test_the_check_chooses_for_a_python_that_may_not_be_here(
    scripts: SimpleNamespace, asks: Path, index: Path, version: str
) -> None:
    write_wheel(index, "audioop-lts", "0.2.2")
    chosen = {item.name: item.version for item in scripts.resolve.lock(asks, FOLDER / "cuda.txt", version)}
    assert chosen["cuda-toolkit"] == "13.0.3.0"
    assert chosen.get("audioop-lts") == {"3.11": None, "3.99": "0.2.2"}[version]


def test_the_check_tells_a_contradiction_in_the_resolvers_words(
    scripts: SimpleNamespace, asks: Path, tmp_path: Path
) -> None:
    (tmp_path / "wrong.txt").write_text("torch==2.13.0\ncuda-toolkit==13.4.3\n")
    with pytest.raises(scripts.dry_run.ResolverError, match=re.escape(TORCH_ASKS_FOR)):
        scripts.resolve.lock(asks, tmp_path / "wrong.txt", "3.11")


@pytest.mark.parametrize(
    ("files", "size"),
    [
        ("wheels = [{ size = 5 }, { size = 7 }]", 7),
        ("sdist = { size = 3 }\nwheels = [{ size = 5 }]", 5),
        ("sdist = { size = 3 }", 3),
    ],
)
def test_the_size_of_a_download(
    scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, files: str, size: int
) -> None:
    said = f'[[packages]]\nname = "some"\nversion = "1.0"\n{files}\n'
    monkeypatch.setattr(scripts.resolve.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=0, stdout=said))
    assert [item.size for item in scripts.resolve.lock(FOLDER, FOLDER / "cuda.txt", "3.11")] == [size]


def answer(scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, *names: str, size: int = 1) -> None:
    chosen = [scripts.resolve.Locked(name, "1.0", size) for name in names]
    monkeypatch.setattr(scripts.resolve, "lock", lambda *_arguments: chosen)


def test_a_version_left_open_is_a_fault(scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(scripts, monkeypatch, "torch", "nvidia-cublas", "triton", "Typing.Extensions")
    assert scripts.resolve.check_set("cuda", "3.12") is None
    answer(scripts, monkeypatch, "torch", "Some_Thing")
    fault = scripts.resolve.check_set("cuda", "3.12")
    assert fault == "cuda leaves versions open on Python 3.12, pin them in base.txt: some-thing==1.0"


def test_a_set_that_does_not_resolve_is_a_fault(scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise scripts.resolve.ResolverError("torch depends on cuda-toolkit==13.0.3")

    monkeypatch.setattr(scripts.resolve, "lock", refuse)
    fault = scripts.resolve.check_set("cpu", "3.13")
    assert fault == "cpu does not resolve on Python 3.13:\ntorch depends on cuda-toolkit==13.0.3"


@pytest.mark.parametrize(("measured", "right"), [(3.0, True), (2.9, True), (3.4, False), (2.0, False)])
def test_the_stated_size_is_checked(
    scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, measured: float, right: bool
) -> None:
    answer(scripts, monkeypatch, "torch", "triton", size=int(measured / 2 * 1e9))
    fault = scripts.resolve.check_size()
    assert (fault is None) is right
    if fault is not None:
        assert f"# size: {measured:.1f} GB to download" in fault


def test_a_fault_fails_the_check_and_is_told(
    scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scripts.resolve, "versions", lambda: ["3.11"])
    monkeypatch.setattr(scripts.resolve, "UNTRIED", ["3.99"])
    monkeypatch.setattr(
        scripts.resolve, "check_set", lambda name, version: f"{name} is wrong" if version == "3.99" else None
    )
    monkeypatch.setattr(scripts.resolve, "check_size", lambda: "another size")
    with pytest.raises(SystemExit, match="cpu is wrong\ncuda is wrong\nnewest is wrong\nanother size"):
        scripts.resolve.main()
    assert capsys.readouterr().out.splitlines() == [
        "cpu on Python 3.11: resolves",
        "cuda on Python 3.11: resolves",
        "newest on Python 3.11: resolves",
        "cpu on Python 3.99: FAILS",
        "cuda on Python 3.99: FAILS",
        "newest on Python 3.99: FAILS",
    ]
