"""Hold the number of lines in each folder to the ceilings of ``release/budget.toml``: part of ``make lint``.

A ceiling may be raised by a commit whose message has a line ``Budget: why``. Lines of tracked and of new files count,
blank lines and comments included.
"""

import argparse
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from wording import BASE, git, has_commit, listed_files

ROOT = Path(__file__).parents[1]
FILE = "release/budget.toml"
SUFFIXES = (".py", ".cu", ".cuh", ".js", ".css", ".html")
REASON = re.compile(r"^Budget: \S", re.MULTILINE)


def ceilings(text: str) -> dict[str, int]:
    """Return the ceilings of a budget file: lines by folder."""
    return {str(folder): int(lines) for folder, lines in tomllib.loads(text)["lines"].items()}


def lines_of(folder: str) -> int:
    """Count the lines of a folder's sources."""
    paths = (path for path in listed_files(folder) if path.suffix in SUFFIXES)
    return sum(path.read_bytes().count(b"\n") for path in paths)


def faults(base: str | None) -> Iterator[str]:
    """Yield each folder above its ceiling, and each ceiling that was raised since ``base`` without a reason."""
    now = ceilings((ROOT / FILE).read_text(encoding="utf-8"))
    for folder, most in now.items():
        if (found := lines_of(folder)) > most:
            yield f"{folder} has {found:,} lines, at most {most:,} are allowed; remove some, or raise {FILE}"
    if base is None:
        return
    for commit in git("rev-list", "--no-merges", f"{base}..HEAD", "--", FILE).split():
        old, new = _budget_at(f"{commit}^"), _budget_at(commit)
        raised = [folder for folder, most in new.items() if most > old.get(folder, most)]
        if raised and REASON.search(git("log", "-1", "--format=%B", commit)) is None:
            yield f"commit {commit[:9]} raises {', '.join(raised)} without a line 'Budget: why' in its message"
    committed = _budget_at("HEAD")
    raised = [folder for folder, most in now.items() if most > committed.get(folder, most)]
    if raised:
        sys.stderr.write(f"budget: raises {', '.join(raised)}; say 'Budget: why' in the commit's message\n")


def _budget_at(commit: str) -> dict[str, int]:
    done = subprocess.run(["git", "show", f"{commit}:{FILE}"], cwd=ROOT, capture_output=True, text=True, check=False)
    return {} if done.returncode else ceilings(done.stdout)


def main() -> None:
    """Print all faults, or with ``--table`` the folders; the exit status is 1 where there is a fault."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="print each folder's lines and ceiling")
    if parser.parse_args().table:
        for folder, most in ceilings((ROOT / FILE).read_text(encoding="utf-8")).items():
            sys.stdout.write(f"{folder:24}{lines_of(folder):8,}{most:8,}\n")
        return
    found = list(faults(BASE if has_commit(BASE) else None))
    sys.stderr.write("".join(f"budget: {fault}\n" for fault in found))
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
