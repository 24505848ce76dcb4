"""Holds new commits, docstrings and pages to plain words: part of ``make lint``.

Looks at what was added since :data:`BASE`. Older sentences are rewritten where their file is changed anyway; move the
base forward when all are.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
BASE = "b12f4bd518"
"""Commits after this one are held to the rules."""
NOTES = "docs/notes/"
"""Laboratory notes and history keep their old wording."""
LONGEST_SUBJECT = 72
HEADS = re.compile(r'^\s*r?"""(Of|As above|As before|Which|Whose|Who|Beside)\b')
"""Docstrings that begin with these words cannot be read alone."""
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


def faults_of_line(line: str) -> Iterator[str]:
    """Say what is wrong with a line of Python or Markdown."""
    if (found := HEADS.match(line)) is not None:
        yield f"a docstring begins with {found[1]!r}; name the thing"
    if (found := PHRASES.search(line)) is not None:
        yield f"{found[0]!r}; name the request, stream, listener or number"


def added_lines(base: str) -> Iterator[tuple[str, str]]:
    """Yield the file and the text of each line of Python or Markdown that was added since a commit."""
    path = ""
    for line in _git("diff", "--unified=0", base, "--", "*.py", "*.md").splitlines():
        if line.startswith("+++ "):
            path = line.removeprefix("+++ ").removeprefix("b/")
        elif line.startswith("+") and not path.startswith(NOTES):
            yield path, line[1:]


def faults(base: str) -> Iterator[str]:
    """Everything that is wrong since a commit, one line each."""
    for subject in _git("log", "--format=%s", "--no-merges", f"{base}..HEAD").splitlines():
        for fault in faults_of_subject(subject):
            yield f"commit {subject[:60]!r}: {fault}"
    own = Path(__file__).relative_to(ROOT).as_posix()
    for path, line in added_lines(base):
        if path in (own, "tests/project/test_wording.py", "CONTRIBUTING.md"):  # which name what they refuse
            continue
        for fault in faults_of_line(line):
            yield f"{path}: {fault}: {line.strip()[:90]}"


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def main() -> None:
    """Print all faults; the exit status is 1 where there is one, and 0 where the history is not there to be read."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", default=BASE, help="look at what came after this commit")
    base = parser.parse_args().base
    known = subprocess.run(["git", "cat-file", "-e", f"{base}^{{commit}}"], cwd=ROOT, capture_output=True, check=False)
    if known.returncode:
        sys.stderr.write(f"wording: commit {base} is not in this copy's history, so nothing is compared\n")
        return
    found = list(faults(base))
    sys.stderr.write("".join(f"wording: {fault}\n" for fault in found))
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
