"""Runs schedules on a codec, and compares what it makes of them with the official full forward."""

import gc
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from megatalker.checkpoint.config import FRAME_SAMPLES
from megatalker.plugins.checked import CheckedCodec
from megatalker.plugins.checked_codec import CheckedState
from megatalker_conformance.codec_pool import CodePool
from megatalker_conformance.codec_schedule import FORMS, Action, Copy, DecodeCall, Drop, OpenCall, WarmUpCodec
from megatalker_conformance.promises import Mismatch


@dataclass
class _OpenState:
    state: CheckedState
    sequence: int
    position: int = 0


class CodecExecutor:
    """Runs schedules on a codec; actions of states that are not there are left out, so any part can be run.

    Args:
        codec: under test.
        pool: codes and what they must sound like.
    """

    def __init__(self, codec: CheckedCodec, pool: CodePool) -> None:
        self._codec = codec
        self._pool = pool
        self.limit = pool.official.limit(codec.capabilities)
        """The largest difference that is allowed."""
        self.largest = 0.0
        """Difference from the official decoder."""

    def run(self, actions: Sequence[Action]) -> Mismatch | None:
        """Do it all with new states, and forget them."""
        live: dict[int, _OpenState] = {}
        handed_out: list[tuple[Tensor, Tensor]] = []
        mismatch = None
        for index, action in enumerate(actions):
            try:
                mismatch = self._do(action, index, live, handed_out)
            except Exception as error:  # a report is more use than a traceback without the schedule
                mismatch = Mismatch(index, "no error", f"{type(error).__name__}: {error}")
            if mismatch is not None:
                break
        if mismatch is None and any(not torch.equal(chunk.cpu(), copy) for chunk, copy in handed_out):
            mismatch = Mismatch(len(actions) - 1, "chunks stay as they were handed out", "a later call changed one")
        live.clear()
        gc.collect(1)
        return mismatch

    def _do(
        self, action: Action, index: int, live: dict[int, _OpenState], handed_out: list[tuple[Tensor, Tensor]]
    ) -> Mismatch | None:
        if isinstance(action, OpenCall):
            live[action.state] = _OpenState(self._codec.open(), action.sequence)
        elif isinstance(action, Copy) and action.source in live:
            source = live[action.source]
            live[action.state] = _OpenState(source.state.copy(), action.sequence, source.position)
        elif isinstance(action, Drop) and action.state in live:
            del live[action.state]
            gc.collect(0)
        elif isinstance(action, WarmUpCodec):
            self._codec.warmup()
        elif isinstance(action, DecodeCall):
            return self._decode(action, index, live, handed_out)
        return None

    def _decode(
        self, action: DecodeCall, index: int, live: dict[int, _OpenState], handed_out: list[tuple[Tensor, Tensor]]
    ) -> Mismatch | None:
        sequences = self._pool.sequences
        wanted = [(live[state], count, state) for state, count in action.frames if state in live]
        parts = [
            (each, each.position, min(each.position + count, len(sequences[each.sequence])), state)
            for each, count, state in wanted
        ]
        parts = [part for part in parts if part[1] < part[2]]
        if not parts:
            return None
        form = FORMS[action.form]
        codes = [form(sequences[each.sequence].codes[start:end]) for each, start, end, _ in parts]
        states = [each.state for each, *_ in parts]
        if action.elsewhere:
            with ThreadPoolExecutor(1) as thread:
                chunks = thread.submit(self._codec.decode, states, codes).result()
        else:
            chunks = self._codec.decode(states, codes)
        for (each, start, end, state), given in zip(parts, codes, strict=True):
            if not torch.equal(given.long(), sequences[each.sequence].codes[start:end]):
                return Mismatch(index, f"s{state}: codes as the caller passed them", "the codec has written into them")
            given.zero_()  # it is the caller's
        for (each, start, end, state), chunk in zip(parts, chunks, strict=True):
            heard = chunk.cpu().clone()
            handed_out.append((chunk, heard))
            each.position = end
            expected = sequences[each.sequence].between(start, end)
            difference = (heard - expected).abs()
            worst = int(difference.nan_to_num(torch.inf).argmax())
            self.largest = max(self.largest, float(difference[worst]))
            if not float(difference[worst]) <= self.limit:
                frame = start + worst // FRAME_SAMPLES
                where = f"s{state}, frame {frame} of its speech, sample {worst % FRAME_SAMPLES}"
                return Mismatch(
                    index,
                    f"{where}: {float(expected[worst]):.6f} within {self.limit:g}",
                    f"{float(heard[worst]):.6f}; the call's largest difference is {float(difference[worst]):.3g}",
                )
            if float(heard.abs().max()) > 1:
                return Mismatch(index, f"s{state}: samples within [-1, 1]", f"{float(heard.abs().max()):.6f}")
        return None
