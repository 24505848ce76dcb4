"""The built-in backends, registered through the same entry point as everybody's."""

from megatalker.interfaces import CodecBackend, TalkerBackend
from megatalker.plugins import hookimpl
from megatalker_backends.compiled.spec import TALKER as COMPILED
from megatalker_backends.megakernel.spec import TALKER as MEGAKERNEL
from megatalker_backends.reference.spec import CODEC as REFERENCE_CODEC
from megatalker_backends.reference.spec import TALKER as REFERENCE
from megatalker_backends.streaming.spec import CODEC as STREAMING_CODEC


@hookimpl
def megatalker_backends() -> list[TalkerBackend | CodecBackend]:
    return [MEGAKERNEL, COMPILED, REFERENCE, STREAMING_CODEC, REFERENCE_CODEC]
