"""The snippets of a page, as tests run them."""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from waiting import PROCESS_S

AT_SERVER = "at localhost:8000"
"""Title of snippets that need a running server."""
FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Snippet:
    language: str
    title: str | None
    text: str
    line: int


def snippets(page: Path) -> list[Snippet]:
    text = page.read_text()
    return [
        Snippet(match[1], match[2], match[3], text[: match.start()].count("\n") + 1) for match in FENCE.finditer(text)
    ]


def run_at_server(snippet: Snippet, url: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run it in this folder against the server at this address."""
    address = url.removeprefix("http://")
    program = [sys.executable] if snippet.language == "python" else ["bash"]
    command = [*program, "-c", snippet.text.replace("localhost:8000", address)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PROCESS_S)
