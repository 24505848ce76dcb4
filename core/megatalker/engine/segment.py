"""One decoder stream of an utterance: its prompt, the text rows still to be fed, the frames that came out."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from megatalker.engine.passages import Passage
from megatalker.interfaces import StreamHandle, StreamRequest
from megatalker.prompt import Prompt, PromptBuilder
from megatalker.sampling import SamplingParams

Codes = tuple[int, ...]


@dataclass(slots=True)
class Segment:
    """Everything needed to go on with the decoder stream, on this backend or on another."""

    passage: Passage
    prompt: Prompt
    sampling: SamplingParams
    ids_in_prompt: int
    """Text ids that the prefill covers."""
    rows: list[Tensor]
    """``[H]`` each: text rows known so far, one for each frame."""
    complete: bool
    """No row follows ``rows``; pad does."""
    max_frames: int = 0
    codes: list[Codes] = field(default_factory=list)
    handle: StreamHandle | None = None
    """The stream inside the loaded backend; ``None`` before prefill, and after that backend was given up."""

    @classmethod
    def of(cls, passage: Passage, known: int, prompt: Prompt, sampling: SamplingParams) -> "Segment":
        """The segment that begins with ``prompt``, which was built from the passage's first ``known`` ids."""
        rows = list(prompt.trailing.unbind(0))
        ends = 1 if prompt.complete else 0  # the end row; or, where the prompt holds all text, one row of pad
        return cls(passage, prompt, sampling, known - (len(rows) - ends), rows, prompt.complete)

    @property
    def next_row(self) -> Tensor | None:
        """The row to feed with the next frame; ``None`` while it is not known."""
        if len(self.codes) < len(self.rows):
            return self.rows[len(self.codes)]
        return self.prompt.pad if self.complete else None

    @property
    def text_done(self) -> bool:
        """All text has been fed."""
        return self.complete and len(self.codes) >= len(self.rows)

    @property
    def ids_fed(self) -> int:
        """Text ids that the decoder has read."""
        return self.ids_in_prompt + len(self.codes)

    @property
    def new_ids(self) -> list[int]:
        """Text ids that arrived and have no row yet."""
        return [] if self.complete else self.passage.ids[self.ids_in_prompt + len(self.rows) :]

    def extend(self, rows: Tensor | None, end_row: Tensor) -> None:
        """Take the rows of :attr:`new_ids`, and the end of the text if it has come."""
        if rows is not None:
            self.rows.extend(rows.unbind(0))
        if self.passage.complete and not self.complete:
            self.rows.append(end_row)
            self.complete = True

    def request(self, builder: PromptBuilder) -> StreamRequest:
        """The prefill that begins the decoder stream, or continues it after the frames that exist."""
        embeds = self.prompt.embeds
        if self.codes:
            fed = torch.stack([self._row_fed(frame) for frame in range(len(self.codes))])
            embeds = torch.cat([embeds, builder.frame_rows(torch.tensor(self.codes)) + fed])
        return StreamRequest(embeds, self.sampling, tuple(frame[0] for frame in self.codes))

    def _row_fed(self, frame: int) -> Tensor:
        return self.rows[frame] if frame < len(self.rows) else self.prompt.pad
