"""Requests of a client: their fields, their key, and how long to wait for an answer."""

import re
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

from megatalker.engine.speech.options import SpeechOptions
from megatalker.errors import SettingsError
from megatalker.prompt.rewriting.lexicon import Lexicon
from megatalker.serving.protocol.voice_files import encode_voice
from megatalker.voices import Voice

T = TypeVar("T")

CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 60.0
"""A server that owes speech is given up after this time; waiting for a free stream counts."""


def key_headers(api_key: str | None) -> dict[str, str]:
    """Headers of requests to a server that wants this key; none for ``None``.

    Raises:
        SettingsError: the key is empty, as that of a variable that is not set, or cannot stand in a header.
    """
    if api_key is None:
        return {}
    if not (isinstance(api_key, str) and api_key.isascii() and api_key.isprintable()) or " " in api_key or not api_key:
        found = "empty" if isinstance(api_key, str) and not api_key.strip() else "no key (it is not shown)"
        raise SettingsError(
            f"api_key is {found}; expected printable ASCII characters without spaces, or None for a server without keys"
        )
    return {"Authorization": f"Bearer {api_key}"}


def shown_url(url: str) -> str:
    """Return the URL without user name and password, for messages and logs."""
    return re.sub(r"//[^/?#]*@", "//", url)


def speech_fields(options: SpeechOptions) -> dict[str, Any]:
    """Return the same options as :class:`~megatalker.serving.protocol.messages.SpeechFields`, unchecked and without the
    seed, which the caller may have to choose.
    """
    voice = options.voice
    return {
        "voice": None if isinstance(voice, Voice) else voice,
        "voice_file": encode_voice(voice) if isinstance(voice, Voice) else None,
        "language": options.language,
        "instruct": options.instruct,
        "sampling": None if options.sampling is None else asdict(options.sampling),
        "layout": options.layout,
        "max_frames": options.max_frames,
        "max_ahead_s": options.max_ahead_s,
        "clean_text": options.clean_text,
        "normalize": options.normalize,
        "markup": options.markup,
        "cast": _cast(options, str, str),
        "cast_files": _cast(options, Voice, encode_voice),
        "lexicon": options.lexicon.merged() if isinstance(options.lexicon, Lexicon) else options.lexicon,
    }


def _cast(options: SpeechOptions, kind: type[T], text: Callable[[T], str]) -> dict[str, str] | None:
    if options.cast is None:
        return None
    return {name: text(voice) for name, voice in options.cast.items() if isinstance(voice, kind)} or None
