"""One dry run of pip: what it would install, without downloading it or installing anything."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
LINES = 20
"""How much of what a resolver said last goes into an error: the cause, not all that went well before it."""


class ResolverError(Exception):
    """There is no answer; the message is the resolver's own."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """One distribution that pip would install."""

    name: str
    version: str


def dry_run(requirements: Iterable[str], constraints: Path, *options: str) -> list[Chosen]:
    """Lets pip choose for this interpreter, with the indexes and wheels that it is configured to use.

    Raises:
        ResolverError: the requirements and constraints contradict each other, or an index lacks something.
    """
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install"]
    # A report needs metadata only: fast-deps reads it out of a wheel by ranges where the index does not offer it apart.
    command += ["--dry-run", "--ignore-installed", "--use-feature", "fast-deps"]
    command += ["--constraint", str(constraints), *options, *requirements]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command += ["--report", str(report)]
        ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if ran.returncode != 0:
            raise ResolverError("\n".join(ran.stdout.splitlines()[-LINES:]))
        items = json.loads(report.read_text())["install"]
    return [Chosen(item["metadata"]["name"], item["metadata"]["version"]) for item in items]
