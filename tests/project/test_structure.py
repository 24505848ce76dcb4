"""The structure as `docs/architecture.md` draws it, held against the imports; and how large its pieces may be."""

import ast
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE = ROOT / "core" / "megatalker"
GRAPHS = re.findall(r"```mermaid\ngraph LR\n(.*?)```", (ROOT / "docs" / "architecture.md").read_text(), re.DOTALL)
EVERYWHERE = {"errors"}
FOLDERS = {
    "megatalker": "core",
    "megatalker_backends": "backends",
    "megatalker_kernels": "kernels",
    "megatalker_pipecat": "pipecat_adapter",
    "megatalker_livekit": "livekit_adapter",
    "megatalker_conformance": "conformance_tests",
}
MOST_ENTRIES = 12
MOST_LINES = 400
IN_ONE_FILE = ROOT / "examples" / "nano_megatalker.py"  # on purpose; test_nano.py bounds it
MEDIAN_LINES = 120


def drawn(graph: str) -> set[tuple[str, str]]:
    return {(origin, target) for origin, target in re.findall(r"(\w+) --> (\w+)", graph)}


def imported(path: Path) -> Iterator[str]:
    """Modules that a file imports when it runs; what only type checkers see does not count."""
    tree = ast.parse(path.read_text())
    unseen = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in unseen:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def python_files() -> list[Path]:
    folders = (*FOLDERS.values(), "examples", "benchmarks", "tests", "constraints", "release", "website")
    return [path for folder in folders for path in (ROOT / folder).rglob("*.py") if path.stat().st_size]


def test_distributions_import_each_other_as_drawn() -> None:
    found = set()
    for package, folder in FOLDERS.items():
        for path in (ROOT / folder / package).rglob("*.py"):
            found |= {(package, name.split(".")[0]) for name in imported(path)}
    assert {(one, other) for one, other in found if other in FOLDERS and one != other} == drawn(GRAPHS[0])


def test_rooms_of_core_import_each_other_as_drawn() -> None:
    rooms = {path.stem for path in CORE.iterdir() if path.is_dir() or path.suffix == ".py"} - {"__init__"}
    found = set()
    for path in CORE.rglob("*.py"):
        origin = path.relative_to(CORE).parts[0].removesuffix(".py")
        parts = [name.split(".") for name in imported(path)]
        found |= {(origin, part[1]) for part in parts if part[0] == "megatalker" and len(part) > 1}
    between = {(one, other) for one, other in found if one != other and {one, other} <= rooms - EVERYWHERE}
    assert between == drawn(GRAPHS[1])


def test_what_a_part_may_not_know() -> None:
    client = {name for path in (CORE / "serving" / "client").rglob("*.py") for name in imported(path)}
    assert not [name for name in client if name.startswith("megatalker.serving.server")]
    speech = {name for path in (CORE / "engine" / "speech").rglob("*.py") for name in imported(path)}
    assert not [name for name in speech if re.match(r"megatalker\.engine\b(?!\.speech\b)", name)]
    settings = {name for path in (CORE / "settings").rglob("*.py") for name in imported(path)}
    assert not [name for name in settings if name.startswith("megatalker.serving")]
    for folder in ("core", "backends", "kernels", "pipecat_adapter", "livekit_adapter"):
        for path in (ROOT / folder).rglob("*.py"):
            if "testing" not in path.parts:
                assert not [name for name in imported(path) if name.startswith("megatalker.testing")], path


BEGINS_WORK = re.compile(
    r"(?<!tasks)\.create_task\(|ensure_future\(|\bThread\(|threading\.Thread\)|\.submit\(|ThreadPoolExecutor\("
    r"|_thread\.start_new_thread|run_coroutine_threadsafe|\bTimer\(|loop\.run_in_executor|add_done_callback\("
)
"""Calls that start concurrent work. Tasks of a group are no concern: they end with it and raise their exceptions."""
WORK_IN_SIGHT = {
    "core/megatalker/serving/background.py": "the one place where work begins that nobody awaits",
    "backends/megatalker_backends/streaming/side_by_side.py": "its result is asked for at once",
    "core/megatalker/checkpoint/hub.py": "its result is asked for when the download ends",
    "core/megatalker/cli/bench/drive.py": "gathered at the end, and raised",
    "core/megatalker/cli/say/standard_input.py": "a thread that keeps what it raised, and ends its stream",
    "core/megatalker/engine/aligned_words.py": "it logs what fails, and raises nothing",
    "core/megatalker/engine/engine.py": "requests of the engine's own queue",
    "core/megatalker/engine/speech/marked_chunks.py": "its result is asked for by the consumer of the speech",
    "core/megatalker/engine/interpreter.py": "none begins here: it ends a thread",
    "core/megatalker/engine/watchdog.py": "a thread whose failure ends the engine",
    "core/megatalker/engine/worker.py": "a thread whose failure ends the engine",
    "core/megatalker/serving/client/connection.py": "whichever of them ends ends the client, with its exception",
    "core/megatalker/serving/server/accepting.py": "a callback of a task of background work",
    "core/megatalker/serving/server/audio_response.py": "awaited before the response begins",
    "core/megatalker/serving/server/checks.py": "awaited by the request whose message it is",
    "core/megatalker/serving/server/references.py": "awaited by the requests that name the recording",
    "core/megatalker/serving/server/socket_session.py": "a callback of a group's task",
    "core/megatalker/serving/shared_engines/pool.py": "awaited by the session that asks",
    "core/megatalker/voices/library.py": "its result is asked for at once",
    "pipecat_adapter/megatalker_pipecat/agent/terminal.py": "awaited until the conversation is over",
    "pipecat_adapter/megatalker_pipecat/delivery.py": "tasks of Pipecat, which logs what they raise",
    "core/megatalker/serving/server/wyoming_connection.py": "a callback that closes the account of an utterance",
}
"""Files where concurrent work may start, and the receiver of its exceptions; a test makes each of them fail."""


def test_no_work_begins_whose_exceptions_are_lost() -> None:
    folders = ("core", "backends", "kernels", "pipecat_adapter", "livekit_adapter")
    files = {
        str(path.relative_to(ROOT)): path.read_text() for folder in folders for path in (ROOT / folder).rglob("*.py")
    }
    assert {name for name, text in files.items() if BEGINS_WORK.search(text)} == set(WORK_IN_SIGHT)


def test_core_shows_at_most_a_dozen_entries() -> None:
    hidden = {"__init__.py", "__init__.pyi", "py.typed", "__pycache__"}
    assert len({path.name for path in CORE.iterdir()} - hidden) <= MOST_ENTRIES


def test_files_are_short() -> None:
    lines = {path: len(path.read_text().splitlines()) for path in python_files() if path != IN_ONE_FILE}
    assert statistics.median(lines.values()) < MEDIAN_LINES
    assert not {str(path.relative_to(ROOT)): count for path, count in lines.items() if count > MOST_LINES}


@pytest.mark.parametrize("graph", [0, 1])
def test_no_arrow_runs_in_a_circle(graph: int) -> None:
    arrows = drawn(GRAPHS[graph])
    while arrows:
        ends = {target for _, target in arrows} - {origin for origin, _ in arrows}
        assert ends, f"a circle among {sorted(arrows)}"
        arrows = {(origin, target) for origin, target in arrows if target not in ends}
