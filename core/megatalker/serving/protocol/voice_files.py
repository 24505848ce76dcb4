"""Voices that are sent along with a request."""

import base64
import tempfile
from pathlib import Path

from megatalker.errors import InvalidRequestError
from megatalker.voices import Voice
from megatalker.voices.folder import SUFFIX


def encode_voice(voice: Voice) -> str:
    """A voice as text: its file in base64."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"voice{SUFFIX}"
        voice.save(path)
        return base64.b64encode(path.read_bytes()).decode()


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
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"voice_file{SUFFIX}"
        path.write_bytes(content)
        try:
            return Voice.load(path)
        except InvalidRequestError as error:
            raise InvalidRequestError(str(error).replace(str(path), "voice_file")) from error
