"""Prompts of a trial: those that come along, a file of texts, or a dataset in the layout of seed-tts-eval."""

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from megatalker.errors import InvalidRequestError
from megatalker_conformance.intelligibility import many_rows

LIST = "meta.lst"
"""File of a dataset: ``name|words of the recording|recording|text``, in some with a recording of the text itself."""
MOST_PROMPTS = 100_000
MOST_BYTES = 64 * 2**20
LONGEST_TEXT = 2000
"""Characters of one text."""


@dataclass(frozen=True, slots=True)
class SpokenPrompt:
    """One text, with the voice to clone for checkpoints that clone."""

    name: str
    text: str
    ref_audio: Path | None = None
    ref_text: str | None = None
    """The words of ``ref_audio``."""


@dataclass(frozen=True, slots=True)
class PromptSet:
    """Prompts of one language, and where they come from."""

    prompts: Sequence[SpokenPrompt]
    language: str
    """Name of it in checkpoints."""
    source: str
    licence: str
    digest: str
    """SHA-256 of the list, and of all recordings that it names."""

    def sample(self, size: int | None) -> "PromptSet":
        """Return this many of the prompts, always the same ones, in their order; ``None``: all."""
        if size is None or size >= len(self.prompts):
            return self
        chosen = sorted(random.Random(0).sample(range(len(self.prompts)), size))
        few = [self.prompts[index] for index in chosen]
        return PromptSet(few, self.language, self.source, self.licence, self.digest)

    def cloning(self, ref_audio: Path, ref_text: str | None) -> "PromptSet":
        """Return the same texts, all in the voice of one recording."""
        told = [SpokenPrompt(each.name, each.text, ref_audio, ref_text) for each in self.prompts]
        digest = _digest(self.digest.encode(), [ref_audio])
        return PromptSet(told, self.language, f"{self.source}, in the voice of {ref_audio.name}", self.licence, digest)


def built_in(count: int) -> PromptSet:
    """Return ``count`` rows of five loose English words, which pocketsphinx and the demo voices know."""
    prompts = [SpokenPrompt(f"row-{index}", f"{row.capitalize()}.") for index, row in enumerate(many_rows(count))]
    digest = _digest("\n".join(prompt.text for prompt in prompts).encode(), ())
    return PromptSet(prompts, "english", "rows of loose words", "Apache-2.0", digest)


def text_file(path: Path, language: str) -> PromptSet:
    """Read a file with one text a line; raises as :func:`dataset`."""
    content = _read(path)
    texts = [line.strip() for line in content.decode().splitlines() if line.strip()]
    prompts = [SpokenPrompt(f"line-{index}", text) for index, text in enumerate(texts, start=1)]
    return PromptSet(_checked(prompts, path), language, path.name, "not stated", _digest(content, ()))


def dataset(folder: Path, source: str, language: str) -> PromptSet:
    """Read a folder in the layout of seed-tts-eval: ``meta.lst``, and recordings by relative paths.

    Args:
        folder: with the list.
        source: its name for the report.
        language: of its texts.

    Raises:
        InvalidRequestError: the list or a recording is missing, or a line has another form; the message names the line.
    """
    content = _read(folder / LIST)
    prompts = list(_lines(content.decode(), folder))
    recordings = sorted({prompt.ref_audio for prompt in prompts if prompt.ref_audio is not None})
    digest = _digest(content, recordings)
    return PromptSet(_checked(prompts, folder / LIST), language, source, licence_of(folder), digest)


def licence_of(folder: Path) -> str:
    """The licence that the dataset's card or licence file states, in the folder or the one above."""
    for place in (folder, folder.parent):
        for line in _head(place / "README.md"):
            key, _, value = line.partition(":")
            if key.strip() == "license" and value.strip():
                return value.strip()
        for name in ("LICENSE", "LICENSE.txt", "LICENCE"):
            if first := next((line.strip() for line in _head(place / name) if line.strip()), None):
                return first
    return "not stated"


def _head(path: Path) -> list[str]:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(20_000).splitlines()
    except OSError:
        return []


def _lines(content: str, folder: Path) -> Iterator[SpokenPrompt]:
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        fields = [field.strip() for field in line.split("|")]
        if len(fields) not in (4, 5):
            raise InvalidRequestError(
                f"{LIST}, line {number} has {len(fields)} fields, expected name|words of the recording|recording|text"
            )
        name, ref_text, ref_audio, text = fields[:4]
        recording = folder / ref_audio
        if not recording.resolve().is_relative_to(folder.resolve().parent):
            raise InvalidRequestError(f"{LIST}, line {number} names {ref_audio!r}, which lies outside of the dataset")
        if not recording.is_file():
            raise InvalidRequestError(f"{LIST}, line {number} names {ref_audio!r}, which is not there")
        yield SpokenPrompt(name, text, recording, ref_text)


def _checked(prompts: Sequence[SpokenPrompt], path: Path) -> Sequence[SpokenPrompt]:
    if not prompts or len(prompts) > MOST_PROMPTS:
        raise InvalidRequestError(f"{str(path)!r} has {len(prompts)} prompts, expected 1 to {MOST_PROMPTS}")
    for prompt in prompts:
        if not any(letter.isalnum() for letter in prompt.text) or len(prompt.text) > LONGEST_TEXT:
            raise InvalidRequestError(
                f"the text of {prompt.name!r} has {len(prompt.text)} characters, expected words, and at most "
                f"{LONGEST_TEXT} characters"
            )
    return prompts


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InvalidRequestError(f"{str(path)!r} is larger than {MOST_BYTES // 2**20} MiB; name a list of prompts")
        content = path.read_bytes()
        content.decode()
    except OSError as error:
        raise InvalidRequestError(f"prompts cannot be read from {str(path)!r}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"{str(path)!r} is not text in UTF-8: {error}") from error
    return content


def _digest(content: bytes, files: Sequence[Path]) -> str:
    whole = hashlib.sha256(content)
    for path in files:
        whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()
