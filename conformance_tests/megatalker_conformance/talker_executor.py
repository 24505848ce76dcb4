"""Runs schedules on a decoder, and compares every frame with what the scenario's stream must say."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from megatalker.errors import InvalidRequestError
from megatalker.interfaces import DecodeStep, Frame, FrameLogits, StreamHandle
from megatalker.plugins.checked import CheckedTalker
from megatalker_conformance.precision import ERROR_RATIO, FLOAT32_ERROR
from megatalker_conformance.promises import Mismatch
from megatalker_conformance.scenarios import ScenarioPool
from megatalker_conformance.schedules import (
    Action,
    DecodeStreams,
    RefusedStart,
    ReleaseStream,
    StartStreams,
    Upkeep,
    name_of,
)

T = TypeVar("T")


class Comparison(Protocol):
    """The expected result of a frame."""

    def complaint(self, scenario: int, step: int, frame: Frame) -> tuple[str, str] | None:
        """Expected and found, if they differ. ``step`` counts from the stream's own start."""


class OracleComparison:
    """Codes equal the oracle's, logits within the error of the type's arithmetic.

    Args:
        pool: scenarios, of which each free step can be compared exactly in the type under test.
    """

    def __init__(self, pool: ScenarioPool) -> None:
        self._pool = pool

    def complaint(self, scenario: int, step: int, frame: Frame) -> tuple[str, str] | None:
        index = self._pool.scenarios[scenario].begins + step
        followed = self._pool.followed(scenario)
        expected = followed.codes[index]
        if frame.codes != expected:
            return _spoken(expected), _spoken(frame.codes)
        if frame.logits is None:
            return None
        exact = followed.logits
        parts = [("talker", frame.logits.talker, exact.talker)]
        if expected is not None:
            parts.append(("predictor", frame.logits.predictor, exact.predictor))
        for kind, found, rows in parts:
            error, limit = _rms(found.cpu() - rows[index]), self._limit(scenario, kind, rows)
            if not error <= limit:  # NaN is no good error either
                return f"{kind} logits within {limit:.3g} of the oracle's", f"an error of {error:.3g}, with right codes"
        return None

    def _limit(self, scenario: int, kind: str, exact: Tensor) -> float:
        if self._pool.dtype == torch.float32:
            return FLOAT32_ERROR * _rms(exact)
        rounded: Tensor = getattr(self._pool.rounded(scenario).logits, kind)
        errors = (rounded - exact[: len(rounded)]).flatten(1).square().mean(1).sqrt()
        return 2 * ERROR_RATIO * float(errors.max()) if len(errors) else FLOAT32_ERROR * 1e3 * _rms(exact)


class BitComparison:
    """Codes and logits are, bit for bit, those of the stream alone.

    Args:
        alone: for each scenario the frames of a run without company, with logits where the decoder has them.
    """

    def __init__(self, alone: dict[int, list[Frame]]) -> None:
        self._alone = alone

    def complaint(self, scenario: int, step: int, frame: Frame) -> tuple[str, str] | None:
        alone = self._alone[scenario][step]
        if frame.codes != alone.codes:
            return f"as alone: {_spoken(alone.codes)}", _spoken(frame.codes)
        if frame.logits is None or alone.logits is None:
            return None
        for kind in FrameLogits.__slots__:
            found, expected = getattr(frame.logits, kind), getattr(alone.logits, kind)
            if not torch.equal(found, expected):
                most = float((found - expected).abs().max())
                return f"{kind} logits with the bits of the stream alone", f"logits that differ by up to {most:.3g}"
        return None


class TalkerExecutor:
    """Runs schedules on one decoder.

    Args:
        decoder: holds no stream.
        pool: whose scenarios schedules name.
        device: where the decoder works.
        comparison: what frames are held to.
    """

    def __init__(
        self, decoder: CheckedTalker, pool: ScenarioPool, device: torch.device, comparison: Comparison
    ) -> None:
        self._decoder = decoder
        self._pool = pool
        self._device = device
        self._comparison = comparison
        self._prepares = True

    def run(self, actions: Sequence[Action]) -> Mismatch | None:
        """All of a schedule, or until it goes wrong; afterwards nothing is held."""
        return next((mismatch for mismatch in self.perform(actions) if mismatch is not None), None)

    def alone(self, scenario: int) -> list[Frame]:
        """All frames of a scenario without company, with logits where the decoder has them."""
        held: dict[int, _Running] = {}
        self._start([(0, scenario)], frozenset(), held)
        frames: list[Frame] = []
        for _ in range(self._pool.length(scenario)):
            frames += self._decoder.decode(
                [self._step(held[0], frozenset())], return_logits=self._decoder.capabilities.forced_codes
            )()
            held[0].steps += 1
        self._decoder.release(held[0].handle)
        return frames

    def perform(self, actions: Sequence[Action]) -> Iterator[Mismatch | None]:
        """One call after another, so that others can do something between them; ends after the first mismatch."""
        held: dict[int, _Running] = {}
        try:
            for index, action in enumerate(actions):
                try:
                    complaint = self._do(action, held)
                except _DecoderError as error:
                    complaint = ("no error", str(error))
                yield None if complaint is None else Mismatch(index, *complaint)
                if complaint is not None:
                    return
        finally:
            for running in held.values():
                try:
                    self._decoder.release(running.handle)
                except InvalidRequestError:
                    continue

    def _do(self, action: Action, held: dict[int, "_Running"]) -> tuple[str, str] | None:
        match action:
            case StartStreams(streams, how):
                return self._start(streams, how, held)
            case ReleaseStream(stream):
                handle = held.pop(stream).handle
                _call(lambda: self._decoder.release(handle), frozenset())
            case DecodeStreams(streams, how):
                return self._decode([(stream, held[stream]) for stream in streams], how)
            case RefusedStart(scenarios):
                return self._refused(scenarios)
            case Upkeep(method):
                self._keep_up(method)
        return None

    def _refused(self, scenarios: Sequence[int]) -> tuple[str, str] | None:
        requests = [self._pool.request(scenario) for scenario in scenarios]
        requests[-1] = replace(requests[-1], embeds=requests[-1].embeds.to("meta"))
        try:
            self._decoder.prefill(requests)
        except Exception:
            return None
        return "an error, and nothing held: the last prompt has no memory behind it", "no error"

    def _keep_up(self, method: str) -> None:
        if method == "warmup":
            _call(self._decoder.warmup, frozenset())
        elif self._prepares:
            try:
                self._prepares = self._decoder.prepare() is not None
            except Exception:  # the decoder goes on without, and is not asked again
                self._prepares = False

    def _start(
        self, streams: Sequence[tuple[int, int]], how: frozenset[str], held: dict[int, "_Running"]
    ) -> tuple[str, str] | None:
        requests = [self._pool.request(scenario) for _, scenario in streams]
        lent = [_lent(request.embeds, how) for request in requests]
        given = [replace(request, embeds=embeds) for request, embeds in zip(requests, lent, strict=True)]
        handles = _call(lambda: self._decoder.prefill(given), how)
        for (stream, scenario), handle in zip(streams, handles, strict=True):
            held[stream] = _Running(scenario, handle)
        return _taken_back(lent, [request.embeds for request in requests])

    def _decode(self, running: Sequence[tuple[int, "_Running"]], how: frozenset[str]) -> tuple[str, str] | None:
        steps = [self._step(each, how) for _, each in running]

        def decode() -> list[Frame]:
            take = self._decoder.decode(steps, return_logits="logits" in how)
            if "waited for later" in how:
                use_free_memory(self._device)
            return _call(take, frozenset({"another thread"})) if "taken in a thread" in how else take()

        frames = _call(decode, how)
        texts = [self._pool.step(each.scenario, each.steps, each.handle).text for _, each in running]
        written = _taken_back([step.text for step in steps], texts)
        if written is not None:
            return written
        for (stream, each), frame in zip(running, frames, strict=True):
            complaint = self._comparison.complaint(each.scenario, each.steps, frame)
            if complaint is not None:
                where = f"{name_of(stream)}, step {each.steps + 1}"
                return f"{where}: {complaint[0]}", f"{where}: {complaint[1]}"
            each.steps += 1
        return None

    def _step(self, running: "_Running", how: frozenset[str]) -> DecodeStep:
        step = self._pool.step(running.scenario, running.steps, running.handle)
        return replace(step, text=_lent(step.text, how))


@dataclass
class _Running:
    scenario: int
    handle: StreamHandle
    steps: int = 0


def use_free_memory(device: torch.device) -> None:
    """Write over what is free, as other work on the device would."""
    junk = [torch.full((1 << size,), torch.nan, device=device) for size in range(16)]
    torch.cat(junk).sum().isnan().item()


def _lent(tensor: Tensor, how: frozenset[str]) -> Tensor:
    """A copy for one call."""
    if "float64 rows" in how:
        tensor = tensor.double()
    elif "16-bit rows" in how:
        dtypes = (torch.bfloat16, torch.float16)[:: 1 if tensor.ndim == 2 else -1]
        halves = (tensor.to(dtype) for dtype in dtypes)
        tensor = next((half for half in halves if torch.equal(half.float(), tensor)), tensor)
    if "strided rows" in how:
        wide = tensor.new_full((*tensor.shape[:-1], 2 * tensor.shape[-1] + 3), 9.0)
        wide[..., 1:-2:2] = tensor
        return wide[..., 1:-2:2]
    return tensor.clone()


def _taken_back(lent: Sequence[Tensor], own: Sequence[Tensor]) -> tuple[str, str] | None:
    """Write over tensors that the caller owns again. Return expected and found if the backend changed them before."""
    untouched = all(torch.equal(given, rows.to(given.dtype)) for given, rows in zip(lent, own, strict=True))
    for given in lent:
        given.fill_(torch.nan)
    return None if untouched else ("rows as the caller passed them", "the decoder has written into them")


class _DecoderError(Exception):
    """An error that a decoder raised, of any kind."""


def _call(work: Callable[[], T], how: frozenset[str]) -> T:
    """``work``, which is a decoder's, here or in another thread."""
    results: list[T] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:
            errors.append(error)

    if "another thread" in how:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    else:
        run()
    for error in errors:
        raise _DecoderError(f"{type(error).__name__}: {error}") from error
    return results[0]


def _rms(values: Tensor) -> float:
    return float(values.double().square().mean().sqrt())


def _spoken(codes: object) -> str:
    return "the end" if codes is None else str(codes)
