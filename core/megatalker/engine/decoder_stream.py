"""The streams of an utterance inside the backends: one of the talker for each segment, and what a codec must hear."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from megatalker.engine.speech.text_segmenter import TextSegment
from megatalker.interfaces import CodecState, StreamHandle, StreamRequest
from megatalker.prompt import Prompt, PromptBuilder
from megatalker.sampling import SamplingParams

if TYPE_CHECKING:
    from megatalker.engine.utterance import Utterance

Codes = tuple[int, ...]


@dataclass(slots=True)
class DecoderStream:
    """One stream of the talker backend: what is needed to go on with it, on this backend or on another."""

    segment: TextSegment
    prompt: Prompt
    sampling: SamplingParams
    ids_in_prompt: int
    """Text ids that the prefill covers."""
    rows: list[Tensor]
    """``[H]`` each: text rows known so far, one for each frame."""
    complete: bool
    """No row follows ``rows``; pad does."""
    log: list[Codes]
    """The utterance's frames; this stream's begin at ``start``."""
    start: int
    max_frames: int = 0
    handle: StreamHandle | None = None
    """The stream inside the loaded backend; ``None`` before prefill, and after that backend was given up."""

    @classmethod
    def of(
        cls, segment: TextSegment, known: int, prompt: Prompt, sampling: SamplingParams, log: list[Codes]
    ) -> "DecoderStream":
        """The stream that begins with ``prompt``, which was built from the segment's first ``known`` ids."""
        rows = list(prompt.trailing.unbind(0))
        ends = 1 if prompt.complete else 0  # the end row; or, where the prompt holds all text, one row of pad
        return cls(segment, prompt, sampling, known - (len(rows) - ends), rows, prompt.complete, log, len(log))

    @property
    def frames(self) -> int:
        """Frames of this stream so far."""
        return len(self.log) - self.start

    @property
    def next_row(self) -> Tensor | None:
        """The row to feed with the next frame; ``None`` while it is not known."""
        frame, rows = len(self.log) - self.start, self.rows
        if frame < len(rows):
            return rows[frame]
        return self.prompt.pad if self.complete else None

    def text_done_at(self, frame: int) -> bool:
        """All text had been fed before the utterance's frame of this number."""
        return self.complete and frame - self.start >= len(self.rows)

    @property
    def ids_fed(self) -> int:
        """Text ids that the decoder has read."""
        return self.ids_in_prompt + self.frames

    @property
    def new_ids(self) -> list[int]:
        """Text ids that arrived and have no row yet."""
        return [] if self.complete else self.segment.ids[self.ids_in_prompt + len(self.rows) :]

    def extend(self, rows: Tensor | None, end_row: Tensor) -> None:
        """Take the rows of :attr:`new_ids`, and the end of the text if it has come."""
        if rows is not None:
            self.rows.extend(rows.unbind(0))
        if self.segment.complete and not self.complete:
            self.rows.append(end_row)
            self.complete = True

    def request(self, builder: PromptBuilder) -> StreamRequest:
        """The prefill that begins the decoder stream, or continues it after frames that exist."""
        if not self.frames:
            return StreamRequest(self.prompt.embeds, self.sampling)
        codes = torch.tensor(self.log[self.start :])
        text = torch.stack([self._row_fed(frame) for frame in range(len(codes))])
        embeds = torch.cat([self.prompt.embeds, builder.frame_rows(codes) + text])
        return StreamRequest(embeds, self.sampling, tuple(codes[:, 0].tolist()), codes, text)

    def _row_fed(self, frame: int) -> Tensor:
        return self.rows[frame] if frame < len(self.rows) else self.prompt.pad


@dataclass(slots=True, eq=False)
class CodecReplay:
    """A codec state that is brought up to date with frames whose audio nobody needs."""

    state: CodecState
    codes: Tensor
    """``[N, code groups]``"""
    first: int = 0
    """Frames of the utterance before them."""
    served: "Sequence[Utterance]" = ()
    """To whom these frames belong, if they have never been audio: then one of them may be to blame for a failure."""
    heard: int = 0
    watched_for: "Utterance | None" = None
    """The utterance whose runaway detector hears this audio for the first time."""

    @property
    def left(self) -> int:
        """Frames that the state has yet to hear."""
        return len(self.codes) - self.heard
