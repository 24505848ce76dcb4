"""Loaded backends, each in its checking shell: what every one of them would otherwise check for itself.

What goes in is refused before the backend is called; what comes out is believed only after a look. Neither ever waits
for a device: of tensors on an accelerator only shape and type are looked at. Their values are taken on trust, for
prompt and text rows come from core's own builder, and codecs are given codes that were checked on the CPU.
"""

from megatalker.checkpoint import Checkpoint
from megatalker.interfaces import CodecBackend, LoadContext, SettingsT, TalkerBackend
from megatalker.plugins.checked_codec import CheckedCodec
from megatalker.plugins.checked_talker import CheckedTalker
from megatalker.plugins.memory import require_room

__all__ = ["CheckedCodec", "CheckedTalker", "load_codec", "load_talker"]


def load_talker(
    spec: TalkerBackend[SettingsT], checkpoint: Checkpoint, context: LoadContext[SettingsT]
) -> CheckedTalker:
    """Load a talker backend.

    Raises:
        CapacityError: it says that it needs more memory than there is.
        MalformedResultError: it loaded something else, or does not state its limits.
        Exception: anything that its own loader raises.
    """
    require_room("talker backend", spec, checkpoint, context)
    return CheckedTalker(spec.load(checkpoint, context), checkpoint.config)


def load_codec(spec: CodecBackend[SettingsT], checkpoint: Checkpoint, context: LoadContext[SettingsT]) -> CheckedCodec:
    """Load a codec; raises as :func:`load_talker`."""
    return CheckedCodec(spec.load(checkpoint, context), checkpoint.codec_config)
