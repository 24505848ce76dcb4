"""Opens an engine, speaks files into a folder, and shows how far it is."""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.hub import download_bar
from megatalker.cli.console import say_plainly, stderr
from megatalker.cli.read.book import WholeBook
from megatalker.cli.read.lines import FindVoice
from megatalker.cli.read.speaking import FileKind, FileSpeaker, SpeechFile, SpokenSoFar, file_name, paragraph_parts
from megatalker.cli.read.store import SpeechStore
from megatalker.cli.say.formats import Format, choose_rate
from megatalker.cli.say.speaking import INTERRUPTED, VoiceOrder, choose_voice
from megatalker.cli.status import Status
from megatalker.engine import Engine
from megatalker.engine.speech.options import SpeechOptions
from megatalker.prompt.rewriting.lexicon_files import read_lexicon
from megatalker.settings import Settings

CPU_STREAMS, GPU_STREAMS = 4, 32
"""Parts that are spoken at a time where nothing else is asked for."""
MakeFiles = Callable[[SpeechOptions, FindVoice], Sequence[SpeechFile]]


@dataclass(frozen=True, slots=True)
class FolderOrder:
    """How to speak into a folder."""

    out: Path
    format: Format
    captions: str | None
    streams: int | None
    voice: VoiceOrder
    language: str | None = None
    instruct: str | None = None
    normalize: Literal["off", "on"] | None = None
    lexicon: Path | None = None


def book_files(book: WholeBook, options: SpeechOptions, seed: int, kind: Format) -> list[SpeechFile]:
    """Return the files of a book, one for each chapter, numbered and named by its title."""
    digits, files = max(2, len(str(len(book.chapters)))), []
    for number, chapter in enumerate(book.chapters, 1):
        tags = {"title": chapter.title or f"Part {number}", "artist": book.author, "album": book.title}
        tags = {name: value for name, value in tags.items() if value} | {"track": str(number)}
        name = file_name(f"{number:0{digits}} {chapter.title}", f".{kind}")
        files.append(SpeechFile(name, paragraph_parts(chapter.paragraphs, options, seed), tags))
    return files


def speak_folder(order: FolderOrder, settings: Settings, status: Status, make: MakeFiles) -> str:
    """Speak the files that ``make`` returns, and return a line that says how it went.

    Raises:
        MegatalkerError: something about the order can never work, or the engine failed; finished parts are kept.
    """
    with ExitStack() as stack:
        store = stack.enter_context(SpeechStore(order.out))
        lexicon = None if order.lexicon is None else read_lexicon(order.lexicon)
        status.stage(f"opening checkpoint {settings.checkpoint}")
        with download_bar() as progress:
            checkpoint = Checkpoint.open(settings.checkpoint, progress=progress)
        options = SpeechOptions(
            voice=choose_voice(checkpoint, order.voice),
            language=order.language,
            instruct=order.instruct,
            normalize=order.normalize,
            lexicon=lexicon,
        )
        find = lru_cache(256)(lambda name: choose_voice(checkpoint, VoiceOrder(name, None, None, None)))
        files = make(options, find)
        status.stage("loading the backends")
        engine = stack.enter_context(Engine.open(settings, checkpoint=checkpoint))
        streams = order.streams or (CPU_STREAMS if engine.device.type == "cpu" else GPU_STREAMS)
        ending = None if order.captions is None else f".{order.captions}"
        kind = FileKind(order.format, choose_rate(order.format, None), ending)
        status.stop()
        with _Bar(files) as bar:
            speaker = FileSpeaker(engine, store, kind, streams, bar.show)
            try:
                so_far = asyncio.run(speaker.speak(files))
            except KeyboardInterrupt:
                bar.stop()
                say_plainly(f"interrupted; {bar.told}. The same command goes on with the rest")
                sys.stderr.flush()
                os._exit(INTERRUPTED)  # as `say` leaves: a compilation under way cannot be stopped
        return _report(order.out, files, so_far, bar)


def _report(out: Path, files: Sequence[SpeechFile], so_far: SpokenSoFar, bar: "_Bar") -> str:
    lacking = f"; {so_far.incomplete} parts leave out some of their text" if so_far.incomplete else ""
    return f"{out}: {len(files)} files, {bar.told}{lacking}"


class _Bar(Progress):
    """A bar with the time left in a terminal; elsewhere a line for each file."""

    def __init__(self, files: Sequence[SpeechFile]) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        super().__init__(*columns, console=stderr, disable=not stderr.is_terminal)
        self._files, self._began, self._lines = len(files), time.monotonic(), 0
        self._bar = self.add_task("speaking", total=max(1, sum(file.chars for file in files)))
        self.told = "nothing had been spoken"
        """How far it is."""

    def show(self, so_far: SpokenSoFar) -> None:
        took = time.monotonic() - self._began
        self.told = (
            f"{so_far.finished} of {self._files} finished, {so_far.audio_s:.0f} s of speech in {took:.0f} s "
            f"({so_far.audio_s / max(took, 1e-3):.1f} x real time)"
        )
        self.update(self._bar, completed=so_far.chars, description=f"{so_far.finished}/{self._files}")
        if self.disable and so_far.finished > self._lines:
            self._lines = so_far.finished
            say_plainly(self.told)
