"""Voices, the files they are kept in, and the voices and languages that a checkpoint offers."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors.torch import load, save
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.errors import InvalidRequestError, explain_validation
from megatalker.settings.files import read_regular_file

VoiceKind = Literal["speaker", "design", "clone", "mix"]

_FORMAT = "megatalker-voice-1"
_LARGEST = 1e4
"""Largest value of a speaker embedding, whose values lie around 10; far larger ones overflow in 16-bit arithmetic."""

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_LARGEST_ID = 2**24
"""Largest id, as in any checkpoint; ids that a codebook does not have are refused with the request."""
_MOST_BYTES = 1 << 24
"""The largest voice file; one with a minute of reference codes has a hundredth of it."""


class _Fields(BaseModel):
    """Fields of a voice file, besides its tensors."""

    model_config = ConfigDict(extra="forbid", strict=True)

    speaker: str | None
    description: str | None
    reference_text_ids: tuple[int, ...] | None
    checkpoint_fingerprint: str | None
    mixed_from: str | None = None


class UnreadableVoiceError(InvalidRequestError):
    """The files of a voice cannot be read here and now; their content may be good."""


@dataclass(frozen=True, eq=False)
class Voice:
    """A voice that any number of requests may share. Make one with :meth:`named`, :meth:`designed` or
    :class:`megatalker.voices.VoiceCloner`.

    Raises:
        InvalidRequestError: a field has the wrong shape or type, or the fields belong to different kinds of voices.
    """

    speaker: str | None = None
    """A speaker of a ``custom_voice`` checkpoint."""
    description: str | None = None
    """Description of the sound of a ``voice_design`` voice; may be empty."""
    x_vector: Tensor | None = None
    """``[talker hidden size]`` floats, on the CPU: the speaker embedding of a recording, for ``base`` checkpoints."""
    reference_codes: Tensor | None = None
    """``[R, code groups]`` int64, on the CPU: the recording itself, for in-context cloning."""
    reference_text_ids: tuple[int, ...] | None = None
    """Ids of what is said in the recording; given exactly when ``reference_codes`` are."""
    checkpoint_fingerprint: str | None = None
    """Cloned and mixed voices: the checkpoint that it was made with. Another checkpoint refuses it."""
    mixed_from: str | None = None
    """Mixed voices: names and weights, for people; :func:`megatalker.mix_voices` makes them."""

    def __post_init__(self) -> None:
        given = [name for name in ("speaker", "description", "x_vector") if getattr(self, name) is not None]
        if len(given) != 1:
            raise InvalidRequestError(
                f"a voice needs exactly one of speaker, description and x_vector, found {', '.join(given) or 'none'}"
            )
        if (self.reference_codes is None) != (self.reference_text_ids is None):
            raise InvalidRequestError("reference_codes and reference_text_ids go together; give both or neither")
        if self.reference_codes is not None and self.x_vector is None:
            raise InvalidRequestError("reference_codes need an x_vector; make the voice with VoiceCloner")
        if self.mixed_from is not None and (self.x_vector is None or self.reference_codes is not None):
            raise InvalidRequestError("mixed_from goes with an x_vector alone; make the voice with mix_voices")
        _check_tensors(self.x_vector, self.reference_codes)
        if self.reference_text_ids is not None and not self.reference_text_ids:
            raise InvalidRequestError("reference_text_ids are empty; expected the ids of what the recording says")
        if not all(0 <= number <= _LARGEST_ID for number in self.reference_text_ids or ()):
            raise InvalidRequestError(
                f"reference_text_ids hold numbers outside of 0 to {_LARGEST_ID}, which are no ids"
            )

    @classmethod
    def named(cls, speaker: str) -> "Voice":
        """A speaker of a ``custom_voice`` checkpoint; see :func:`list_speakers`."""
        return cls(speaker=speaker)

    @classmethod
    def designed(cls, description: str) -> "Voice":
        """A voice in words, for ``voice_design`` checkpoints."""
        return cls(description=description)

    @property
    def kind(self) -> VoiceKind:
        """The kind of voice, by the field that is set."""
        if self.speaker is not None:
            return "speaker"
        if self.description is not None:
            return "design"
        return "clone" if self.mixed_from is None else "mix"

    @property
    def in_context(self) -> bool:
        """The recording itself stands in the prompt, not only its speaker embedding."""
        return self.reference_codes is not None

    @property
    def reference_digest(self) -> bytes | None:
        """Stands for :attr:`reference_codes`: equal for equal codes."""
        return None if self.reference_codes is None else blake2b(self.reference_codes.numpy().tobytes()).digest()

    def save(self, path: str | Path) -> None:
        """Write the voice to one safetensors file, so that a recording is encoded once."""
        Path(path).write_bytes(self.to_bytes())

    def to_bytes(self) -> bytes:
        """The content of a file that :meth:`load` reads."""
        tensors = {"x_vector": self.x_vector, "reference_codes": self.reference_codes}
        fields = _Fields(
            speaker=self.speaker,
            description=self.description,
            reference_text_ids=self.reference_text_ids,
            checkpoint_fingerprint=self.checkpoint_fingerprint,
            mixed_from=self.mixed_from,
        )
        present = {name: tensor.contiguous() for name, tensor in tensors.items() if tensor is not None}
        content: bytes = save(present, metadata={"format": _FORMAT, "voice": fields.model_dump_json()})
        return content

    @classmethod
    def load(cls, path: str | Path) -> "Voice":
        """Read a file written by :meth:`save`.

        Raises:
            InvalidRequestError: no such file, one that cannot be read (an
                :class:`~megatalker.voices.voice.UnreadableVoiceError`), or not a voice file.
        """
        try:
            content = read_regular_file(Path(path), _MOST_BYTES)
        except (FileNotFoundError, NotADirectoryError, ValueError) as error:  # ValueError: no possible path
            raise InvalidRequestError(f"voice file {str(path)!r} does not exist") from error
        except OSError as error:
            raise UnreadableVoiceError(f"voice file {str(path)!r} cannot be read: {error.strerror or error}") from error
        return cls.from_bytes(content, repr(str(path)))

    @classmethod
    def from_bytes(cls, content: bytes, name: str = "voice_file") -> "Voice":
        """The voice in the content of such a file.

        Args:
            content: of the file.
            name: what errors call it.

        Raises:
            InvalidRequestError: it is not a voice file.
        """
        if len(content) > _MOST_BYTES:
            raise InvalidRequestError(f"{name} has {len(content):,} bytes, expected at most {_MOST_BYTES:,}")
        try:
            tensors = load(content)
            length = int.from_bytes(content[:8], "little")
            metadata = json.loads(content[8 : 8 + length]).get("__metadata__") or {}
        except Exception as error:  # of safetensors itself, or of torch about types that it does not know
            raise InvalidRequestError(
                f"{name} is not a voice file: {type(error).__name__}: {error}; write one with Voice.save"
            ) from error
        if metadata.get("format") != _FORMAT:
            raise InvalidRequestError(
                f"{name} has format {metadata.get('format')!r}, expected {_FORMAT!r}; write one with Voice.save"
            )
        return _from_file(name, metadata.get("voice"), tensors)


def is_voice_path(name: str) -> bool:
    """Whether a voice's name looks like the path of a voice file."""
    return bool(Path(name).suffix) or "/" in name or "\\" in name


def list_speakers(checkpoint: Checkpoint) -> list[str]:
    """The built-in speakers, sorted; empty unless the checkpoint is ``custom_voice``."""
    return sorted(checkpoint.config.speakers)


def list_languages(checkpoint: Checkpoint) -> list[str]:
    """Return the values of ``language``: ``auto`` and the languages, sorted. A dialect is chosen by its speaker."""
    return ["auto", *sorted(name for name in checkpoint.config.languages if "dialect" not in name)]


def default_voice(checkpoint: Checkpoint) -> Voice:
    """The voice of a request that names none: the first speaker listed by the checkpoint, or no description.

    Raises:
        InvalidRequestError: a ``base`` checkpoint, which has no voice of its own.
    """
    if checkpoint.config.variant == "custom_voice":
        return Voice.named(next(iter(checkpoint.config.speakers)))
    if checkpoint.config.variant == "voice_design":
        return Voice.designed("")
    raise InvalidRequestError(
        f"checkpoint {checkpoint.name!r} is a base model and has no voice of its own; clone one from reference audio"
    )


def _check_tensors(x_vector: Tensor | None, codes: Tensor | None) -> None:
    if x_vector is not None and not (
        x_vector.ndim == 1 and x_vector.numel() and x_vector.dtype in _FLOATS and x_vector.isfinite().all()
    ):
        raise InvalidRequestError(
            f"x_vector has shape {list(x_vector.shape)} and type {x_vector.dtype}, "
            "expected finite floats of 16, 32 or 64 bits and shape [hidden size]"
        )
    if x_vector is not None and bool((x_vector.abs() > _LARGEST).any()):
        raise InvalidRequestError(
            f"x_vector reaches {float(x_vector.abs().max()):g}, expected values from -{_LARGEST:g} to {_LARGEST:g}; "
            "make the voice with VoiceCloner"
        )
    if codes is not None and not (
        codes.ndim == 2 and codes.shape[0] >= 1 <= codes.shape[1] and codes.dtype == torch.int64
    ):
        raise InvalidRequestError(
            f"reference_codes have shape {list(codes.shape)} and type {codes.dtype}, "
            "expected int64 of shape [frames >= 1, groups >= 1]"
        )
    if codes is not None and not 0 <= int(codes.min()) <= int(codes.max()) <= _LARGEST_ID:
        raise InvalidRequestError(
            f"reference_codes reach from {int(codes.min())} to {int(codes.max())}, expected 0 to {_LARGEST_ID}; "
            "make the voice with VoiceCloner"
        )


def _from_file(name: str, text: str | None, tensors: Mapping[str, Tensor]) -> Voice:
    try:
        fields = _Fields.model_validate_json(text or "")
        return Voice(
            **fields.model_dump(), x_vector=tensors.get("x_vector"), reference_codes=tensors.get("reference_codes")
        )
    except ValidationError as error:
        faults = explain_validation(error.errors(include_url=False))
        raise InvalidRequestError(f"{name} is not a voice file: {faults}; write one with Voice.save") from error
    except InvalidRequestError as error:  # an impossible voice
        raise InvalidRequestError(f"{name} is not a voice file: {error}; write one with Voice.save") from error
