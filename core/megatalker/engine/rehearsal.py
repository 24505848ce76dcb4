"""First costs of launches, from a few that nobody hears: an engine that has just started knows what it can carry."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from megatalker.engine import codec_stage
from megatalker.engine.guarded_calls import REQUEST_ERRORS, GuardedCalls
from megatalker.engine.state import WorkerState
from megatalker.errors import InvalidRequestError
from megatalker.interfaces import DecodeStep, Frame, StreamHandle, StreamRequest
from megatalker.sampling import SamplingParams

MOST_REHEARSED = 64  # not tuned: a bound of memory
"""Streams of the largest launch: hundreds would take memory, and the start of the engine half a second."""
ENOUGH_NEED = 0.5  # not tuned: half, as for proven_streams
"""Share of the time that the streams of a launch need, from which on no larger one is rehearsed: about twice as many
can be sustained."""
PROMPT_ROWS = 24  # not tuned: a fact of texts
"""Rows of the prompt of a short sentence."""
FRAMES = 2  # not tuned: the fewest
"""Frames of each stream: the first counts as part of the prefill."""


class Rehearsal:
    """Launches of one stream, of two, of four and so on. The engine's own work for each stream is missing in what they
    take, so that a real launch of the same size replaces it.
    """

    def __init__(self, state: WorkerState, calls: GuardedCalls, row: Tensor, release: Callable[[], bool]) -> None:
        """``row``: any row of text; ``release`` frees the streams in ``state.talker_work.to_release``."""
        self._state, self._calls, self._row, self._release = state, calls, row, release

    def run(self, max_streams: int) -> None:
        """Learn what launches cost, unless that is known or somebody is being served."""
        state = self._state
        if state.utterances or state.costs.decode.largest:
            return
        talker, streams = state.talker.instance, 1
        most = min(max_streams, talker.max_streams or max_streams, MOST_REHEARSED)
        if not talker.capabilities.batch:
            most = 1
        while streams <= most and self._launch(streams) and state.costs.need(streams) < ENOUGH_NEED:
            streams *= 2

    def _launch(self, streams: int) -> bool:
        """Make :data:`FRAMES` of this many streams; returns whether the backends took them all."""
        state, began_at = self._state, self._now()
        sampling = SamplingParams(do_sample=False, predictor_do_sample=False, min_new_tokens=FRAMES)
        prompts = [StreamRequest(self._row.repeat(PROMPT_ROWS, 1), sampling)] * streams
        handles: Sequence[StreamHandle] = ()
        try:
            handles = self._calls.step(state.talker, "rehearsal", lambda talker: talker.prefill(prompts))
            self._make_audio(self._decode(handles))
            state.costs.prefill.observe(streams * PROMPT_ROWS, self._now() - began_at, warm=False)
            began_at = self._now()
            frames = self._decode(handles)
            decoded_at = self._now()
            made = self._make_audio(frames)
            state.costs.decode.observe(streams, decoded_at - began_at, warm=False)
            state.costs.observe_codec(made, self._now() - decoded_at, warm=False)
        except REQUEST_ERRORS:  # they hold fewer, or speech ended at once
            return False
        finally:
            state.talker_work.to_release += handles
        self._release()
        return True

    def _decode(self, handles: Sequence[StreamHandle]) -> list[Frame]:
        steps = [DecodeStep(handle, self._row) for handle in handles]
        return self._calls.step(self._state.talker, "rehearsal", lambda talker: talker.decode(steps)())

    def _make_audio(self, frames: Sequence[Frame]) -> int:
        """Make audio of as many of these frames as the codec takes in one step, and wait for it; returns how many."""
        codec, call = self._state.codec, self._calls.step
        if any(frame.codes is None for frame in frames):
            raise InvalidRequestError("the speech of a rehearsal ended after less than two frames")
        codes = [torch.tensor([frame.codes]) for frame in frames[: codec.instance.max_streams]]
        states = [call(codec, "rehearsal", lambda codec: codec.open()) for _ in codes]
        codec_stage.Download(call(codec, "rehearsal", lambda codec: codec.decode(states, codes))).wait()
        return len(codes)

    def _now(self) -> float:
        return self._state.clock() - self._calls.paused_s
