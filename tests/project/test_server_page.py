"""``docs/server.md``: its examples run, and it names every route and every code of errors."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from megatalker import Checkpoint, Settings
from megatalker.serving.protocol.plain_messages import ErrorCode
from serving import Served, serving
from snippets import AT_SERVER, Snippet, run_at_server, snippets

PAGE = Path(__file__).parents[2] / "docs" / "server.md"


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(Checkpoint.open("demo"), backend="reference", max_frames=50) as served:
        yield served


@pytest.mark.slow
@pytest.mark.parametrize(
    "snippet",
    [pytest.param(snippet, id=snippet.place) for snippet in snippets(PAGE) if snippet.title == AT_SERVER],
)
def test_an_example_runs_as_it_stands(snippet: Snippet, served: Served, tmp_path: Path) -> None:
    if snippet.language == "bash" and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    done = run_at_server(snippet, served.url, tmp_path)
    assert done.returncode == 0, done.stderr
    for file in tmp_path.iterdir():
        assert file.stat().st_size > 1_000, f"{file.name} holds speech"
    assert done.stdout or list(tmp_path.iterdir()), "the snippet prints or saves something"


def test_its_settings_are_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (snippet,) = [snippet for snippet in snippets(PAGE) if snippet.language == "toml"]
    assert snippet.title == "megatalker.toml"
    (tmp_path / snippet.title).write_text(snippet.text)
    monkeypatch.chdir(tmp_path)
    assert Settings.read().server.drain_timeout_s == 60


def test_it_names_every_route_and_every_code(tiny_custom_voice: Checkpoint) -> None:
    text = PAGE.read_text()
    with serving(tiny_custom_voice) as served:
        app = served.server.config.app
        sockets = {route.path for route in app.routes if type(route).__name__ == "APIWebSocketRoute"}
        http = {
            f"{method.upper()} {path}" for path, operations in app.openapi()["paths"].items() for method in operations
        }
    assert not [route for route in http if f"`{route}`" not in text]
    assert set(re.findall(r"`WS ([^`]+)`", text)) == sockets
    assert re.findall(r"^\| `([A-Z_]+)` \|", text, re.MULTILINE) == list(get_args(ErrorCode))
