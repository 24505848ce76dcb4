"""A machine in virtual time: its talker and codec compute nothing, and calls and launches take what was measured.

Nothing waits: where the engine needs the device's result, the clock moves on. The engine's own Python takes no time but
that of the machine's calls, so that a run depends on nothing but its seed.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

import megatalker.plugins
from megatalker.engine.codec_stage import Download
from megatalker.engine.handing_out import Samples
from megatalker.interfaces import (
    CodecBackend,
    CodecState,
    DecodeStep,
    Frame,
    StreamHandle,
    StreamRequest,
    TalkerBackend,
)
from megatalker_benchmarks.engine_host import CODEC, TALKER, IdleCodec, IdleTalker
from megatalker_benchmarks.timed_device import AUDIO, FRAMES, PROMPTS, Costs

CallCost = tuple[float, float]
"""Milliseconds of a call, and milliseconds more for each stream in it."""


@dataclass(frozen=True)
class MachineCosts:
    """Milliseconds that launches take the device, by size, and calls take the host."""

    prompts: Costs
    frames: Costs
    audio: Costs
    prompt_call: CallCost = (0.0, 0.0)
    frame_call: CallCost = (0.0, 0.0)
    frame_result: CallCost = (0.0, 0.0)
    audio_call: CallCost = (0.0, 0.0)
    audio_result: CallCost = (0.0, 0.0)
    taking_ms: float = 0.0
    """For a chunk, by its listener in another thread, which the engine's thread waits for."""
    checking_ms: float = 0.0
    """For a request, in its caller's thread."""
    delay: tuple[float, float] = 1.2, 0.6
    """A call takes the first of these times as long, and the second times an exponential variable more."""
    one_by_one: bool = False
    """A processor: each prompt and each stream's audio by itself, in the call."""

    def at(self, host: float = 1.0, device: float = 1.0) -> "MachineCosts":
        """Return the machine with a host and a device that take these times as long."""
        names = ("prompt_call", "frame_call", "frame_result", "audio_call", "audio_result")
        calls: dict[str, Any] = {name: tuple(host * ms for ms in getattr(self, name)) for name in names}
        launches: dict[str, Any] = {
            name: (sizes, [device * each for each in ms])
            for name, (sizes, ms) in (("prompts", self.prompts), ("frames", self.frames), ("audio", self.audio))
        }
        return replace(self, **calls, **launches)


H200 = MachineCosts(
    PROMPTS,
    FRAMES,
    AUDIO,
    prompt_call=(1.2, 0.11),
    frame_call=(0.3, 0.003),
    frame_result=(0.15, 0.002),
    audio_call=(0.3, 0.007),
    audio_result=(0.05, 0.005),
    taking_ms=0.015,
    checking_ms=0.08,
)
"""One H200 with 0.6B shapes; calls as they were traced while hundreds of listeners ran in other threads."""
PROCESSOR = MachineCosts(
    ([1, 25, 50, 100, 200, 300, 600], [5.0, 5.7, 7.6, 12.2, 22.8, 34.5, 79.5]),
    ([1, 2, 4, 8], [2.2, 3.4, 5.2, 9.7]),
    ([1, 8], [2.95, 20.1]),
    delay=(1.0, 0.15),
    one_by_one=True,
)
"""One core of a processor with the demo voice."""


@dataclass
class VirtualClock:
    """The clock, and when the device will have done all that it was asked for."""

    machine: MachineCosts
    seed: int = 7
    slowness: Callable[[float], float] = field(default=lambda _: 1.0)
    """How many times as long as the machine says calls and launches take at a moment."""
    now: float = 0.0
    free_at: float = 0.0

    def __post_init__(self) -> None:
        self._mishaps = np.random.default_rng(self.seed)

    def read(self) -> float:
        """Return the time."""
        return self.now

    def work(self, milliseconds: float) -> None:
        """The host is busy, sometimes for longer than usual."""
        at_least, mishap = self.machine.delay
        times = self.slowness(self.now) * (at_least + mishap * self._mishaps.exponential())
        self.now += milliseconds * 1e-3 * times

    def call(self, cost: CallCost, size: int) -> None:
        """The host is busy with a call for this many streams."""
        once, each = cost
        self.work(once + each * size)

    def launch(self, sizes: Sequence[int], costs: Costs) -> float:
        """Return when the device will have done something of these sizes, together unless it is a processor."""
        if self.machine.one_by_one:
            for size in sizes:
                self.work(float(np.interp(size, *costs)))
            return self.now
        busy_s = float(np.interp(sum(sizes), *costs)) * 1e-3 * self.slowness(self.now)
        self.free_at = max(self.now, self.free_at) + busy_s
        return self.free_at

    def wait(self, moment: float) -> None:
        """Go on at this moment, or now if it is over."""
        self.now = max(self.now, moment)


class VirtualTalker(IdleTalker):
    """Says as many frames as each request should have, by its seed."""

    def __init__(self, groups: int, backends: "VirtualBackends") -> None:
        super().__init__(groups, paced=False)
        self._clock, self._backends, self._left = backends.clock, backends, dict[StreamHandle, float]()

    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        self._clock.call(self._clock.machine.prompt_call, len(requests))
        self._clock.launch([len(request.embeds) for request in requests], self._clock.machine.prompts)
        handles = super().prefill(requests)
        for handle, request in zip(handles, requests, strict=True):
            seed, lengths = request.sampling.seed, self._backends.lengths
            length = lengths[seed] if seed < len(lengths) else self._backends.segment_frames
            self._left[handle] = length - len(request.history)
        return handles

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> Callable[[], list[Frame]]:
        clock, machine, finish = self._clock, self._clock.machine, super().decode(steps, return_logits=return_logits)
        clock.call(machine.frame_call, len(steps))
        done_at = clock.launch([len(steps)], machine.frames)

        def take() -> list[Frame]:
            clock.wait(done_at)
            clock.call(machine.frame_result, len(steps))
            return [self._said(frame) for frame in finish()]

        return take

    def _said(self, frame: Frame) -> Frame:
        self._left[frame.stream] -= 1
        return frame if self._left[frame.stream] >= 0 else Frame(frame.stream, None)

    def release(self, stream: StreamHandle) -> None:
        del self._left[stream]


class VirtualCodec(IdleCodec):
    """Takes the time of a codec."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock

    def decode(self, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[Tensor]:
        self._clock.call(self._clock.machine.audio_call, len(states))
        self._clock.launch([len(frames) for frames in codes], self._clock.machine.audio)
        return super().decode(states, codes)


@dataclass
class VirtualBackends:
    """Offers the talker and the codec of a machine."""

    clock: VirtualClock
    lengths: list[float] = field(default_factory=list)
    """Frames of each request's speech, by its seed."""
    segment_frames: float = math.inf
    """Frames of each further segment."""

    @megatalker.plugins.hookimpl
    def megatalker_backends(self) -> list[TalkerBackend | CodecBackend]:
        common: dict[str, Any] = {"name": "virtual", "summary": "takes virtual time", "api_version": 2}
        return [
            TalkerBackend(
                **common,
                capabilities=TALKER,
                load=lambda checkpoint, _: VirtualTalker(checkpoint.config.num_code_groups, self),
            ),
            CodecBackend(**common, capabilities=CODEC, load=lambda *_: VirtualCodec(self.clock)),
        ]

    def downloads(self) -> type[Download]:
        """Return the class that brings chunks to the host."""
        clock = self.clock

        class LateDownload(Download):
            def __init__(self, chunks: list[Tensor]) -> None:
                super().__init__(chunks)
                self._done_at = clock.free_at

            @property
            def under_way(self) -> bool:
                return clock.now < self._done_at

            def wait(self) -> Samples:
                clock.wait(self._done_at)
                clock.call(clock.machine.audio_result, len(self.sizes))
                return super().wait()

        return LateDownload
