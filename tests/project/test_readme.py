"""Every snippet of the README and of the pages below runs, as it stands there."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from commands import run_program
from kept import compiling
from megatalker import Checkpoint
from megatalker.prompt.rewriting.lexicon_files import read_lexicon
from serving import serving
from snippets import AT_SERVER, COMPARES, Snippet, run_at_server, snippets
from waiting import PROCESS_S

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NAMES = (
    "quickstart",
    "install",
    "hardware",
    "voices",
    "text",
    "markup",
    "agents",
    "apps",
    "websocket",
    "realtime",
    "settings",
    "livekit",
    "moving",
    "telephony",
    "synthetic",
    "server-voices",
    "keys",
    "proxies",
    "operation",
    "verify",
    "quality",
    "benchmarks",
    "comparison",
    "conformance",
)
PAGES = (ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in (*NAMES, "writing-a-backend")))
WITH_BASE = "with a Base checkpoint"
"""Title of snippets that clone: they get a small checkpoint in place of the published one."""
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
PROGRAMS = {
    "megatalker": "from megatalker.cli.main import run; run()",
    "megatalker-agent": "from megatalker_agent import run; run()",
}


def outside_of_xdist() -> dict[str, str]:
    """The environment without what tells a pytest that it is one of several workers."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}


def named(language: str) -> list[pytest.param]:
    elsewhere = (AT_SERVER, WITH_BASE, COMPARES, "conftest.py")  # the last: tests/conformance/test_third_party.py
    return [
        pytest.param(snippet, id=snippet.place)
        for snippet in snippets(*PAGES)
        if snippet.language == language and snippet.title not in elsewhere
    ]


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """A directory in which the snippets' files lie; of several settings files the last."""
    for snippet in snippets(*PAGES):
        if snippet.language == "toml" and snippet.title == "megatalker.toml":
            (tmp_path / snippet.title).write_text(snippet.text)
    return tmp_path


def test_the_readme_is_short() -> None:
    assert len(PAGES[0].read_text().splitlines()) <= 120


def test_only_known_kinds_of_snippets() -> None:
    assert {snippet.language for snippet in snippets(*PAGES)} <= {
        *("bash", "javascript", "python", "toml", "text"),
        *("nginx", "yaml"),  # configurations of others' programs, which are not here to try them
    }


@pytest.mark.parametrize(
    "snippet", [pytest.param(one, id=one.place) for one in snippets(*PAGES) if one.title == AT_SERVER]
)
def test_snippet_that_asks_a_server(snippet: Snippet, workplace: Path) -> None:
    if snippet.language == "bash" and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    with serving(Checkpoint.open("demo"), backend="reference", max_frames=25) as served:
        done = run_at_server(snippet, served.url, workplace)
    assert done.returncode == 0, done.stderr
    if "hello.wav" in snippet.text and snippet.language == "bash":
        assert (workplace / "hello.wav").read_bytes().startswith(b"RIFF")


@pytest.mark.parametrize("snippet", named("python"))
def test_python_snippet(snippet: Snippet, workplace: Path) -> None:
    if snippet.title is not None:
        assert snippet.text == (ROOT / snippet.title).read_text(), "the page shows this file whole"
        return
    with compiling("demo"):
        done = run_program(snippet.text, cwd=workplace)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "snippet", [pytest.param(one, id=one.place) for one in snippets(*PAGES) if one.title == WITH_BASE]
)
def test_snippet_that_clones(
    snippet: Snippet, tiny_base: Checkpoint, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workplace)
    monkeypatch.setenv("MEGATALKER_BACKEND", "reference")
    shutil.copy(ROOT / "docs" / "demo.wav", "voice.wav")
    (program, replaced) = re.subn(r"Qwen/[\w.-]+-Base", str(tiny_base.folder), snippet.text)
    assert replaced == 1
    exec(program, {})
    assert Path("anna.wav").read_bytes().startswith(b"RIFF")


@pytest.mark.parametrize("snippet", named("toml"))
def test_toml_snippet(snippet: Snippet, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if snippet.title == "lexicon.toml":
        (workplace / snippet.title).write_text(snippet.text)
        read_lexicon(workplace / snippet.title)
        return
    if snippet.title != "megatalker.toml":
        assert snippet.title is not None, "a settings snippet names its file"
        assert snippet.text == (ROOT / snippet.title).read_text(), "the page shows this file whole"
        return
    from megatalker import BackendRegistry, Settings

    monkeypatch.chdir(workplace)
    (workplace / snippet.title).write_text(snippet.text)
    settings = Settings.read()
    for name, own in settings.backends.items():
        BackendRegistry.installed().talker(name).settings.model_validate(dict(own))


VARIABLES = re.compile(r"^(\w+=(\$\([^)]*\)|[^\s;]+);? )+")
"""Set in front of a command."""


@pytest.mark.parametrize("snippet", named("text"))
def test_command_that_needs_more_than_this_machine(snippet: Snippet) -> None:
    """Long or downloading commands: their options and names are checked, the work is not done."""
    for line in snippet.text.splitlines():
        program, *arguments = shlex.split(VARIABLES.sub("", line), comments=True)
        if program == "curl":
            continue  # what it asks for needs another checkpoint; tests/serving asks for it
        if program == "pip":
            named = re.findall(r"(?:megatalker|\.|\))\[([\w,-]+)\]", line)
            assert {extra for extras in named for extra in extras.split(",")} <= EXTRAS, line
            continue
        if program in PROGRAMS:
            done = run_program(PROGRAMS[program], program, *arguments, "--help", cwd=ROOT)
        else:
            assert program == "pytest"
            arguments = ["reference" if word == "recompute" else word for word in arguments]
            command = [sys.executable, "-m", "pytest", *arguments, "--collect-only", "-q"]
            done = subprocess.run(
                command, cwd=ROOT, env=outside_of_xdist(), capture_output=True, text=True, timeout=PROCESS_S
            )
        assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


@pytest.mark.parametrize("snippet", named("bash"))
def test_bash_snippet(snippet: Snippet, tmp_path: Path) -> None:
    """Commands run in a copy of the repository, as old as the original: `make` must not install the copy."""
    bin_folder = Path(sys.executable).parent
    if "make " in snippet.text and not _up_to_date(bin_folder.parent / "run.stamp"):
        pytest.skip("make commands are tried in the environment that `make test` builds, as long as nothing is newer")
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listing.stdout.splitlines():
        if (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tmp_path / name)
    commands = [line for line in snippet.text.splitlines() if line and not line.startswith("#")]
    slow = ("make test", "make bench")
    for command in commands:
        if command.startswith(slow):
            command = command.replace("make ", "make --dry-run ")
        with compiling("demo"):
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=tmp_path,
                env=os.environ | {"PATH": f"{bin_folder}:{os.environ['PATH']}", "VENV": str(bin_folder.parent)},
                capture_output=True,
                text=True,
                timeout=PROCESS_S,
            )
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def _up_to_date(stamp: Path) -> bool:
    """Otherwise `make` in a copy of the repository would install the copy into this environment."""
    inputs = (ROOT / "pyproject.toml", *ROOT.glob("constraints/*.txt"))
    return stamp.exists() and stamp.stat().st_mtime >= max(each.stat().st_mtime for each in inputs)


INSTALLS = re.compile(r"pip install (?:[^`\n]*[ \"'])?megatalker(?![\w/.-])[^`\n]*")
"""A command that would ask a package index for megatalker."""


def test_no_page_installs_from_an_index_that_has_no_megatalker() -> None:
    found = []
    for page in ROOT.rglob("*.md"):
        inside = page.relative_to(ROOT)
        if inside.parts[0].startswith(".") or page.name == "CHANGELOG.md":
            continue
        commands = INSTALLS.findall(page.read_text())
        found += [f"{inside}: {command}" for command in commands if "@ git+$REPOSITORY" not in command]
    assert found == ["docs/install.md: pip install 'megatalker[server]'"], "this adds an extra to an installed package"
