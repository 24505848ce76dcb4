"""Committed results: the index names them all, and none tells paths of the machine that it was made on."""

import json
import re
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "benchmarks" / "results"
INDEX = FOLDER / "README.md"
DOCS = FOLDER.parents[1] / "docs"
FILES = sorted(path for path in FOLDER.rglob("*") if path.is_file() and path != INDEX)


def patterns() -> list[str]:
    """``folder/file``, as the rows of the index have them."""
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", INDEX.read_text(), re.MULTILINE)
    return [f"{folder}/{pattern}" for folder, files in rows for pattern in re.findall(r"`([^`]+)`", files)]


def test_every_result_stands_in_the_index_once() -> None:
    for path in FILES:
        own = path.relative_to(FOLDER)
        assert sum(own.match(pattern) for pattern in patterns()) == 1, own


def test_the_index_names_nothing_else() -> None:
    for pattern in patterns():
        assert list(FOLDER.glob(pattern)), pattern


def test_results_hold_no_paths_of_a_machine() -> None:
    for path in FILES:
        if path.suffix in (".json", ".jsonl", ".md"):
            assert not re.search(r"/(root|home|tmp|work)/", path.read_text()), path.name


def test_the_history_has_a_line_for_every_run_that_pages_cite() -> None:
    runs = set()
    for path in FOLDER.glob("*/history.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert all(line.keys() == {"run", "date", "commit", "command", "card", "figures"} for line in lines)
        assert all(line["figures"] for line in lines)
        runs |= {f"{path.parent.name}/history.jsonl#{line['run']}" for line in lines}
    cited = {name for page in DOCS.rglob("*.md") for name in re.findall(r"\w+/history\.jsonl#[\w.]+", page.read_text())}
    assert len(cited) > 20
    assert cited <= runs
