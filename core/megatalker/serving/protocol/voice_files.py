"""Voices that are sent along with a request."""

import base64

from megatalker.errors import InvalidRequestError
from megatalker.voices import Voice


def encode_voice(voice: Voice) -> str:
    """A voice as text: its file in base64."""
    return base64.b64encode(voice.to_bytes()).decode()


def decode_voice(text: str) -> Voice:
    """The voice in such a text.

    Raises:
        InvalidRequestError: not base64, or not a voice file.
    """
    try:
        content = base64.b64decode(text, validate=True)
    except ValueError as error:  # binascii.Error is one; letters beyond ASCII are another
        raise InvalidRequestError(
            f"voice_file is not base64 ({error}); expected the content of a file made by Voice.save, in base64"
        ) from error
    return Voice.from_bytes(content)
