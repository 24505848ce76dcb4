"""Figures of ``megatalker inspect``: memory by backend and weight type, streams of a GPU, and measured speed."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import FRAME_SECONDS
from megatalker.interfaces import CodecBackend, LoadContext, MemoryNeed, TalkerBackend
from megatalker.plugins import BackendRegistry, probe
from megatalker.plugins.memory import memory_need
from megatalker.plugins.options import own_settings
from megatalker.settings import Settings

GPU_RUNTIME_BYTES = 1_800_000_000
"""Memory of a GPU besides backends' own: the CUDA context, code, captured graphs and what allocators keep. This much of
5.0 GB, measured on an H200 with 0.6B and eight streams (docs/hardware.md), is in no sum."""
MOST_STREAMS = 2048
MEASURED_FRAMES = 25
"""Two seconds of speech."""
_TEXT = "This sentence is long enough to be spoken for more than two seconds, whatever the checkpoint makes of it."


@dataclass(frozen=True, slots=True)
class Fitting:
    """Memory of a talker with a codec that speaks with it."""

    talker: str
    weights: str
    need: MemoryNeed
    """Memory of both."""


def fittings(
    checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, settings: Settings, streams: int
) -> Iterator[Fitting]:
    """Yield the memory of each talker that says how much it takes, in each weight type that it has."""
    registry = BackendRegistry.installed()
    absent = device.type == "cuda" and not torch.cuda.is_available()
    needs = (_need(spec, checkpoint, device, torch.float32, settings, streams) for spec in registry.codecs)
    codec = next((need for need in needs if need is not None), None)
    for spec in registry.talkers:
        runs = absent or probe(spec, checkpoint, device, settings).available
        if device.type not in spec.capabilities.devices or not runs:
            continue
        for weights in (None, *_weight_types(spec, device)):
            need = _need(spec, checkpoint, device, dtype, settings, streams, weights)
            if need is not None:
                both = _together(need, codec)
                yield Fitting(spec.name, need.weights, both)


def streams_that_fit(
    checkpoint: Checkpoint, settings: Settings, memory_bytes: int
) -> Iterator[tuple[str, str, int, int]]:
    """Yield, for a GPU with this memory that need not be here, each talker's name and weights, how many streams can
    have spoken for a minute, and the bytes that are missing for one stream, or 0.
    """
    device = torch.device("cuda", 0)

    def room(name: str, streams: int) -> tuple[int, Fitting] | None:
        for one in fittings(checkpoint, device, torch.bfloat16, settings, streams):
            if one.talker == name:
                taken = GPU_RUNTIME_BYTES + one.need.load_bytes + streams * one.need.stream_bytes
                return memory_bytes - taken, one
        return None

    for name in dict.fromkeys(one.talker for one in fittings(checkpoint, device, torch.bfloat16, settings, 1)):
        low, high, missing, weights = 0, MOST_STREAMS + 1, 0, ""
        first = room(name, 1)
        if first is None:
            continue
        missing, weights = max(0, -first[0]), first[1].weights
        while high - low > 1:
            middle = (low + high) // 2
            found = room(name, middle)
            low, high = (middle, high) if found is not None and found[0] >= 0 else (low, middle)
        yield name, weights, low, missing


def measure(checkpoint: Checkpoint, settings: Settings) -> tuple[str, float, float, float]:
    """Speak two seconds; returns the backend, the real-time factor, seconds to the first chunk, and seconds of loading.

    Raises:
        MegatalkerError: it cannot be spoken here.
    """
    from megatalker.engine import Engine
    from megatalker.voices import Voice

    voice: Any = None
    if checkpoint.config.variant == "base":  # any embedding takes as long as another
        vector = torch.zeros(checkpoint.config.talker.hidden_size)
        voice = Voice(x_vector=vector, checkpoint_fingerprint=checkpoint.fingerprint)
    began = time.monotonic()
    quiet = settings.model_copy(update={"runaway_guard": False, "short_speech": "believe"})
    with Engine.open(quiet, checkpoint=checkpoint) as engine:
        loaded = time.monotonic() - began
        sampling = replace(checkpoint.sampling, min_new_tokens=MEASURED_FRAMES)
        engine.speak(
            _TEXT, voice=voice, seed=1, max_frames=2, sampling=sampling
        ).read_all()  # what a first call sets up
        began = time.monotonic()
        stream = engine.speak(_TEXT, voice=voice, seed=1, max_frames=MEASURED_FRAMES, sampling=sampling)
        samples = stream.read_all()
        took = time.monotonic() - began
        facts = stream.facts()
    seconds = len(samples) / 24_000 or FRAME_SECONDS
    return facts.backend, took / seconds, facts.ttfc_s or took, loaded


def _need(
    spec: TalkerBackend[Any] | CodecBackend[Any],
    checkpoint: Checkpoint,
    device: torch.device,
    dtype: torch.dtype,
    settings: Settings,
    streams: int,
    weights: str | None = None,
) -> MemoryNeed | None:
    own = own_settings(spec, settings)
    if weights is not None:
        own = own.model_copy(update={"weights": weights})
    return memory_need(spec, checkpoint, LoadContext(device, dtype, own, max_streams=streams))


def _weight_types(spec: TalkerBackend[Any], device: torch.device) -> tuple[str, ...]:
    """Weight types that a talker's own setting ``weights`` has, on processors."""
    field = spec.settings.model_fields.get("weights")
    if field is None or device.type != "cpu":
        return ()
    named: list[str] = []
    for option in getattr(field.annotation, "__args__", ()):
        named += [one for one in getattr(option, "__args__", ()) if isinstance(one, str) and one != "auto"]
    return tuple(named)


def _together(talker: MemoryNeed, codec: MemoryNeed | None) -> MemoryNeed:
    if codec is None:
        return talker
    return MemoryNeed(talker.load_bytes + codec.load_bytes, talker.stream_bytes + codec.stream_bytes, talker.weights)
