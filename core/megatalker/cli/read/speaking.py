"""Speaks many files, many parts at once: what each part says depends on its text, its options and its seed alone."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b

import numpy as np

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.cli.captions import Caption, captions, format_captions
from megatalker.cli.read.store import KeptSpeech, SpeechStore
from megatalker.cli.say.formats import Format
from megatalker.cli.say.writers import open_writer
from megatalker.engine import Engine
from megatalker.engine.speech.options import SpeechOptions, stream_seed
from megatalker.engine.speech.outputs import require_complete
from megatalker.errors import IncompleteSpeechError
from megatalker.prompt.rewriting.lexicon_files import read_lexicon
from megatalker.prompt.sentences import split_sentences
from megatalker.serving.audio import from_pcm16, to_pcm16
from megatalker.settings import Settings
from megatalker.voices import Voice

PART_CHARS = 1_000
"""About a minute: what is lost where a command is killed."""
PAUSE_S = 0.5
"""Silence behind a paragraph, besides the model's own."""
SETTINGS = (
    *("voice", "language", "normalize", "markup", "watermark", "aligner", "short_speech", "runaway_guard"),
    *("max_segment_chars", "max_segment_frames", "max_frames"),
)
"""Settings that decide how a part sounds or when its words are spoken; so does the file of the setting ``lexicon``."""
TRIES = 3
"""Seeds that are tried for a part whose speech leaves some of its text out."""


@dataclass(frozen=True)
class SpeechPart:
    """A text that is spoken as one utterance."""

    text: str
    options: SpeechOptions
    """With a seed."""
    pause_s: float
    """Silence behind it."""

    @cached_property
    def key(self) -> str:
        """Digest of everything that decides how it sounds, except for checkpoint, settings and backend."""
        options, voice = self.options, self.options.voice
        spoken_by = blake2b(voice.to_bytes(), digest_size=16).hexdigest() if isinstance(voice, Voice) else voice
        given = {
            "text": self.text,
            "voice": spoken_by,
            "language": options.language,
            "instruct": options.instruct,
            "sampling": repr(options.sampling),
            "seed": options.seed,
            "clean_text": options.clean_text,
            "normalize": options.normalize,
            "lexicon": repr(options.lexicon),
        }
        return blake2b(json.dumps(given, sort_keys=True).encode(), digest_size=20).hexdigest()


@dataclass(frozen=True)
class SpeechFile:
    """A file of parts, one after another."""

    name: str
    parts: tuple[SpeechPart, ...]
    tags: Mapping[str, str]
    """``title``, ``album``, ``artist`` and ``track``, as far as they are known."""

    @property
    def chars(self) -> int:
        """Characters of its text."""
        return sum(len(part.text) for part in self.parts)


@dataclass(frozen=True, slots=True)
class FileKind:
    """How files are written."""

    format: Format
    rate: int
    captions: str | None = None
    """Ending of a file of captions beside each one, such as ``.srt``."""


@dataclass
class SpokenSoFar:
    """Figures of a run."""

    chars: int = 0
    """Characters whose speech is kept, from earlier runs included."""
    audio_s: float = 0.0
    """Seconds of speech that this run made."""
    finished: int = 0
    """Files that are finished, from earlier runs included."""
    incomplete: int = 0
    """Parts of finished files that leave out some of their text."""


def paragraph_parts(paragraphs: Sequence[str], options: SpeechOptions, seed: int) -> tuple[SpeechPart, ...]:
    """Cut paragraphs into parts of at most :data:`PART_CHARS` characters, at ends of sentences where there are any.

    A part's seed is made of the book's and of its text, so that a change elsewhere does not change it.
    """
    made = []
    for paragraph in paragraphs:
        texts = [text for text in split_sentences(paragraph, PART_CHARS) if any(map(str.isalnum, text))]
        for number, text in enumerate(texts, 1):
            own = replace(options, seed=text_seed(seed, text))
            made.append(SpeechPart(text, own, PAUSE_S if number == len(texts) else 0.0))
    return tuple(made)


def text_seed(seed: int, text: str) -> int:
    """Return the seed of a text in a run with this seed."""
    return int.from_bytes(blake2b(f"{seed}:{text}".encode(errors="replace"), digest_size=6).digest(), "big")


class FileSpeaker:
    """Speaks files with an engine and keeps them in a store.

    Args:
        engine: whose streams speak.
        store: of the folder of the files.
        kind: how they are written.
        streams: parts that are spoken at a time.
        on_progress: called with the figures so far, in the event loop.
    """

    def __init__(
        self,
        engine: Engine,
        store: SpeechStore,
        kind: FileKind,
        streams: int,
        on_progress: Callable[[SpokenSoFar], None] = lambda _: None,
    ) -> None:
        self._engine, self._store, self._kind, self._streams = engine, store, kind, streams
        self._on_progress, self._so_far = on_progress, SpokenSoFar()
        self._spoken_with = f"{engine.checkpoint.fingerprint}{_changed(engine.settings)}"
        """Checkpoint and settings of all parts."""
        self._writing = asyncio.Lock()

    async def speak(self, files: Sequence[SpeechFile]) -> SpokenSoFar:
        """Speak what is not finished yet, and return the figures of the run.

        Raises:
            MegatalkerError: a part can never be spoken, or the engine failed; what was finished before is kept.
        """
        left: Counter[str] = Counter()
        waiting: list[tuple[SpeechFile, SpeechPart]] = []
        ready: list[SpeechFile] = []
        for file in files:
            if self._store.is_finished(file.name, self._digest(file)):
                self._so_far.finished += 1
                self._so_far.chars += file.chars
                continue
            keyed = {self._key(file, part): part for part in file.parts}
            missing = [part for key, part in keyed.items() if not self._store.has_part(key)]
            self._so_far.chars += file.chars - sum(len(part.text) for part in missing)
            left[file.name] = len(missing)
            waiting += [(file, part) for part in missing]
            if not missing:
                ready.append(file)
        self._on_progress(self._so_far)
        for file in ready:
            await self._finish(file)
        parts = iter(waiting)
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(min(self._streams, len(waiting))):
                    tasks.create_task(self._work(parts, left))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed
        if self._so_far.finished == len(files):
            self._store.clear()
        return self._so_far

    async def _work(self, parts: Iterator[tuple[SpeechFile, SpeechPart]], left: Counter[str]) -> None:
        for file, part in parts:
            self._store.keep_part(self._key(file, part), await self._spoken(part))
            self._so_far.chars += len(part.text)
            self._on_progress(self._so_far)
            left[file.name] -= 1
            if not left[file.name]:
                await self._finish(file)

    async def _finish(self, file: SpeechFile) -> None:
        async with self._writing:
            await asyncio.to_thread(self._write, file)
        self._on_progress(self._so_far)

    async def _spoken(self, part: SpeechPart) -> KeptSpeech:
        """The speech of a part, with the first seed that says all of it; the last one's where none does."""
        assert part.options.seed is not None, "parts are made with one"
        for number in range(TRIES):
            seed = stream_seed(part.options.seed, 1_000_000 * number)
            options = replace(part.options, seed=seed, word_times=True)
            async with self._engine.speak(part.text, options) as stream:
                pcm = [to_pcm16(chunk.pcm) async for chunk in stream]
                words = tuple(stream.take_words())  # once, at the end: then they do not depend on what was said before
                facts = stream.facts()
            self._so_far.audio_s += facts.audio_s
            try:
                require_complete(facts)
                complete = True
                break
            except IncompleteSpeechError:
                complete = False
        return KeptSpeech(np.frombuffer(b"".join(pcm), "<i2"), words, complete)

    def _write(self, file: SpeechFile) -> None:
        """Put a file together from its parts; its name appears when it is whole."""
        new, path = self._store.out / f".{file.name}.new", self._store.out / file.name
        writer, shown, at = open_writer(new, self._kind.format, self._kind.rate, file.tags), list[Caption](), 0
        for part in file.parts:
            kept = self._store.part(self._key(file, part))
            assert kept is not None, "it was spoken"
            silence = np.zeros(round(part.pause_s * SAMPLE_RATE), np.float32)
            writer.write(np.concatenate([from_pcm16(kept.samples.tobytes()), silence]))
            shown += captions(kept.words, at / SAMPLE_RATE)
            at += len(kept.samples) + len(silence)
            self._so_far.incomplete += not kept.complete
        writer.close()
        if self._kind.captions is not None:
            content = format_captions(shown, self._kind.captions)
            self._store.replace(path.with_suffix(self._kind.captions), content.encode("utf-8", "replace"))
        new.replace(path)
        self._store.finish(file.name, self._digest(file), [self._key(file, part) for part in file.parts])
        self._so_far.finished += 1

    def _key(self, file: SpeechFile, part: SpeechPart) -> str:
        place = f"{self._spoken_with} {file.name} {part.key}"
        return blake2b(place.encode(errors="replace"), digest_size=16).hexdigest()

    def _digest(self, file: SpeechFile) -> str:
        parts = [f"{self._key(file, part)} {part.pause_s}" for part in file.parts]
        whole = f"{self._kind} {dict(file.tags)} {parts}"
        return blake2b(whole.encode(errors="replace"), digest_size=16).hexdigest()


def _changed(settings: Settings) -> str:
    """Return those of :data:`SETTINGS` that are not as by default, and the words of the lexicon."""
    fields = Settings.model_fields
    changed = {name: getattr(settings, name) for name in SETTINGS if getattr(settings, name) != fields[name].default}
    if settings.lexicon is not None:
        changed["lexicon"] = repr(read_lexicon(settings.lexicon))
    return f" {changed}" if changed else ""


def file_name(name: str, ending: str) -> str:
    """Return a name of a file without characters that systems do not take, at most 80 bytes before its ending."""
    good = "".join(sign if sign.isalnum() or sign in " -_.,'()" else " " for sign in name)
    text = " ".join(good.split()).strip(" .")
    while len(text.encode(errors="replace")) > 80:
        text = text[:-1]
    return f"{text.strip(' .') or 'speech'}{ending}"
