"""Measures a talker on speech it never saw, frame by frame, with the true past given."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from megatalker_demo_voice.listener import SpeakerListener
from megatalker_demo_voice.talker_data import IGNORED, Buckets, TalkerBatch, TalkerData, TrainingLayout
from megatalker_demo_voice.talker_model import TrainableTalker

_SHORT_FRAMES = 25
_ROWS = 8192


@torch.no_grad()
def report_talker(
    talker: TrainableTalker,
    layout: TrainingLayout,
    data: TalkerData,
    end_id: int,
    listener: SpeakerListener | None = None,
) -> dict[str, Any]:
    """Cross entropy of code 0 with the right and with another text, and what each head knows.

    Returns:
        ``code_0``: for short and long utterances and both layouts, ``right`` and ``wrong`` text, in nats.
        ``heads``: for each of the 16, ``accuracy``, ``top`` (mean largest probability) and ``perplexity``.
        ``end``: how often the end is most probable where it is (``found``), and elsewhere (``false``).
    """
    other = data.other_texts()
    short = data.frame_counts <= _SHORT_FRAMES
    out: dict[str, Any] = {"code_0": {}}
    for kind, members in (("short", short), ("long", ~short)):
        for upfront in (False, True):
            right, wrong = (
                _code_0(talker, layout, source, members, listener, upfront=upfront) for source in (data, other)
            )
            name = f"{kind}, {'upfront' if upfront else 'interleaved'}"
            out["code_0"][name] = {"right": round(right, 3), "wrong": round(wrong, 3), "gap": round(wrong - right, 3)}
    out |= _heads(talker, layout, data, end_id, listener)
    return out


def _batches(
    layout: TrainingLayout, data: TalkerData, members: Tensor, listener: SpeakerListener | None, *, upfront: bool
) -> Iterator[TalkerBatch]:
    lengths = layout.lengths(data, upfront=upfront)
    for length, chosen in Buckets(torch.where(members, lengths, 1 << 30), _ROWS).all_members():
        tagged = torch.ones_like(chosen)
        batch = layout.batch(data, chosen, tagged, length, upfront=upfront)
        if listener is not None:
            batch = replace(batch, rows=replace(batch.rows, x_vectors=listener(data.voices[chosen])[0]))
        yield batch


def _code_0(
    talker: TrainableTalker, layout: TrainingLayout, data: TalkerData, members: Tensor,
    listener: SpeakerListener | None, *, upfront: bool,
) -> float:  # fmt: skip
    total, count = 0.0, 0
    for batch in _batches(layout, data, members, listener, upfront=upfront):
        logits = talker.first_logits(talker.hidden(batch.rows))
        wanted = torch.where(batch.speaks, batch.first, IGNORED)
        total += float(F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=IGNORED, reduction="sum"))
        count += int(batch.speaks.sum())
    return total / max(1, count)


def _heads(
    talker: TrainableTalker, layout: TrainingLayout, data: TalkerData, end_id: int, listener: SpeakerListener | None
) -> dict[str, Any]:
    sums: Tensor | None = None
    frames = ends = found = false = 0
    everything = torch.ones_like(data.frame_counts, dtype=torch.bool)
    for batch in _batches(layout, data, everything, listener, upfront=False):
        hidden = talker.hidden(batch.rows)
        logits = talker.first_logits(hidden)
        best, ending = logits.argmax(-1), batch.first == end_id
        ends, found = ends + int(ending.sum()), found + int((best[ending] == end_id).sum())
        false += int((best[batch.speaks] == end_id).sum())
        wanted = batch.frames[batch.speaks]
        frames += len(wanted)
        groups = [logits[batch.speaks].unsqueeze(1), talker.rest_logits(hidden[batch.speaks], wanted)]
        facts = torch.cat(
            [_facts(part, wanted[:, at]) for part, at in zip(groups, (slice(1), slice(1, None)), strict=True)]
        )
        sums = facts if sums is None else sums + facts
    assert sums is not None
    accuracy, top, entropy = (sums / max(1, frames)).T
    heads = {"accuracy": accuracy, "top": top, "perplexity": entropy.exp()}
    return {
        "frames": frames,
        "heads": {name: [round(value, 3) for value in values.tolist()] for name, values in heads.items()},
        "end": {"found": round(found / max(1, ends), 4), "false": round(false / max(1, frames), 5)},
    }


def _facts(logits: Tensor, wanted: Tensor) -> Tensor:
    """``[n, heads, vocab]`` and ``[n, heads]`` -> ``[heads, 3]`` sums: hits, largest probability, cross entropy."""
    probability = logits.softmax(-1)
    loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="none").view(wanted.shape)
    hits = (logits.argmax(-1) == wanted).float()
    return torch.stack([hits.sum(0), probability.amax(-1).sum(0), loss.sum(0)], dim=1)
