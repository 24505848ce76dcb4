"""Whether a recording and its transcript make a good voice, before anybody hears a bad one."""

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.errors import InvalidRequestError
from megatalker.voices.reference_audio import ReferenceSource, Samples, mix_down, read_unmixed, to_24_khz
from megatalker.voices.reference_edges import find_speech, trim_edges
from megatalker.voices.reference_faults import ReferenceFault, source_faults, speech_faults

__all__ = ["examine_reference", "read_good_reference", "reference_warnings"]


def examine_reference(source: ReferenceSource, transcript: str | None) -> tuple[Samples, list[ReferenceFault]]:
    """Read a recording for a voice: float32 ``[samples]``, mono, 24 kHz, and all that is wrong with it.

    Silence before and after the speech is no fault: it is cut before the recording is encoded.

    Args:
        source: see :func:`~megatalker.voices.read_reference`.
        transcript: what is said in it, or ``None`` for a voice that needs none.

    Raises:
        InvalidRequestError: as :func:`~megatalker.voices.read_reference`.
        UnsupportedError: as :func:`~megatalker.voices.read_reference`.
    """
    audio, rate = read_unmixed(source)
    mono = mix_down(audio)
    samples = to_24_khz(mono, rate)
    seconds = len(trim_edges(samples)) / SAMPLE_RATE
    return samples, [*source_faults(mono, rate), *speech_faults(find_speech(samples), seconds, transcript)]


def reference_warnings(source: ReferenceSource, transcript: str | None) -> list[str]:
    """Say what makes a recording a poor reference; arguments and errors are those of :func:`examine_reference`."""
    return list(map(str, examine_reference(source, transcript)[1]))


def read_good_reference(content: bytes, transcript: str | None, max_seconds: float) -> Samples:
    """Read a recording for a voice that is to be kept: float32 ``[samples]``, mono, 24 kHz.

    Args:
        content: of an audio file.
        transcript: what is said in it, or ``None`` for a voice that needs none.
        max_seconds: of the recording, without silence at its edges.

    Raises:
        InvalidRequestError: as :func:`~megatalker.voices.read_reference`; or the recording is too long, was sampled
            below 16 kHz, is mostly silence, is clipped, or cannot be what the transcript says.
        UnsupportedError: as :func:`~megatalker.voices.read_reference`.
    """
    samples, faults = examine_reference(content, transcript)
    seconds = len(trim_edges(samples)) / SAMPLE_RATE
    if seconds > max_seconds:
        raise InvalidRequestError(
            f"the reference audio lasts {seconds:.2f} s, expected at most {max_seconds:g} s; cut it, 3 to 15 s of "
            "clear speech is best"
        )
    for fault in faults:
        if fault.severe:
            raise InvalidRequestError(fault.message)
    return samples
