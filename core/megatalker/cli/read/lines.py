"""Files of JSON lines, each a request for one file of speech."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from megatalker.cli.read.speaking import SpeechFile, SpeechPart, file_name, text_seed
from megatalker.cli.say.formats import Format
from megatalker.engine.speech.options import SpeechOptions
from megatalker.errors import InvalidRequestError, explain_validation
from megatalker.settings.files import read_regular_file
from megatalker.voices import Voice

MOST_BYTES = 1 << 26
MOST_LINES = 100_000
FindVoice = Callable[[str], str | Voice | None]


class SpeechLine(BaseModel):
    """One line of a batch."""

    model_config = ConfigDict(extra="forbid", strict=True)

    input: str
    id: str | None = None
    voice: str | None = None
    language: str | None = None
    instruct: str | None = None
    seed: int | None = None


def read_lines(path: Path) -> list[SpeechLine]:
    """Read a file of JSON lines; empty ones are left out.

    Raises:
        InvalidRequestError: the file cannot be read, is empty, or a line is wrong, which the message names.
    """
    try:
        text = read_regular_file(path, MOST_BYTES).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InvalidRequestError(f"the file {str(path)!r} cannot be read: {why}") from error
    found: list[SpeechLine] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            found.append(SpeechLine.model_validate_json(line))
        except ValidationError as error:
            faults = explain_validation(error.errors(include_url=False)[:4], known=list(SpeechLine.model_fields))
            raise InvalidRequestError(f"line {number} of {path.name}: {faults}") from error
        if not any(map(str.isalnum, found[-1].input)):
            raise InvalidRequestError(f"line {number} of {path.name}: input has no letter or digit to say")
    if not 0 < len(found) <= MOST_LINES:
        raise InvalidRequestError(f"{path.name} has {len(found):,} requests, expected 1 to {MOST_LINES:,}")
    return found


def line_files(
    lines: Sequence[SpeechLine], options: SpeechOptions, find: FindVoice, *, seed: int, kind: Format
) -> list[SpeechFile]:
    """Return the files of these lines, named by their ``id`` or their number; ``find`` returns voices by name.

    Raises:
        InvalidRequestError: two have the same name.
    """
    digits, files, names = len(str(len(lines))), [], dict[str, int]()
    for number, line in enumerate(lines, 1):
        own = replace(
            options,
            voice=options.voice if line.voice is None else find(line.voice),
            language=line.language or options.language,
            instruct=line.instruct or options.instruct,
            seed=text_seed(seed, line.input) if line.seed is None else line.seed,
        )
        name = file_name(f"{number:0{digits}}" if line.id is None else line.id, f".{kind}")
        other = names.setdefault(name.casefold(), number)
        if other != number:
            raise InvalidRequestError(f"requests {other} and {number} make the same file {name!r}; rename one's id")
        files.append(SpeechFile(name, (SpeechPart(line.input, own, 0.0),), {}))
    return files
