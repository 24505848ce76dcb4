"""A talker decoder in its checking shell; see :mod:`megatalker.plugins.checked`."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch

from megatalker.checkpoint.config import ModelConfig
from megatalker.errors import CapacityError, InvalidRequestError, MalformedResultError, UnsupportedError
from megatalker.interfaces import (
    DecodeStep,
    Frame,
    FrameLogits,
    StreamHandle,
    StreamRequest,
    TalkerCapabilities,
    TalkerDecoder,
)
from megatalker.plugins.checks import backend_call, check_ids, describe, expect, is_finite, stated_limit
from megatalker.sampling import SamplingParams


@dataclass(slots=True)
class _CheckedStream:
    positions: int
    """Prompt rows plus frames."""
    ended: bool = False


class CheckedTalker:
    """The engine's view of a talker: ``decoder``, with every call checked.

    Args:
        decoder: just loaded, holding no stream.
        config: of its checkpoint.

    Raises:
        MalformedResultError: ``decoder`` is no ``TalkerDecoder``, or does not state its limits.
    """

    def __init__(self, decoder: TalkerDecoder, config: ModelConfig) -> None:
        self.decoder = expect(TalkerDecoder, decoder, "what the backend loaded")
        self.capabilities = expect(TalkerCapabilities, decoder.capabilities, "capabilities of the loaded instance")
        self.max_streams = stated_limit("max_streams", self.capabilities.max_streams, 1)
        """``None``: it has no limit of its own."""
        self.max_positions = stated_limit("max_positions", self.capabilities.max_positions, 2) or (
            config.talker.max_positions
        )
        self._config = config
        self._text_shape = torch.Size([config.talker.hidden_size])
        self._code_limits = np.array(config.code_limits)
        self._streams: dict[StreamHandle, _CheckedStream] = {}
        self._last_handle = 0
        self._frames_are_due = False
        self.own_refusal: Exception | None = None
        """The latest ``InvalidRequestError`` or ``CapacityError`` of the backend itself, not of this shell."""
        self._works_in_call = False
        """Its decode returns frames: it is called when they are waited for, so that nothing else waits for it."""

    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        """Begin streams; see :meth:`TalkerDecoder.prefill`.

        Raises:
            InvalidRequestError: ``embeds`` is not ``[T >= 2, hidden_size]`` finite floating point, or a history id lies
                outside the vocabulary.
            CapacityError: every row is taken, a prompt alone exceeds ``max_positions``, or the backend says so.
            MalformedResultError: the backend did not return a new handle for each request.
        """
        self._require_taken()
        for request in requests:
            self._check_request(request)
        if self.max_streams is not None and len(self._streams) + len(requests) > self.max_streams:
            raise CapacityError(
                f"{len(self._streams)} of {self.max_streams} streams of this decoder are in use and {len(requests)} "
                "more are asked for; release one, or raise the backend's max_streams"
            )
        if not requests:
            return []
        with self._refusals():
            answer = self.decoder.prefill(requests)
        handles = self._check_handles(answer, len(requests))
        for handle, request in zip(handles, requests, strict=True):
            self._streams[handle] = _CheckedStream(len(request.embeds))
        return handles

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> Callable[[], list[Frame]]:
        """Start one frame of each stream; see :meth:`TalkerDecoder.decode`. Call the returned function once, before any
        other call.

        Raises (here, or in the function returned, before any stream has advanced):
            InvalidRequestError: an unknown, released or ended stream; a stream named twice; a malformed text row or
                forced codes.
            CapacityError: a stream has no position left, or the backend says so.
            UnsupportedError: ``forced`` or ``return_logits`` without the capability.
            MalformedResultError: what the backend returned are not the frames of these steps.
        """
        self._require_taken()
        self._check_steps(steps, return_logits)
        if not steps:
            return list
        put_off = self._works_in_call
        answer = None if put_off else self._ask(steps, return_logits)
        self._frames_are_due = True

        def take() -> list[Frame]:
            if not self._frames_are_due:
                raise InvalidRequestError("the frames of this decode were taken before; take them once")
            self._frames_are_due = False
            frames = self._ask(steps, return_logits) if put_off else answer
            if callable(frames):
                with self._refusals():
                    frames = frames()
            return self._note(self._check_frames(frames, steps, return_logits))

        return take

    def release(self, stream: StreamHandle) -> None:
        """Free a stream; see :meth:`TalkerDecoder.release`. Unknown streams raise ``InvalidRequestError``."""
        self._require_taken()
        self._find(stream)
        with backend_call("release"):
            self.decoder.release(stream)
        del self._streams[stream]

    def prepare(self) -> str | None:
        """Prepare one item; see :meth:`TalkerDecoder.prepare`. Other results raise ``MalformedResultError``."""
        self._require_taken()
        answer: object = self.decoder.prepare()
        if answer is not None and not isinstance(answer, str):
            raise MalformedResultError(f"prepare returned {type(answer).__name__}, expected what is prepared, or None")
        return answer

    def smoke_test(self) -> None:
        """Make a frame of a prompt that no healthy backend fails at; raises what goes wrong."""
        rows = torch.full((2, self._config.talker.hidden_size), 0.02)
        greedy = SamplingParams(do_sample=False, predictor_do_sample=False)
        (stream,) = self.prefill([StreamRequest(rows, greedy)])
        self.decode([DecodeStep(stream, rows[0])])()
        self.release(stream)

    def warmup(self) -> None:
        """Prepare for the first call; see :meth:`TalkerDecoder.warmup`."""
        self._require_taken()
        self.decoder.warmup()

    def close(self) -> None:
        """Free all resources, also while a call is under way; see :meth:`TalkerDecoder.close`."""
        self.decoder.close()

    def _ask(self, steps: Sequence[DecodeStep], return_logits: bool) -> list[Frame] | Callable[[], list[Frame]]:
        with self._refusals():
            answer = self.decoder.decode(steps, return_logits=return_logits)
        self._works_in_call = not callable(answer)
        return answer

    def _note(self, frames: list[Frame]) -> list[Frame]:
        for frame in frames:
            stream = self._streams[frame.stream]
            if frame.codes is None:
                stream.ended = True
            else:
                stream.positions += 1
        return frames

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except (InvalidRequestError, CapacityError) as error:
            self.own_refusal = error
            raise

    # --- what goes in

    def _require_taken(self) -> None:
        if self._frames_are_due:
            raise InvalidRequestError("frames are under way; call the function that decode returned first")

    def _find(self, stream: StreamHandle) -> _CheckedStream:
        found = self._streams.get(stream)
        if found is not None:
            return found
        if isinstance(stream, int) and 0 < stream <= self._last_handle:
            raise InvalidRequestError(f"stream {stream} was released; prefill a new one")
        raise InvalidRequestError(f"stream {stream!r} is unknown to this decoder; pass a handle that prefill returned")

    def _check_request(self, request: StreamRequest) -> None:
        embeds, hidden = request.embeds, self._config.talker.hidden_size
        if embeds.ndim != 2 or len(embeds) < 2 or embeds.shape[1] != hidden or not embeds.is_floating_point():
            raise InvalidRequestError(
                f"embeds is {describe(embeds)}, expected floating point [T >= 2, {hidden}]: the rows of one prompt"
            )
        if not is_finite(embeds):
            raise InvalidRequestError("embeds holds NaN or infinity, expected finite values; check the prompt's source")
        check_ids("history", request.history, self._config.talker.vocab_size)
        self._check_continuation(request)
        if len(embeds) > self.max_positions:
            raise CapacityError(
                f"the prompt has {len(embeds)} rows, this decoder holds {self.max_positions} positions per stream; "
                "shorten the text or reference audio, or raise the backend's max_positions"
            )

    def _check_continuation(self, request: StreamRequest) -> None:
        codes, text, frames = request.codes, request.text, len(request.history)
        if codes is None and text is None:
            return
        wanted = ((frames, self._config.num_code_groups), (frames, self._config.talker.hidden_size))
        if codes is None or text is None or (codes.shape, text.shape) != wanted:
            raise InvalidRequestError(
                f"codes is {describe(codes)} and text is {describe(text)}, expected both or neither, of the {frames} "
                f"frames of history: {list(wanted[0])} and {list(wanted[1])}"
            )
        if codes[:, 0].tolist() != list(request.history):
            raise InvalidRequestError("history differs from the first column of codes; both tell the same frames")

    def _check_steps(self, steps: Sequence[DecodeStep], return_logits: bool) -> None:
        if return_logits and not self.capabilities.forced_codes:
            raise UnsupportedError("this backend returns no logits: its capabilities do not list forced_codes")
        seen: set[StreamHandle] = set()
        for step in steps:
            stream = self._find(step.stream)
            if step.stream in seen:
                raise InvalidRequestError(f"stream {step.stream} stands twice in one call; pass each stream once")
            seen.add(step.stream)
            if stream.ended:
                raise InvalidRequestError(f"stream {step.stream} has ended by itself; only release it")
            if step.forced is not None:
                self._check_forced(step.stream, step.forced)
            if stream.positions >= self.max_positions:
                raise CapacityError(
                    f"stream {step.stream} has used its {self.max_positions} positions; "
                    "end it, or raise the backend's max_positions"
                )
        self._check_texts(list({id(step.text): step for step in steps}.values()))  # most share the pad row

    def _check_texts(self, steps: Sequence[DecodeStep]) -> None:
        """Whether values are finite is looked at for all rows at once: one by one would take longer than all else."""
        for step in steps:
            text = step.text
            if text.shape != self._text_shape or not text.is_floating_point():
                raise InvalidRequestError(
                    f"the text row of stream {step.stream} is {describe(text)}, expected floating point "
                    f"{list(self._text_shape)}: one row of the prompt's trailing rows, or its pad row"
                )
        rows = [step.text for step in steps if step.text.device.type == "cpu"]
        if not rows or is_finite(torch.stack(rows)):
            return
        found = next(step.stream for step in steps if not is_finite(step.text))
        raise InvalidRequestError(
            f"the text row of stream {found} holds NaN or infinity, expected finite values; check its source"
        )

    def _check_forced(self, stream: StreamHandle, forced: Sequence[int]) -> None:
        if not self.capabilities.forced_codes:
            raise UnsupportedError("this backend cannot force codes: its capabilities do not list forced_codes")
        if len(forced) != len(self._code_limits):
            raise InvalidRequestError(
                f"stream {stream}: {len(forced)} forced codes, expected {len(self._code_limits)}, one a code group"
            )
        if forced[0] != self._config.codec_eos_id:
            check_ids(f"stream {stream}: the first forced code", forced[:1], self._code_limits[0])
        check_ids(f"stream {stream}: forced codes after the first", forced[1:], self._code_limits[1])

    # --- what comes out

    def _check_handles(self, handles: object, count: int) -> list[StreamHandle]:
        if not isinstance(handles, list) or len(handles) != count:
            found = f"{len(handles)} handles" if isinstance(handles, list) else type(handles).__name__
            raise MalformedResultError(f"prefill returned {found} for {count} requests")
        for handle in handles:
            if type(handle) is not int:
                raise MalformedResultError(f"prefill returned {handle!r}, expected a stream handle (int)")
            if handle <= self._last_handle:
                raise MalformedResultError(
                    f"prefill returned handle {handle} after {self._last_handle}; expected a larger one each time"
                )
            self._last_handle = handle
        return list(handles)

    def _check_frames(self, frames: object, steps: Sequence[DecodeStep], return_logits: bool) -> list[Frame]:
        if not isinstance(frames, list) or len(frames) != len(steps):
            found = f"{len(frames)} frames" if isinstance(frames, list) else type(frames).__name__
            raise MalformedResultError(f"decode returned {found} for {len(steps)} steps")
        for index, (frame, step) in enumerate(zip(frames, steps, strict=True)):
            if not isinstance(frame, Frame) or frame.stream != step.stream:
                raise MalformedResultError(f"decode result {index} is not the frame of stream {step.stream}: {frame!r}")
        sound = self._are_codes([frame.codes for frame in frames if frame.codes is not None])
        for index, (frame, step) in enumerate(zip(frames, steps, strict=True)):
            complaint = None if sound or frame.codes is None else self._complaint(frame.codes)
            if complaint is None and step.forced is not None:
                complaint = self._forced_complaint(frame.codes, step.forced)
            if complaint is None and return_logits:
                complaint = self._logits_complaint(frame)
            if complaint is not None:
                raise MalformedResultError(f"decode result {index}: {complaint}")
        return frames

    def _are_codes(self, frames: Sequence[tuple[int, ...]]) -> bool:
        """Whether :meth:`_complaint` has none of any of them: all at once, for one by one takes five times as long."""
        groups = len(self._code_limits)
        if not all(type(codes) is tuple and len(codes) == groups for codes in frames):
            return False
        codes = list(chain.from_iterable(frames))
        if not set(map(type, codes)) <= {int}:
            return False
        try:
            table = np.fromiter(codes, np.int64, len(codes)).reshape(-1, groups)
        except OverflowError:
            return False
        return bool(((table >= 0) & (table < self._code_limits)).all())

    def _complaint(self, codes: object) -> str | None:
        if not isinstance(codes, tuple) or len(codes) != len(self._code_limits):
            found = f"{len(codes)} codes" if isinstance(codes, tuple) else f"codes as {type(codes).__name__}"
            return f"{found}, expected a tuple of {len(self._code_limits)}"
        for group, (code, limit) in enumerate(zip(codes, self._code_limits, strict=True)):
            if type(code) is not int or not 0 <= code < limit:
                return f"code {group} is {code!r}, expected an integer from 0 to {limit - 1}"
        return None

    def _forced_complaint(self, codes: tuple[int, ...] | None, forced: Sequence[int]) -> str | None:
        expected = None if forced[0] == self._config.codec_eos_id else tuple(map(int, forced))
        return None if codes == expected else f"codes {codes}, expected the forced {expected}"

    def _logits_complaint(self, frame: Frame) -> str | None:
        config, rest = self._config, 0 if frame.ended else self._config.num_code_groups - 1
        if not isinstance(frame.logits, FrameLogits):
            return "no logits, which return_logits asked for"
        expected = {"talker": [config.talker.vocab_size], "predictor": [rest, config.predictor.vocab_size]}
        for name, shape in expected.items():
            found = describe(getattr(frame.logits, name))
            if found != f"float32 {shape}":
                return f"{name} logits are {found}, expected float32 {shape}"
        return None
