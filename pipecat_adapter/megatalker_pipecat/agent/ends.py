"""Audio input and output of a conversation on this machine: its sound device, or a file."""

from dataclasses import dataclass
from pathlib import Path

from pipecat.processors.frame_processor import FrameProcessor
from pipecat.transports.base_transport import BaseTransport

from megatalker.errors import UnsupportedError
from megatalker_pipecat.agent.plan import Plan
from megatalker_pipecat.agent.wav_output import WavOutput

INSTEAD = "use the browser, or --text --out FILE"


@dataclass(frozen=True, slots=True)
class Ends:
    """Audio input of a conversation (``None``: it is typed), and its audio output."""

    source: FrameProcessor | None
    sink: FrameProcessor


def ends_here(plan: Plan, out: Path | None) -> Ends:
    """This machine's sound device; or the file ``out`` instead.

    Raises:
        UnsupportedError: there is no way to use a sound device here.
        InvalidRequestError: ``out`` cannot be written.
    """
    if out is not None:
        return Ends(None, WavOutput(out))
    listens = plan.stt is not None
    device = _sound_device(listens)
    return Ends(device.input() if listens else None, device.output())


def _sound_device(listens: bool) -> BaseTransport:
    try:
        import pyaudio
    except ImportError as error:
        raise UnsupportedError(
            "sound devices need PyAudio, which is not installed: pip install 'megatalker[agent-local]' "
            f"(on Linux after apt install portaudio19-dev, on macOS after brew install portaudio); or {INSTEAD}"
        ) from error
    from pipecat.transports.local.audio import LocalAudioTransport, LocalAudioTransportParams

    audio = pyaudio.PyAudio()
    try:
        audio.get_default_output_device_info()
        if listens:
            audio.get_default_input_device_info()
    except OSError as error:
        raise UnsupportedError(f"there is no usable sound device ({error}); {INSTEAD}") from error
    finally:
        audio.terminate()
    return LocalAudioTransport(LocalAudioTransportParams(audio_in_enabled=listens, audio_out_enabled=True))
