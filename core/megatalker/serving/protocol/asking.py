"""The options of an utterance as what a client asks a server for."""

from dataclasses import asdict
from typing import Any

from megatalker.engine.options import SpeechOptions
from megatalker.serving.protocol.voice_files import encode_voice
from megatalker.voices import Voice


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
    }
