"""Voices: built-in speakers, described voices, and voices cloned from recordings."""

from megatalker.voices.cloner import VoiceCloner, clone_voice
from megatalker.voices.mixing import mix_voices
from megatalker.voices.reference_audio import read_reference
from megatalker.voices.voice import Voice, VoiceKind, default_voice, list_languages, list_speakers

__all__ = [
    "Voice",
    "VoiceCloner",
    "VoiceKind",
    "clone_voice",
    "default_voice",
    "list_languages",
    "list_speakers",
    "mix_voices",
    "read_reference",
]
