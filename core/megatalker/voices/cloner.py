"""Makes voices from recordings with the encoders of ``base`` checkpoints."""

import logging
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import FRAME_SAMPLES, SAMPLE_RATE
from megatalker.checkpoint.template import reference_ids
from megatalker.errors import InvalidRequestError
from megatalker.interfaces import LoadContext
from megatalker.plugins import BackendRegistry, computing_dtype
from megatalker.plugins.checked import CheckedCodec, load_codec
from megatalker.plugins.options import own_settings
from megatalker.settings import Settings
from megatalker.voices.reference_audio import LOUDEST_PEAK
from megatalker.voices.reference_edges import find_speech, trim_edges
from megatalker.voices.reference_faults import speech_faults
from megatalker.voices.speaker_encoder import SpeakerEncoder
from megatalker.voices.voice import Voice

logger = logging.getLogger(__name__)


class VoiceCloner:
    """Turns recordings into voices, as the official encoders do.

    Loads the speaker encoder at the first :meth:`clone`, and a codec that encodes at the first in-context one; neither
    needs the talker. In float32, on the CPU by default: the encoders are small, and run once for each recording.

    Raises:
        InvalidRequestError: the checkpoint is not a ``base`` model.
    """

    def __init__(self, checkpoint: Checkpoint, device: torch.device | None = None) -> None:
        if checkpoint.config.variant != "base":
            raise InvalidRequestError(
                f"checkpoint {checkpoint.name!r} is a {checkpoint.config.variant} model; cloning needs a base model "
                "such as demo-base or Qwen/Qwen3-TTS-12Hz-0.6B-Base"
            )
        self._checkpoint, self._device = checkpoint, device or torch.device("cpu")
        self._speaker_encoder: SpeakerEncoder | None = None
        self._codec: CheckedCodec | None = None

    def clone(self, audio: npt.NDArray[np.float32], *, reference_text: str | None = None, trim: bool = True) -> Voice:
        """Encode one recording. What makes it a poor reference, such as a text that does not fit it, is logged as a
        warning.

        Args:
            audio: ``[samples]`` float32 at 24 kHz mono (:func:`megatalker.voices.read_reference`), at least one frame
                long; samples beyond full scale are taken as they are.
            reference_text: every word said in the recording, for in-context cloning; ``None`` keeps the speaker
                embedding only.
            trim: cut silence before and after the speech to at most 0.15 s first: an in-context voice that ends in
                silence ends its own speech early. ``False`` encodes the samples as they are, and gives what the
                official ``create_voice_clone_prompt`` gives for them.

        Raises:
            InvalidRequestError: malformed audio, or an empty reference text.
            CheckpointError: the checkpoint's encoders cannot be loaded.
            BackendUnavailableError: no codec that is installed encodes on this device.
        """
        samples = _checked(audio)
        trimmed = trim_edges(samples)
        for fault in speech_faults(find_speech(samples), len(trimmed) / SAMPLE_RATE, reference_text):
            logger.warning("%s", fault)
        if trim:
            samples = trimmed
        ids = None if reference_text is None else tuple(reference_ids(self._checkpoint.tokenizer, reference_text))
        return Voice(
            x_vector=self._embed_speaker(samples),
            reference_codes=None if ids is None else self._encode(samples),
            reference_text_ids=ids,
            checkpoint_fingerprint=self._checkpoint.fingerprint,
        )

    def close(self) -> None:
        """Free the encoders; the next :meth:`clone` loads them again."""
        if self._codec is not None:
            self._codec.close()
        self._speaker_encoder = self._codec = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _embed_speaker(self, samples: npt.NDArray[np.float32]) -> Tensor:
        if self._speaker_encoder is None:
            self._speaker_encoder = SpeakerEncoder(self._checkpoint, self._device)
        return self._speaker_encoder(samples)

    def _encode(self, samples: npt.NDArray[np.float32]) -> Tensor:
        if self._codec is None:
            self._codec = _load_encoder(self._checkpoint, self._device)
        codes = self._codec.encode(torch.from_numpy(samples))
        return codes.cpu().clone()  # cloned: a codec may return an inference tensor


def _load_encoder(checkpoint: Checkpoint, device: torch.device) -> CheckedCodec:
    settings = Settings.model_construct()  # a user's settings of codecs are for those that decode
    spec = BackendRegistry.installed().choose_encoder(checkpoint, device, settings)
    own, dtype = own_settings(spec, settings), computing_dtype(spec, device, settings)
    return load_codec(spec, checkpoint, LoadContext(device, dtype, own, encoder_only=True))


def clone_voice(
    checkpoint: Checkpoint,
    audio: npt.NDArray[np.float32],
    *,
    reference_text: str | None = None,
    trim: bool = True,
    device: torch.device | None = None,
) -> Voice:
    """Encode one recording and free the encoders; see :meth:`VoiceCloner.clone`."""
    with VoiceCloner(checkpoint, device) as cloner:
        return cloner.clone(audio, reference_text=reference_text, trim=trim)


def _checked(audio: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    if not isinstance(audio, np.ndarray) or audio.ndim != 1 or audio.dtype != np.float32:
        found = (
            f"shape {list(audio.shape)} and type {audio.dtype}"
            if isinstance(audio, np.ndarray)
            else type(audio).__name__
        )
        raise InvalidRequestError(
            f"reference audio has {found}, expected a float32 array [samples] at {SAMPLE_RATE} Hz, mono"
        )
    if len(audio) < FRAME_SAMPLES:
        seconds = len(audio) / SAMPLE_RATE
        raise InvalidRequestError(f"reference audio lasts {seconds:.3f} s; expected at least a few seconds of speech")
    if not np.isfinite(audio).all():
        raise InvalidRequestError(
            "reference audio contains values that are not finite; expected samples within [-1, 1]"
        )
    peak = float(np.abs(audio).max())
    if peak > LOUDEST_PEAK:
        raise InvalidRequestError(f"reference audio reaches {peak:g}; expected samples within [-1, 1]")
    return audio
