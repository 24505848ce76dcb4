"""Measure backends over rounds in which they alternate, so that drift hits all alike."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import FRAME_SECONDS
from megatalker.cli.bench.comparison import BackendComparison
from megatalker.engine import Engine
from megatalker.interfaces import DecodeStep, StreamRequest
from megatalker.plugins.checked import CheckedCodec, CheckedTalker
from megatalker.plugins.device import resolve_device, resolve_threads
from megatalker.sampling import SamplingParams
from megatalker.settings import Settings
from megatalker.voices import Voice

TEXT = "The quick brown fox jumps over the lazy dog, and then it takes a long rest in the warm afternoon sun."
BATCH = 4
FEWEST_ROWS = 2
"""Rows of the shortest prompt."""

Samples = dict[str, list[float]]


@dataclass(slots=True)
class MeasuredEngine:
    """One warm engine, and what was measured on it so far (milliseconds, ratios)."""

    label: str
    engine: Engine
    samples: Samples = field(default_factory=dict)

    def add(self, metric: str, value: float) -> None:
        self.samples.setdefault(metric, []).append(value)


def measure(
    settings: Settings,
    backends: Sequence[str],
    *,
    rounds: int,
    frames: int,
    progress: Callable[[str], None],
    voice: Voice | None = None,
) -> BackendComparison:
    """Measure each backend named, interleaved in one run.

    Args:
        settings: everything but the talker backend.
        backends: talker backends to compare.
        rounds: repetitions of every measurement; at least 1.
        frames: frames of one spoken utterance and of one decode measurement; at least 8.
        progress: told what is being measured.
        voice: who speaks; ``None``: the checkpoint's default, which ``base`` checkpoints do not have.

    Raises:
        MegatalkerError: a backend cannot be opened here.
    """
    checkpoint = Checkpoint.open(settings.checkpoint)
    device = resolve_device(settings.device)
    subjects = []
    try:
        for name in backends:
            progress(f"loading {name}")
            engine = Engine.open(settings.model_copy(update={"backend": name}), checkpoint=checkpoint)
            subjects.append(MeasuredEngine(name, engine))
            engine.warmup()
        torch.set_num_threads(resolve_threads(settings.threads, checkpoint, device))  # as in the engine's own thread
        for number in range(-1, rounds):
            for subject in subjects:
                progress(f"round {max(number, 0) + 1} of {rounds}: {subject.label}")
                samples = MeasuredEngine(subject.label, subject.engine) if number < 0 else subject
                _speak(samples, frames, voice)
                with subject.engine.borrow_backends() as (talker, codec):
                    _decode(samples, talker, checkpoint, device, frames)
                    _codec(samples, codec, checkpoint)
    finally:
        for subject in subjects:
            subject.engine.close()
    return BackendComparison.of(checkpoint, device, settings, {s.label: s.samples for s in subjects}, rounds, frames)


def _now(device: torch.device | None = None) -> float:
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _speak(subject: MeasuredEngine, frames: int, voice: Voice | None) -> None:
    before = _worked_s(subject.engine)
    began = _now()
    stream = subject.engine.speak(TEXT, voice=voice, seed=1, sampling=_endless(), max_frames=frames)
    arrivals = []
    spoken = 0
    for chunk in stream:
        arrivals.append(_now())
        spoken += chunk.frames
    subject.add("ttfc_ms", (arrivals[0] - began) * 1e3)
    subject.add("rtf", (arrivals[-1] - began) / (spoken * FRAME_SECONDS))
    gaps = [later - earlier for earlier, later in pairwise(arrivals)]
    if gaps:
        subject.add("longest_chunk_gap_ms", max(gaps) * 1e3)
    subject.add("compute_s", _worked_s(subject.engine) - before)
    subject.add("audio_s", spoken * FRAME_SECONDS)


def _worked_s(engine: Engine) -> float:
    """Seconds that the engine's thread has worked, backends included."""
    metrics = engine.metrics()
    return metrics.host_s + metrics.backend_s


def _endless() -> SamplingParams:
    return SamplingParams(min_new_tokens=2**31 - 1)


def _decode(
    subject: MeasuredEngine, talker: CheckedTalker, checkpoint: Checkpoint, device: torch.device, frames: int
) -> None:
    width = checkpoint.config.talker.hidden_size
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randn(32, width, generator=generator).to(device) * 0.1
    text = torch.zeros(width, device=device)
    limit = talker.max_streams or BATCH
    subject.add("talker_ms", _forward_ms(talker, prompt[:FEWEST_ROWS], device))
    for count, metric in ((1, "frame_ms"), (min(BATCH, limit), f"frame_ms_{min(BATCH, limit)}_streams")):
        began = _now(device)
        streams = talker.prefill([StreamRequest(prompt, _endless())] * count)
        if count == 1:
            subject.add("prefill_ms", (_now(device) - began) * 1e3)
        steps = [DecodeStep(stream, text) for stream in streams]
        talker.decode(steps)()
        took = []
        for _ in range(frames):
            began = _now(device)
            talker.decode(steps)()
            took.append(_now(device) - began)
            subject.add(metric, took[-1] * 1e3)
        if count == 1:
            subject.add("frames_per_s", frames / sum(took))
            subject.add("tokens_per_s", frames / sum(took) * checkpoint.config.num_code_groups)
        for stream in streams:
            talker.release(stream)


def _forward_ms(talker: CheckedTalker, rows: torch.Tensor, device: torch.device) -> float:
    """Time one forward of the talker, which reads its weights once, as the step of a frame does; no code is chosen."""
    began = _now(device)
    (stream,) = talker.prefill([StreamRequest(rows, _endless())])
    took = _now(device) - began
    talker.release(stream)
    return took * 1e3


def _codec(subject: MeasuredEngine, codec: CheckedCodec, checkpoint: Checkpoint) -> None:
    size, groups = checkpoint.codec_config.codebook_size, checkpoint.codec_config.num_quantizers
    generator = torch.Generator().manual_seed(0)
    state = codec.open()
    for count in (1, 1, 1, 8):
        codes = torch.randint(0, size, (count, groups), generator=generator)
        began = _now()
        codec.decode([state], [codes])[0].cpu()
        subject.add(f"codec_ms_{count}_frame{'s' * (count > 1)}", (_now() - began) * 1e3)
