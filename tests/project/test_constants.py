"""Numbers of the engine: each is marked as tuned, with its measurement, or as not tuned, with what it is instead."""

import ast
import re
from pathlib import Path

import pytest

import megatalker.engine

ROOT = Path(__file__).parents[2]
ENGINE = Path(megatalker.engine.__file__).parent
SCHEDULING = {"admission", "costs", "dispatcher", "rehearsal", "scheduler", "waiting"}
MOST_TUNED, MOST_IN_SCHEDULING, MOST_UNMEASURED = 35, 27, 4
TUNED, UNMEASURED, NOT_TUNED = "measured", "tuned, not measured", "not tuned"
MARK = re.compile(r".* # (measured|tuned, not measured|not tuned)(?:: (\w.*))?$")


def marks_of(text: str) -> dict[str, tuple[str, str]]:
    """Return the mark of each number at the top of a module, and what follows it; ``("", "")`` where there is none."""
    lines, found = text.splitlines(), dict[str, tuple[str, str]]()
    for node in ast.parse(text).body:
        numbers = [
            one for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, int | float)
        ]
        if isinstance(node, ast.Assign | ast.AnnAssign) and numbers:
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            mark = MARK.match(lines[(node.end_lineno or 0) - 1])
            found[ast.unparse(target)] = (mark[1], mark[2] or "") if mark else ("", "")
    return found


MARKS = {
    (path.stem, name): mark
    for path in sorted(ENGINE.rglob("*.py"))
    for name, mark in marks_of(path.read_text()).items()
}


@pytest.mark.parametrize(("module", "name"), MARKS, ids="-".join)
def test_each_number_says_where_it_was_measured_or_why_it_is_not_tuned(module: str, name: str) -> None:
    mark, told = MARKS[module, name]
    assert mark, (
        f"end the line of {name} in {module}.py with '# measured: docs/PAGE.md#ANCHOR' or '# not tuned: REASON'"
    )
    assert bool(told) is (mark != UNMEASURED)
    if mark == TUNED:
        page, anchor = told.split("#")
        section = (ROOT / page).read_text().partition(f'<a id="{anchor}"></a>')[2]
        assert section, f"{told} is not there"
        assert f"`{name}`" in section or "each-constant" not in anchor, "its row in the table"


def test_few_numbers_are_tuned() -> None:
    tuned = [(module, mark) for (module, _), (mark, _) in MARKS.items() if mark in (TUNED, UNMEASURED)]
    scheduling = sum(module in SCHEDULING for module, _ in tuned)
    unmeasured = sum(mark == UNMEASURED for _, mark in tuned)
    found = len(tuned), scheduling, unmeasured
    assert found == (MOST_TUNED, MOST_IN_SCHEDULING, MOST_UNMEASURED), "where there are fewer, lower these numbers"


@pytest.mark.parametrize(
    ("line", "mark"),
    [
        ("A_S: float = -0.5  # tuned, not measured", (UNMEASURED, "")),
        ("A, B = 1, 2  # not tuned: a bound", (NOT_TUNED, "a bound")),
        ("A_S = 2 * FRAME_SECONDS  # large", ("", "")),
    ],
)
def test_numbers_are_found(line: str, mark: tuple[str, str]) -> None:
    assert list(marks_of(f'import x\n{line}\n"""Say what it is."""\nNAME = "text"\n').values()) == [mark]
