"""The subject of a verification: a checkpoint, its backends, and its ways of speaking."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import soundfile
import torch
from numpy import array_equal, float32
from numpy.typing import NDArray

from megatalker.checkpoint import Checkpoint
from megatalker.cli.verify.order import VerifyOptions
from megatalker.errors import InvalidRequestError
from megatalker.interfaces import CodecBackend, TalkerBackend
from megatalker.plugins import BackendRegistry, probe
from megatalker.plugins.checked import load_codec, load_talker
from megatalker.plugins.device import dtype_name, resolve_device, resolve_dtype
from megatalker.settings import Settings
from megatalker.voices import VoiceCloner, read_reference
from megatalker.voices.reference_audio import mix_down, read_unmixed
from megatalker_conformance.cases import Cases
from megatalker_conformance.codes import OfficialCodec
from megatalker_conformance.intelligibility import MakeListener, named_listener
from megatalker_conformance.loading import load_context
from megatalker_conformance.oracle import ORACLE, Oracle
from megatalker_conformance.recogniser import Recogniser
from megatalker_conformance.streams import SuiteStreams
from megatalker_conformance.verify.forward import OfficialForward
from megatalker_conformance.verify.modes import SpeakingMode, modes

ADDED = ("draws", "recordings")
"""Figures of the reach that add up."""


class NotRunError(Exception):
    """A part of the card, or the rest of one, cannot be run here; the message says why, and what to do."""


@dataclass
class VerifySubject:
    """One checkpoint on one machine."""

    checkpoint: Checkpoint
    settings: Settings
    order: VerifyOptions
    registry: BackendRegistry
    device: torch.device
    talker_backend: TalkerBackend
    codec_backend: CodecBackend
    recording: NDArray[float32] | None
    """Recording to clone, ``[samples]`` at 24 kHz."""
    official_recording: str | tuple[NDArray[float32], int] | None
    """The same for the official package: the file, or ``[samples]`` as they are in it, and their rate."""
    listener: MakeListener
    reach: dict[str, float] = field(default_factory=dict)
    """How far the parts have looked, by name."""

    @classmethod
    def open(cls, checkpoint: Checkpoint, settings: Settings, order: VerifyOptions) -> "VerifySubject":
        """Choose the backends as an engine would; raises what :func:`~megatalker_conformance.verify.program.verify`
        does.
        """
        if order.ref_audio is None and order.ref_text is not None:
            raise InvalidRequestError("--ref-text goes with --ref-audio, which is missing")
        if order.ref_audio is not None:
            VoiceCloner(checkpoint)  # says why not, where it cannot clone
        registry, device = BackendRegistry.installed(), resolve_device(settings.device)
        place = checkpoint, device, settings
        talker = registry.choose_talker(settings.backend, *place)
        recording = None if order.ref_audio is None else read_reference(order.ref_audio)
        theirs = None if order.ref_audio is None else for_official(order.ref_audio)
        listener = Recogniser if order.recogniser is None else named_listener(order.recogniser)
        codec = registry.choose_codec(settings.codec, *place)
        return cls(checkpoint, settings, order, registry, device, talker, codec, recording, theirs, listener)

    @property
    def dtype(self) -> torch.dtype:
        """The type that an engine would compute in."""
        return resolve_dtype(self.settings.dtype, self.device)

    @property
    def exact_dtype(self) -> torch.dtype | None:
        """float32, where the talker backend computes in it."""
        return torch.float32 if torch.float32 in self.talker_backend.capabilities.dtypes else None

    @property
    def engine_settings(self) -> Settings:
        """Settings of an engine on these backends and no others."""
        return engine_settings(self.settings, self.talker_backend.name, self.codec_backend.name)

    @cached_property
    def modes(self) -> list[SpeakingMode]:
        """All that the checkpoint has."""
        return modes(self.checkpoint, self.recording, self.order.ref_text)

    @cached_property
    def cases(self) -> Cases:
        return Cases(self.checkpoint)

    @cached_property
    def oracle(self) -> Oracle:
        return Oracle(self.registry, self.checkpoint, self.device)

    @cached_property
    def forward(self) -> OfficialForward:
        """The official modules in float32, asked for whole streams."""
        return OfficialForward(self.checkpoint, self.device)

    @cached_property
    def official_codec(self) -> OfficialCodec:
        """The official codec in float32."""
        return OfficialCodec(self.checkpoint, self.device)

    @cached_property
    def sample_limit(self) -> float:
        """The largest difference of samples from the official codec's that the codec may have."""
        context = load_context(self.codec_backend, self.device, torch.float32, self.settings)
        decoder = load_codec(self.codec_backend, self.checkpoint, context)
        try:
            return self.official_codec.limit(decoder.capabilities)
        finally:
            decoder.close()

    def reached(self, what: str, count: float) -> None:
        """Note how far a part has looked: the largest figure of a name counts, and draws and streams add up."""
        before = self.reach.get(what, 0.0)
        self.reach[what] = before + count if what in ADDED else max(before, count)

    def require_official(self) -> None:
        """Raises:
        NotRunError: the official package is not there.
        """
        spec = self.registry.talker(ORACLE)
        reason = probe(spec, self.checkpoint, self.device, self.settings).reason
        if reason is not None:
            raise NotRunError(f"this compares with the official modules, and {reason}")

    @contextmanager
    def streams(self, dtype: torch.dtype) -> Iterator[SuiteStreams]:
        """Streams on the talker backend, warm.

        Raises:
            NotRunError: it does not compute in this type.
        """
        spec = self.talker_backend
        if dtype not in spec.capabilities.dtypes:
            known = ", ".join(sorted(dtype_name(each) for each in spec.capabilities.dtypes))
            raise NotRunError(f"{spec.name} computes in {known} only, not in {dtype_name(dtype)}")
        decoder = load_talker(spec, self.checkpoint, load_context(spec, self.device, dtype, self.settings))
        try:
            decoder.warmup()
            yield SuiteStreams(decoder)
        finally:
            decoder.close()

    def close(self) -> None:
        """Free the official modules."""
        if "oracle" in self.__dict__:
            self.oracle.close()
        for name in ("forward", "official_codec"):
            self.__dict__.pop(name, None)


def engine_settings(settings: Settings, backend: str, codec: str) -> Settings:
    """Return settings with these backends and no others: one that fails must not be replaced in silence, and speech
    that is too short is theirs.
    """
    names = {"backend": backend, "codec": codec}
    own = {"fallbacks": (), "codec_fallbacks": (), "short_speech": "believe"}
    return settings.model_copy(update=names | own)


def for_official(path: Path) -> str | tuple[NDArray[float32], int]:
    """Return the file, unless it is one that the official package cannot read or whose channels cancel each other."""
    audio, rate = read_unmixed(path)
    mono = mix_down(audio)
    try:
        soundfile.info(path)
    except soundfile.LibsndfileError:
        return mono, rate
    return str(path) if array_equal(mono, audio.mean(axis=1)) else (mono, rate)
