"""Hold commits, docstrings, class names and pages to plain words: part of ``make lint``.

Commit subjects and lines are checked if they were added since :data:`BASE`. The first words of docstrings and the names
of classes are checked in the whole tree, except what :data:`LATER` and :data:`SHARED_NAMES` list.
"""

import argparse
import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
BASE = "b12f4bd518"
"""Commits after this one are held to the rules."""
NOTES = "docs/notes/"
"""Laboratory notes and history keep their old wording."""
OWN = "release/wording.py"
NAMING = (OWN, "tests/project/test_wording.py", "CONTRIBUTING.md")
"""Files that quote what is refused."""
LONGEST_SUBJECT = 72
HEADS = re.compile(r"(Of|As|Which|Whose|Who|What|Beside)\b")
"""Docstrings that begin with these words cannot be read alone."""
HEADS_OF_LINES = re.compile(r'^\s*r?"""(Of|As above|As before|Which|Whose|Who|Beside)\b')
"""The same for added lines of the folders of :data:`LATER`."""
LATER: tuple[str, ...] = ()
"""Paths whose docstrings are still to be rewritten. Remove a path when it has none of :data:`HEADS`."""
SHARED_NAMES: set[str] = set()
"""Names that several classes still have. Remove a name when one class is left."""
PHRASES = re.compile(
    r"\b(so (?:many|long|much) (?:streams|frames|seconds|characters|rows|words|time|of)"
    r"|newcomers?|beside (?:those|others|streams)|(?:those|streams) (?:who|that) play"
    r"|who(?:ever)? (?:comes|fills|waits|holds)|unlike last|what was told)\b(?![(\[]|\.\w)",
    re.IGNORECASE,
)
"""Phrases that a reader in a hurry stumbles over; `docs/notes` may keep them."""
PAST_OR_GERUND = re.compile(r"^\w+(?:ed|ing)\b")
ALLOWED_FIRST_WORDS = frozenset({"Embed", "Feed", "Need", "Speed", "Seed", "Shed", "Bring", "Ring", "String"})


def faults_of_subject(subject: str) -> Iterator[str]:
    """Say what is wrong with the subject of a commit."""
    if len(subject) > LONGEST_SUBJECT:
        yield f"{len(subject)} characters, expected at most {LONGEST_SUBJECT}; the why goes into the body"
    if subject.endswith("."):
        yield "ends with a full stop"
    first = subject.split(" ", 1)[0]
    if not subject[:1].isupper():
        yield "begins with a small letter"
    if PAST_OR_GERUND.match(subject) and first not in ALLOWED_FIRST_WORDS:
        yield f"begins with {first!r}, expected an imperative such as 'Add'"


def faults_of_docstring(text: str) -> Iterator[str]:
    """Say what is wrong with the beginning of a docstring."""
    if (found := HEADS.match(text)) is not None:
        yield f"a docstring begins with {found[1]!r}; name the thing"


def faults_of_line(line: str) -> Iterator[str]:
    """Say what is wrong with a line of Python or Markdown."""
    if (found := HEADS_OF_LINES.match(line)) is not None:
        yield f"a docstring begins with {found[1]!r}; name the thing"
    if (found := PHRASES.search(line)) is not None:
        yield f"{found[0]!r}; name the request, stream, listener or number"


def added_lines(base: str) -> Iterator[tuple[str, str]]:
    """Yield the file and the text of each line of Python or Markdown that was added since a commit."""
    path = ""
    for line in git("diff", "--unified=0", base, "--", "*.py", "*.md").splitlines():
        if line.startswith("+++ "):
            path = line.removeprefix("+++ ").removeprefix("b/")
        elif line.startswith("+") and not path.startswith(NOTES):
            yield path, line[1:]


def faults_of_tree(sources: Mapping[str, str]) -> Iterator[str]:
    """Yield docstrings with a wrong beginning and class names with several meanings, in files by their path."""
    classes = defaultdict[str, list[str]](list)
    for path, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(f"{path}:{node.lineno}")
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                text = node.value.value
                if isinstance(text, str) and not path.startswith(LATER):
                    yield from (f"{path}:{node.lineno}: {fault}" for fault in faults_of_docstring(text))
    for name, places in sorted(classes.items()):
        if len(places) > 1 and name not in SHARED_NAMES:
            yield f"{len(places)} classes are named {name}, expected one: {', '.join(places)}"
    for name in sorted(SHARED_NAMES):
        if len(classes[name]) < 2:
            yield f"SHARED_NAMES of {OWN} lists {name}, which names one class now; remove it there"


def faults(base: str) -> Iterator[str]:
    """Yield everything that is wrong since a commit, one line each."""
    for subject in git("log", "--format=%s", "--no-merges", f"{base}..HEAD").splitlines():
        for fault in faults_of_subject(subject):
            yield f"commit {subject[:60]!r}: {fault}"
    for path, line in added_lines(base):
        if path in NAMING:
            continue
        for fault in faults_of_line(line):
            yield f"{path}: {fault}: {line.strip()[:90]}"


def git(*arguments: str) -> str:
    """Return the output of a git command in the repository; raises ``CalledProcessError`` where it fails."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def has_commit(commit: str) -> bool:
    """Return whether this copy's history holds a commit; a shallow copy may not."""
    command = ["git", "cat-file", "-e", f"{commit}^{{commit}}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 0


def listed_files(pattern: str) -> list[Path]:
    """Return the tracked and the new files that fit a path or pattern of git's, sorted, those that still exist."""
    names = git("ls-files", "--cached", "--others", "--exclude-standard", "--", pattern).splitlines()
    return [path for name in sorted(set(names)) if (path := ROOT / name).is_file()]


def main() -> None:
    """Print all faults; exit with 1 where there is one. A copy without history is checked by its files alone."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", default=BASE, help="look at what came after this commit")
    base = parser.parse_args().base
    paths = listed_files("*.py")
    sources = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    found = list(faults_of_tree(sources))
    if has_commit(base):
        found += faults(base)
    else:
        sys.stderr.write(f"wording: commit {base} is not in this copy's history, so nothing is compared\n")
    sys.stderr.write("".join(f"wording: {fault}\n" for fault in found))
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
