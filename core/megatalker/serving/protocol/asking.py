"""How a client asks a server: with which fields, under which key, and how long it waits for an answer."""

from dataclasses import asdict
from typing import Any

from megatalker.engine.options import SpeechOptions
from megatalker.serving.protocol.voice_files import encode_voice
from megatalker.voices import Voice

CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 60.0
"""After which a server that owes speech is given up; waiting for a free stream counts."""


def key_headers(api_key: str | None) -> dict[str, str]:
    """Of requests to a server that wants this key; none for ``None``."""
    return {} if api_key is None else {"Authorization": f"Bearer {api_key}"}


def speech_fields(options: SpeechOptions) -> dict[str, Any]:
    """:class:`~megatalker.serving.protocol.messages.SpeechFields` that say the same, not checked. The seed is left to
    the caller, who may have to know it.
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
    }
