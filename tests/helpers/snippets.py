"""The snippets of pages, as tests run them."""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from waiting import PROCESS_S

AT_SERVER = "at localhost:8000"
"""Title of snippets that need a running server."""
COMPARES = "compare backends"
"""Title of the snippet that tests/cli/test_bench.py runs."""
FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Snippet:
    language: str
    title: str | None
    text: str
    place: str


def snippets(*pages: Path) -> list[Snippet]:
    found = []
    for page in pages:
        text = page.read_text()
        for match in FENCE.finditer(text):
            place = f"{page.stem}-line-{text[: match.start()].count(chr(10)) + 1}"
            found.append(Snippet(match[1], match[2], match[3], place))
    return found


def run_at_server(snippet: Snippet, url: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run it in this folder against the server at this address."""
    address = url.removeprefix("http://")
    program = [sys.executable] if snippet.language == "python" else ["bash"]
    command = [*program, "-c", snippet.text.replace("localhost:8000", address)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PROCESS_S)
