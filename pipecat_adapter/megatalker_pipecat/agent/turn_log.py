"""The agent's record of how long its answers took: a line a turn, a JSON log, a summary at the end."""

import json
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from loguru import logger

from megatalker.errors import SettingsError
from megatalker_pipecat.latency import SINCE, Moment, Turn


class TurnLog:
    """Takes the turns of all conversations of a process.

    Args:
        path: gets one JSON object a turn, and one with the summary at the end; what it holds stays. ``None``: no file.

    Raises:
        SettingsError: the file cannot be written.
    """

    def __init__(self, path: Path | None) -> None:
        self._turns: list[Turn] = []
        self._conversations = count(1)
        try:
            self._file = None if path is None else path.open("a", encoding="utf-8")
        except OSError as error:
            raise SettingsError(f"setting 'agent.turn_log' is '{path}', which cannot be written: {error}") from error

    def next_conversation(self) -> int:
        """A number for a conversation that begins."""
        return next(self._conversations)

    def note(self, conversation: int, turn: Turn) -> None:
        """A turn has had its first sound, or will not have any."""
        self._turns.append(turn)
        logger.info(f"conversation {conversation}, {turn}")
        self._write({"at": round(time.time(), 3), "conversation": conversation, **turn.as_json()})

    def close(self) -> list[str]:
        """Write the summary; returns it, to read. Empty when nothing was said."""
        if self._turns:
            self._write({"summary": summary(self._turns)})
        if self._file is not None:
            self._file.close()
        return summary_lines(self._turns)

    def _write(self, entry: dict[str, Any]) -> None:
        if self._file is not None:
            print(json.dumps(entry), file=self._file, flush=True)


def summary(turns: Sequence[Turn]) -> dict[str, Any]:
    """Median and 95th percentile of the totals and of each stage, apart for each way that turns begin."""
    kinds = {kind: [turn for turn in turns if turn.begun_by == kind] for kind in SINCE}
    return {kind: _summary(found) for kind, found in kinds.items() if found}


def summary_lines(turns: Sequence[Turn]) -> list[str]:
    """:func:`summary` to read."""
    lines = []
    for kind, since in SINCE.items():
        found = summary(turns).get(kind)
        if found is not None:
            counts = f"turns: {found['turns']}, cut before any sound: {found['cut']}, no sound: {found['unanswered']}"
            lines.append(f"first sound after {since}: {_shown(found['total_ms'])} ({counts})")
            lines += [f"    {name}: {_shown(percentiles)}" for name, percentiles in found["stages_ms"].items()]
    return lines


def _summary(turns: Sequence[Turn]) -> dict[str, Any]:
    stages = [turn.stages_ms for turn in turns if turn.total_ms is not None]
    by_stage = {moment.value: [took[moment] for took in stages if moment in took] for moment in Moment}
    return {
        "turns": len(turns),
        "cut": sum(turn.outcome == "cut" for turn in turns),
        "unanswered": sum(turn.outcome == "unanswered" for turn in turns),
        "total_ms": _percentiles([turn.total_ms for turn in turns if turn.total_ms is not None]),
        "stages_ms": {name: _percentiles(took) for name, took in by_stage.items() if took},
    }


def _percentiles(milliseconds: Sequence[float]) -> dict[str, float] | None:
    if not milliseconds:
        return None
    middle, high = np.quantile(milliseconds, (0.5, 0.95), method="inverted_cdf").tolist()
    return {"p50": round(middle, 1), "p95": round(high, 1)}


def _shown(percentiles: dict[str, float] | None) -> str:
    return "-" if percentiles is None else f"p50 {percentiles['p50']:.0f} ms, p95 {percentiles['p95']:.0f} ms"
