"""Mixed voices: the speaker embeddings of several voices, added by weight, as in ``robin:0.6+mina:0.4``."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.errors import InvalidRequestError
from megatalker.voices.names import MAX_CHARS
from megatalker.voices.voice import Voice, list_speakers

MOST_PARTS = 8
"""Voices in a mix. More sound like the mean of all speakers, whatever their weights."""
MOST_CHARS = MOST_PARTS * (4 * MAX_CHARS)
LEAST_WEIGHT, LARGEST_WEIGHT = 1e-3, 1e3
_EXAMPLE = "expected names with weights, such as robin:0.6+mina:0.4"


def mix_parts(name: str) -> list[tuple[str, float]] | None:
    """Return the names and weights that a mixed voice's name lists, or ``None`` where it is the name of one voice.

    A mix has a ``+``, or a ``:`` with a number behind it. A part without a weight has the weight 1.

    Raises:
        InvalidRequestError: a weight is no number from 0.001 to 1000, or there are too many parts, or empty ones.
    """
    if "+" not in name and _weight(name.rpartition(":")[2] if ":" in name else "") is None:
        return None
    if len(name) > MOST_CHARS or name.count("+") >= MOST_PARTS:
        raise InvalidRequestError(
            f"the voice {name[:40]!r}... mixes {name.count('+') + 1:,} voices in {len(name):,} characters, expected at "
            f"most {MOST_PARTS} voices and {MOST_CHARS:,} characters"
        )
    return [_part(part.strip(), name) for part in name.split("+")]


def mix_voices(
    parts: Sequence[tuple[Voice, float]], checkpoint: Checkpoint | None = None, *, name: str | None = None
) -> Voice:
    """Mix voices by weight: of speakers of one checkpoint, or of voices that it cloned.

    Weights count relative to their sum. One voice alone, or the same one several times, is that voice itself. Of
    recordings that stand in the prompt (in context) only how the speaker sounds is mixed. A mix speaks no dialect.

    Args:
        parts: voices and their weights, from 0.001 to 1000, at most 8.
        checkpoint: needed where speakers are mixed, which are rows of its tables.
        name: the mix as people read it; ``None``: made of the names of speakers.

    Raises:
        InvalidRequestError: there are no voices or too many, a weight is not in its range, or the voices have no
            embeddings in one space: they are descriptions, or of several checkpoints.
    """
    if not 0 < len(parts) <= MOST_PARTS:
        raise InvalidRequestError(f"a mix has {len(parts)} voices, expected 1 to {MOST_PARTS}")
    for _, weight in parts:
        _check_weight(weight)
    if all(_same(voice, parts[0][0]) for voice, _ in parts):
        return parts[0][0]
    total = math.fsum(weight for _, weight in parts)
    rows = [_embedding(voice, checkpoint).double() * (weight / total) for voice, weight in parts]
    prints = {voice.checkpoint_fingerprint for voice, _ in parts if voice.kind != "speaker"}
    if any(voice.kind == "speaker" for voice, _ in parts) and checkpoint is not None:
        prints.add(checkpoint.fingerprint)
    if len(prints) != 1:
        raise InvalidRequestError(
            "the voices of a mix are of several checkpoints, whose embeddings mean different things; clone them all "
            "with one"
        )
    if len({row.shape for row in rows}) != 1:
        raise InvalidRequestError(f"the voices of a mix have embeddings of {sorted({len(row) for row in rows})} values")
    label = name or "+".join(f"{voice.speaker or voice.kind}:{weight / total:.4g}" for voice, weight in parts)
    mixed = torch.stack(rows).sum(0).float()
    return Voice(x_vector=mixed, mixed_from=label, checkpoint_fingerprint=prints.pop())


def find_mixed(name: str, checkpoint: Checkpoint, find: Callable[[str], Voice | None] | None = None) -> Voice | None:
    """Return the mixed voice of this name, or ``None`` where it is the name of one voice: a speaker called ``a+b`` is
    that speaker.

    Args:
        name: such as ``robin:0.6+mina:0.4``.
        checkpoint: whose speakers may be parts.
        find: other voices by name; ``None``: there are none.

    Raises:
        InvalidRequestError: see :func:`mix_parts` and :func:`mix_voices`; or a part is unknown.
    """
    speakers = checkpoint.config.speakers
    parts = None if name.lower() in speakers else mix_parts(name)
    if parts is None:
        return None
    if checkpoint.config.variant == "voice_design":
        raise _no_space(f"checkpoint {checkpoint.name!r} is a voice_design model")

    def one(part: str) -> Voice:
        voice = Voice.named(part.lower()) if part.lower() in speakers else find(part) if find is not None else None
        if voice is None:
            known = ", ".join(list_speakers(checkpoint)) or "no speakers; it mixes voices that it cloned"
            raise InvalidRequestError(
                f"unknown voice {part[:80]!r} in the mix {name[:80]!r}; this checkpoint has {known}"
            )
        return voice

    return mix_voices([(one(part), weight) for part, weight in parts], checkpoint, name=name)


def _part(part: str, whole: str) -> tuple[str, float]:
    name, colon, number = part.rpartition(":")
    if not colon:
        name, number = part, "1"
    weight = _weight(number)
    if not name.strip() or weight is None:
        raise InvalidRequestError(f"the mixed voice {whole[:80]!r} has the part {part[:80]!r}; {_EXAMPLE}")
    _check_weight(weight)
    return name.strip(), weight


def _weight(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _check_weight(weight: float) -> None:
    if not LEAST_WEIGHT <= weight <= LARGEST_WEIGHT:  # nor NaN
        raise InvalidRequestError(
            f"a weight of a mixed voice is {weight:g}, expected a number from {LEAST_WEIGHT:g} to {LARGEST_WEIGHT:g}"
        )


def _same(one: Voice, other: Voice) -> bool:
    if one is other:
        return True
    return one.speaker is not None and other.speaker is not None and one.speaker.lower() == other.speaker.lower()


def _embedding(voice: Voice, checkpoint: Checkpoint | None) -> Tensor:
    """``[talker hidden size]``: what stands for the voice in a prompt."""
    if voice.x_vector is not None:
        return voice.x_vector
    if voice.speaker is None:
        raise _no_space("a voice of the mix is a description")
    if checkpoint is None:
        raise InvalidRequestError(
            f"speaker {voice.speaker!r} can be mixed with its checkpoint only; give the checkpoint"
        )
    row = checkpoint.config.speakers.get(voice.speaker.lower())
    if row is None:
        raise InvalidRequestError(
            f"unknown speaker {voice.speaker!r}; this checkpoint knows {', '.join(list_speakers(checkpoint))}"
        )
    return checkpoint.tensor("talker.model.codec_embedding.weight")[row]


def _no_space(why: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{why}: voices in words have no embeddings that could be mixed; describe the voice you want, or take a "
        "CustomVoice or Base checkpoint"
    )
