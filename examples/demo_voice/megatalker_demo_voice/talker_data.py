"""Utterances as codes, whole on the device, and batches laid out as the official ``generate()`` lays out prompts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from megatalker.checkpoint.config import ModelConfig
from megatalker_demo_voice.talker_model import NO_CODE, TalkerRows

IGNORED = -100
_ROLE_ROWS = 3
_LENGTHS = (40, 48, 56, 64, 80, 96, 128, 176, 256, 384, 560)
"""Batches have one of these numbers of rows."""


@dataclass(frozen=True, slots=True)
class TalkerData:
    """Utterances, end to end."""

    codes: Tensor
    """``[frames, groups]`` uint8."""
    frame_starts: Tensor
    """``[n]``: each utterance's first frame."""
    frame_counts: Tensor
    text: Tensor
    """``[tokens]`` int32."""
    text_starts: Tensor
    text_counts: Tensor
    speakers: Tensor
    """``[n]``: codec id of each utterance's speaker, or :data:`NO_CODE` where a reference defines the speaker."""
    voices: Tensor
    """``[n]``: index of each utterance's speaker among all speakers."""

    def __len__(self) -> int:
        return len(self.frame_counts)

    @classmethod
    def build(
        cls,
        codes: Tensor,
        frames: Sequence[int],
        texts: Sequence[Sequence[int]],
        speakers: Sequence[int],
        voices: Sequence[int],
        device: torch.device,
    ) -> "TalkerData":
        """Move to ``device``: ``[frames, groups]`` uint8 codes, and for each utterance frames, text ids and speaker."""
        counts = torch.tensor(frames)
        text_counts = torch.tensor([len(ids) for ids in texts])
        text = torch.tensor([token for ids in texts for token in ids], dtype=torch.int32)
        parts = (
            codes, counts.cumsum(0) - counts, counts,
            text, text_counts.cumsum(0) - text_counts, text_counts,
            torch.tensor(speakers), torch.tensor(voices),
        )  # fmt: skip
        return cls(*(part.to(device) for part in parts))

    def with_pairs(self) -> "TalkerData":
        """And, of neighbours with the same speaker, every other one together with the next: a reference and its sequel.

        Prompts for in-context cloning are laid out like one utterance whose first part has been said.
        """
        first = (self.voices[1:] == self.voices[:-1]).nonzero().flatten()
        first = first[first % 2 == 0]
        return replace(
            self,
            frame_starts=torch.cat([self.frame_starts, self.frame_starts[first]]),
            frame_counts=torch.cat([self.frame_counts, self.frame_counts[first] + self.frame_counts[first + 1]]),
            text_starts=torch.cat([self.text_starts, self.text_starts[first]]),
            text_counts=torch.cat([self.text_counts, self.text_counts[first] + self.text_counts[first + 1]]),
            speakers=torch.cat([self.speakers, self.speakers[first]]),
            voices=torch.cat([self.voices, self.voices[first]]),
        )

    def other_texts(self) -> "TalkerData":
        """The same speech, each with the text of another utterance of about the same length."""
        order = self.frame_counts.argsort()
        donor = torch.empty_like(order)
        donor[order] = order.roll(1)
        return replace(self, text_starts=self.text_starts[donor], text_counts=self.text_counts[donor])


@dataclass(frozen=True, slots=True)
class TalkerBatch:
    """Rows, and what is to be predicted from them."""

    rows: TalkerRows
    first: Tensor
    """``[batch, length]``: code 0 (or end of speech) that each row predicts, or :data:`IGNORED`."""
    frames: Tensor
    """``[batch, length, groups]``: the frame that each row predicts; undefined where there is none."""
    speaks: Tensor
    """``[batch, length]`` bool: where there is one."""


class TrainingLayout:
    """Where things stand in a prompt, for one checkpoint."""

    def __init__(self, config: ModelConfig, role: Sequence[int], language: str, device: torch.device) -> None:
        self._config = config
        tags = [config.codec_think_id, config.codec_think_bos_id, config.languages[language], config.codec_think_eos_id]
        auto = [config.codec_nothink_id, config.codec_think_bos_id, config.codec_think_eos_id]
        self._longest_head = _ROLE_ROWS + len(tags) + 2
        text, codes, speaker_row = [], [], []
        for ids in (auto, tags):
            pads = [config.tts_pad_id] * (len(ids) + 1)
            filler = [0] * (self._longest_head - _ROLE_ROWS - len(ids) - 2)
            text.append([*role, *pads, config.tts_bos_id, *filler])
            codes.append([*[NO_CODE] * _ROLE_ROWS, *ids, NO_CODE, config.codec_pad_id, *filler])
            speaker_row.append(_ROLE_ROWS + len(ids))
        self._head_text, self._head_codes = torch.tensor(text, device=device), torch.tensor(codes, device=device)
        self._speaker_row = torch.tensor(speaker_row, device=device)

    def lengths(self, data: TalkerData, *, upfront: bool) -> Tensor:
        """``[n]``: rows that each utterance may need."""
        return self._longest_head + 1 + data.frame_counts + (data.text_counts + 1 if upfront else 0)

    def batch(self, data: TalkerData, chosen: Tensor, tagged: Tensor, length: int, *, upfront: bool) -> TalkerBatch:
        """Lay out utterances.

        Args:
            data: of the same device as the layout.
            chosen: ``[batch]`` indices.
            tagged: ``[batch]`` 0 or 1: whether the language is named.
            length: rows; longer utterances are cut.
            upfront: the whole text first (officially non-streaming), or one token a frame.
        """
        config = self._config
        row = torch.arange(length, device=chosen.device)
        head = (self._speaker_row[tagged] + 2)[:, None]
        count, frames = data.text_counts[chosen][:, None], data.frame_counts[chosen][:, None]
        begin = head + (count + 1 if upfront else 0)

        in_head = row < head
        head_row = row.clamp(max=self._longest_head - 1).expand(len(chosen), -1)
        place = row - head
        token = data.text[(data.text_starts[chosen][:, None] + place).clamp(0, len(data.text) - 1)].long()
        token = torch.where(place < count, token, config.tts_pad_id)
        token = torch.where(place == count, config.tts_eos_id, token)
        text = torch.where(in_head, self._head_text[tagged].gather(1, head_row), token)

        first = self._head_codes[tagged].gather(1, head_row)
        first = torch.where(row == head - 2, data.speakers[chosen][:, None], first)
        first = torch.where(in_head, first, torch.where(row < begin, config.codec_pad_id, config.codec_bos_id))

        # the row at ``begin`` predicts frame 0, and each frame's own row the next one
        index = data.frame_starts[chosen][:, None] + row - begin
        last = len(data.codes) - 1
        spoken = (row > begin) & (row - begin <= frames)
        codes = data.codes[(index - 1).clamp(0, last)].long()
        first = torch.where(spoken, codes[..., 0], torch.where(row - begin > frames, NO_CODE, first))
        rest = torch.where(spoken[..., None], codes[..., 1:], NO_CODE)

        predicted = data.codes[index.clamp(0, last)].long()
        speaks = (row >= begin) & (row - begin < frames)
        wanted = torch.where(speaks, predicted[..., 0], IGNORED)
        wanted = torch.where(row - begin == frames, config.codec_eos_id, wanted)
        rows = TalkerRows(text, torch.cat([first[..., None], rest], dim=-1), head[:, 0] - 2)
        return TalkerBatch(rows, wanted, predicted, speaks)


class Buckets:
    """Utterances sorted by length, so that batches are full."""

    def __init__(self, lengths: Tensor, rows_per_batch: int) -> None:
        """Take ``lengths`` from :meth:`TrainingLayout.lengths`; leave out utterances longer than the longest batch."""
        edges = torch.tensor(_LENGTHS, device=lengths.device)
        bucket = torch.bucketize(lengths, edges)
        self._members = {
            length: members
            for index, length in enumerate(_LENGTHS)
            if len(members := (bucket == index).nonzero().flatten())
        }
        self._weights = {length: float(lengths[members].sum()) for length, members in self._members.items()}
        self._rows = rows_per_batch

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(self._members)

    def weight(self, length: int) -> float:
        """Rows of all utterances of this bucket."""
        return self._weights[length]

    def size(self, length: int) -> int:
        """Utterances in a batch of this bucket."""
        return max(1, self._rows // length)

    def all_members(self) -> Iterator[tuple[int, Tensor]]:
        """Every utterance once, in batches: rows, and members."""
        for length, members in self._members.items():
            for chosen in torch.split(members, self.size(length)):
                yield length, chosen

    def draw(self, length: int) -> Tensor:
        """Random members, as many as a batch holds."""
        members = self._members[length]
        return members[torch.randint(len(members), (self.size(length),), device=members.device)]
