"""A watermark for tests: adds a quarter, and holds two frames back."""

import numpy as np

from megatalker.plugins.watermark import MarkingStream, Samples, WatermarkModel

ADDED, DELAY = np.float32(0.25), 2


class ScriptedWatermark(WatermarkModel):
    """``fails_at``: the frame at which marking raises; ``short``: the end leaves frames out."""

    def __init__(self, *, fails_at: int | None = None, short: bool = False) -> None:
        self.fails_at, self.short = fails_at, short

    def open(self) -> "ScriptedMarking":
        return ScriptedMarking(self)

    def detect(self, samples: Samples) -> float:
        return float(samples.mean() > ADDED / 2)


class ScriptedMarking(MarkingStream):
    def __init__(self, model: ScriptedWatermark) -> None:
        self._model, self._held, self._frames = model, list[Samples](), 0

    def mark(self, frame: Samples) -> Samples:
        assert frame.shape == (1920,)
        if self._frames == self._model.fails_at:
            raise ValueError("no mark today")
        self._frames += 1
        self._held.append(frame + ADDED)
        return self._held.pop(0) if len(self._held) > DELAY else np.empty(0, np.float32)

    def finish(self) -> Samples:
        return np.concatenate([np.empty(0, np.float32), *self._held[self._model.short :]])
