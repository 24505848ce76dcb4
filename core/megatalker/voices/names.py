"""Names of voices: what a name may be, and which names are the same."""

import unicodedata

from megatalker.errors import InvalidRequestError

__all__ = ["check_name", "name_key", "tidy_name"]

MAX_CHARS = 64
MAX_BYTES = 200
"""Bytes of a name in UTF-8. A file name has at most 255, and the name is only a part of it."""
_PUNCTUATION = frozenset("-_ '\u2019\u00b7")
_JOINERS = frozenset("\u200c\u200d")
"""Scripts of India and Iran write some letters with them."""
_RESERVED = frozenset(
    ["con", "prn", "aux", "nul", *(f"{device}{number}" for device in ("com", "lpt") for number in range(1, 10))]
)
"""Names that are devices where a folder is shared with Windows."""


def tidy_name(name: str) -> str:
    """The name in Unicode's composed form (NFC), with one plain space where there were several or others."""
    spaced = "".join(" " if unicodedata.category(sign) == "Zs" else sign for sign in name)
    return unicodedata.normalize("NFC", " ".join(part for part in spaced.split(" ") if part))


def name_key(name: str) -> str:
    """Return the key that all spellings of a voice's name share, whatever their case or Unicode form."""
    if len(name) > 4 * MAX_CHARS:
        return name  # no voice has such a name, and composing a long one may take long
    folded = unicodedata.normalize("NFKC", tidy_name(name)).casefold()
    return unicodedata.normalize("NFKC", "".join(sign for sign in folded if sign not in _JOINERS))


def check_name(name: str) -> str:
    """Return the name, tidy, if it can be that of a voice. It becomes the name of a file.

    Raises:
        InvalidRequestError: it is empty, too long, or has characters that no name of a voice has.
    """
    tidy = tidy_name(name[: 4 * MAX_CHARS])
    good = (
        len(name) <= 4 * MAX_CHARS
        and 0 < len(tidy) <= MAX_CHARS
        and _encoded_bytes(tidy) <= MAX_BYTES
        and (tidy[0] == "_" or unicodedata.category(tidy[0])[0] in "LN")
        and all(_is_good(sign) for sign in tidy)
        and name_key(tidy) not in _RESERVED
    )
    if not good:
        raise InvalidRequestError(
            f"a voice cannot be named {name[:80]!r}; expected up to {MAX_CHARS} letters, digits, spaces, '-', '_' and "
            f"apostrophes, at most {MAX_BYTES} bytes, with a letter, a digit or '_' first"
        )
    return tidy


def _is_good(sign: str) -> bool:
    return unicodedata.category(sign)[0] in "LMN" or sign in _PUNCTUATION or sign in _JOINERS


def _encoded_bytes(name: str) -> int:
    return len(name.encode("utf-8", "surrogatepass"))
