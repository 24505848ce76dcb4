"""The text on the command line, which may be the name of a file by mistake."""

from collections.abc import Iterable
from pathlib import Path

from megatalker.errors import InvalidRequestError

_TEXT_ENDINGS = (".txt", ".text", ".md", ".markdown", ".rst", ".srt", ".vtt", ".html", ".htm", ".json", ".csv", ".log")
_LONGEST_NAME = 1024


def check_text_argument(text: str) -> None:
    """Refuse the name of a file, whose content is meant.

    Raises:
        InvalidRequestError: it is one, or ends like one and there is no such file.
    """
    name = text.strip()
    if not name or name == "-" or len(name) > _LONGEST_NAME or "\n" in name or "\0" in name:
        return
    path = Path(name)
    if _is_file(path):
        raise InvalidRequestError(
            f"{name!r} is a file; to speak what is in it: megatalker say - < {name}; to speak its name: "
            f"echo {name} | megatalker say -"
        )
    if path.suffix.lower() in _TEXT_ENDINGS and len(name.split()) == 1:
        raise InvalidRequestError(
            f"{name!r} looks like the name of a file, and there is no such file; expected the text itself, or a file "
            "on standard input: megatalker say - < FILE"
        )


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # such as a name that is too long
        return False


def read_cast(given: Iterable[str]) -> dict[str, str] | None:
    """Return the voices of ``--cast NAME=VOICE`` by their names; ``None``: there are none.

    Raises:
        InvalidRequestError: one has another form, or a name comes twice.
    """
    cast: dict[str, str] = {}
    for pair in given:
        name, sign, voice = (part.strip() for part in pair.partition("="))
        if not (name and sign and voice) or name in cast:
            raise InvalidRequestError(f"--cast is {pair!r:.80}, expected NAME=VOICE, each name once")
        cast[name] = voice
    return cast or None
