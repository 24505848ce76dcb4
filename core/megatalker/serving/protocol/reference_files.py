"""Recordings that are sent along with a request, as text."""

import base64
import re
from urllib.parse import unquote

from megatalker.errors import InvalidRequestError

_ADDRESS = re.compile(r"\s*[a-z][a-z0-9+.-]{0,20}://", re.IGNORECASE)
_EXPECTED = "expected the content of an audio file, in base64 or as a data: URL (data:audio/wav;base64,...)"
_STANDARD = str.maketrans("-_", "+/", " \t\r\n=")
"""Base64 for addresses to the usual one; without white space and padding."""


def decode_reference(text: str) -> bytes:
    """Return the content of the audio file in ``ref_audio``.

    Raises:
        InvalidRequestError: it is an address, which is not fetched, or no base64.
    """
    if _ADDRESS.match(text):
        raise InvalidRequestError(f"ref_audio is an address, and this server fetches nothing; {_EXPECTED}")
    body = text
    if text[:5].lower() == "data:":
        head, comma, body = text.partition(",")
        if not comma or not head.rstrip().lower().endswith(";base64"):
            raise InvalidRequestError(f"ref_audio is a data: URL without base64; {_EXPECTED}")
        if "%" in body:
            body = unquote(body)
    body = body.translate(_STANDARD)
    try:
        return base64.b64decode(body + "=" * (-len(body) % 4), validate=True)
    except ValueError as error:  # binascii.Error is one; letters beyond ASCII are another
        raise InvalidRequestError(f"ref_audio is not base64; {_EXPECTED}") from error
