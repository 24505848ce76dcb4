"""Captions: estimated word times as SubRip (``.srt``) or WebVTT (``.vtt``)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from megatalker.engine.speech.word_times import SpokenWord
from megatalker.errors import InvalidRequestError

ENDINGS = (".srt", ".vtt")
MOST_CHARS = 84
"""Two lines of 42 characters, as broadcasters have."""
LONGEST_S = 7.0
_SENTENCE_ENDS = tuple(".!?。！？…")  # noqa: RUF001 - CJK punctuation is meant


@dataclass(frozen=True, slots=True)
class Caption:
    """A text and when it is shown, in seconds."""

    begins_s: float
    ends_s: float
    text: str
    estimated: bool = True


def check_captions_path(path: Path) -> None:
    """Raise ``InvalidRequestError`` where the ending of the file names no format of captions."""
    if path.suffix.lower() not in ENDINGS:
        raise InvalidRequestError(f"captions are written as {' or '.join(ENDINGS)}; {str(path)!r} ends otherwise")


def captions(words: Iterable[SpokenWord], offset_s: float = 0.0) -> list[Caption]:
    """Return the words as captions: whole sentences where they are short enough."""
    made: list[Caption] = []
    running: list[SpokenWord] = []

    def end() -> None:
        if running:
            text = "".join(word.before + word.text for word in running)
            begins, ends = running[0].begins_s, max(word.ends_s for word in running)
            estimated = any(word.estimated for word in running)
            made.append(Caption(offset_s + begins, offset_s + ends, " ".join(text.split()), estimated))
            running.clear()

    for word in words:
        chars = sum(len(one.before) + len(one.text) for one in running) + len(word.before) + len(word.text)
        if running and (chars > MOST_CHARS or word.ends_s - running[0].begins_s > LONGEST_S or "\n" in word.before):
            end()
        running.append(word)
        if word.text.rstrip("\"'”’»)").endswith(_SENTENCE_ENDS):  # noqa: RUF001 - closing quotes are meant
            end()
    end()
    return made


def write_captions(path: Path, shown: Sequence[Caption]) -> None:
    """Write captions in the format of the file's ending. WebVTT says where times are estimates; SubRip cannot.

    Raises:
        InvalidRequestError: the ending names no format, or the file cannot be written.
    """
    check_captions_path(path)
    try:
        path.write_text(format_captions(shown, path.suffix.lower()), encoding="utf-8", errors="replace")
    except OSError as error:
        raise InvalidRequestError(f"the captions {str(path)!r} cannot be written: {error.strerror}") from error


def format_captions(shown: Sequence[Caption], ending: str) -> str:
    """Return the content of a file with this ending."""
    web = ending == ".vtt"
    note = "\nNOTE The times are estimates.\n" if any(one.estimated for one in shown) else ""
    blocks = [f"WEBVTT\n{note}"] if web else []
    for number, one in enumerate(shown, 1):
        begins, ends = (_clock(seconds, "." if web else ",") for seconds in (one.begins_s, one.ends_s))
        text = one.text.replace("&", "&amp;").replace("<", "&lt;").replace("-->", "--&gt;") if web else one.text
        blocks.append(f"{number}\n{begins} --> {ends}\n{text}\n")
    return "\n".join(blocks)


def _clock(seconds: float, point: str) -> str:
    milliseconds = round(max(0.0, seconds) * 1000)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{point}{rest % 1000:03}"
