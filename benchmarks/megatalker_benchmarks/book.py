"""Measures ``megatalker read`` on a long book: how fast it is, and that a run that was killed makes the same files.

megatalker bench book --pages 100 --json benchmarks/results/cpu/book.json

The book is made up, always the same from the same seed. It is read once undisturbed, and once more with the command
killed (SIGKILL) twice and started again. Both folders must hold the same bytes.
"""

import argparse
import hashlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import soundfile

from megatalker_benchmarks.report import add_json_option, hand_out, whole
from megatalker_demo_voice.text import TextSource

WORDS_A_PAGE = 275
PAGES_A_CHAPTER = 10
WORDS_A_PARAGRAPH = (20, 120)
KILLS = 2
KILLED_AFTER = (0.15, 0.4)
"""Bounds of the seconds that a run lives, as a share of the undisturbed run's."""
COMMAND = [sys.executable, "-c", "from megatalker.cli.main import run; run()"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pages", type=whole(), default=3)
    parser.add_argument("--seed", type=whole(0), default=0, help="of the book, of its speech and of the kills")
    parser.add_argument("--checkpoint", default="demo")
    parser.add_argument("--backend", default="compiled")
    parser.add_argument("--streams", type=whole(), default=4)
    add_json_option(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        hand_out(measure(options, Path(folder)), options.json)


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Read the book undisturbed and killed, and return the figures."""
    book, draw = folder / "book.txt", random.Random(options.seed)
    words = write_book(book, options.pages, options.seed)
    command = [*COMMAND, "read", str(book), "--checkpoint", options.checkpoint, "--backend", options.backend]
    command += ["--seed", str(options.seed), "--streams", str(options.streams), "--format", "flac", "--captions", "srt"]
    whole_s = run(command, folder / "whole")
    killed = [kill_after(command, folder / "killed", whole_s * draw.uniform(*KILLED_AFTER)) for _ in range(KILLS)]
    rest_s = run(command, folder / "killed")
    expected, found = digests(folder / "whole"), digests(folder / "killed")
    audio_s = sum(soundfile.info(folder / "whole" / name).duration for name in expected if name.endswith(".flac"))
    return {
        "checkpoint": options.checkpoint,
        "backend": options.backend,
        "streams": options.streams,
        "pages": options.pages,
        "words": words,
        "chapters": sum(name.endswith(".flac") for name in expected),
        "speech_s": round(audio_s, 1),
        "undisturbed_s": round(whole_s, 1),
        "times_real_time": round(audio_s / whole_s, 2),
        "killed_after_s": [round(seconds, 1) for seconds in killed],
        "last_run_s": round(rest_s, 1),
        "files": len(expected),
        "files_that_differ": sum(expected.get(name) != found.get(name) for name in {*expected, *found}),
    }


def write_book(path: Path, pages: int, seed: int) -> int:
    """Write a book of this many pages, always the same from the same seed; returns the number of its words."""
    source, draw, words = TextSource(f"book {seed}"), random.Random(seed), 0
    with path.open("w", encoding="utf-8") as file:
        for page in range(pages):
            if page % PAGES_A_CHAPTER == 0:
                file.write(f"Chapter {page // PAGES_A_CHAPTER + 1}\n\n")
            for paragraph in page_of(source, draw):
                file.write(f"{paragraph}\n\n")
                words += len(paragraph.split())
    return words


def page_of(source: TextSource, draw: random.Random) -> Iterator[str]:
    """Paragraphs that hold :data:`WORDS_A_PAGE` words, or a few more."""
    left = WORDS_A_PAGE
    while left > 0:
        length, sentences = min(left, draw.randint(*WORDS_A_PARAGRAPH)), list[str]()
        while sum(len(text.split()) for text in sentences) < length:
            text = source.held_out_utterance()
            sentences.append(text if text[-1] in ".!?" else f"{text}.")
        left -= sum(len(text.split()) for text in sentences)
        yield " ".join(sentences)


def run(command: Sequence[str], out: Path) -> float:
    """Run the command to its end; returns the seconds that it took.

    Raises:
        SystemExit: it failed.
    """
    began = time.monotonic()
    done = subprocess.run([*command, "--out", str(out)], stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the command failed with status {done.returncode}: {done.stderr[-2000:]}")
    return time.monotonic() - began


def kill_after(command: Sequence[str], out: Path, seconds: float) -> float:
    """Kill the command after this long, and return the seconds.

    Raises:
        SystemExit: it had ended before.
    """
    running = subprocess.Popen([*command, "--out", str(out)], stderr=subprocess.DEVNULL)
    try:
        running.wait(seconds)
    except subprocess.TimeoutExpired:
        running.kill()
        running.wait()
        return seconds
    raise SystemExit(f"the command ended within {seconds:.0f} s, before it could be killed; read more pages")


def digests(folder: Path) -> dict[str, str]:
    """Return a digest of each file that the command made."""
    found = {}
    for path in sorted(folder.iterdir()):
        if path.is_file():
            with path.open("rb") as file:
                found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


if __name__ == "__main__":
    main()
