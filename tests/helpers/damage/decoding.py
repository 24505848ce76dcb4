"""Damages of decoders, codecs and the engine that show late, or in company."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.engine import codec_stage, talker_stage
from megatalker.interfaces import CodecBackend, DecodeStep, LoadContext, TalkerBackend, TalkerDecoder
from megatalker.plugins import hookimpl
from megatalker.plugins.stream_table import TableEntry
from megatalker_backends.compiled.ops import rope_table
from mistakes.catalogue import HEALTHY, Decoder, Quick
from mistakes.codec_schedules import WrongLater
from mistakes.numerics import EachFrame

Spoil = Callable[[pytest.MonkeyPatch], None]


class From128(EachFrame):
    """Positions are off by one from frame 128 on."""

    def touch(self, entry: TableEntry) -> None:
        entry.positions += entry.frames == 128


class LateBase(Decoder):
    """From position 300 on, the rotary base is another."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, context)
        talker, right = checkpoint.config.talker, self._model._talker_rope
        other = rope_table(len(right[0]), talker.head_dim, 1.1 * talker.rope_theta, context.device)
        self._model._talker_rope = tuple(  # type: ignore[assignment]
            torch.cat((table[:300], wrong[300:])) for table, wrong in zip(right, other, strict=True)
        )


class From200(WrongLater):
    """Wrong from frame 200 of a stream on."""

    first = 200


@hookimpl
def megatalker_backends() -> list[TalkerBackend | CodecBackend]:
    """Return the backends of this file."""
    talkers = {"from_128": From128, "late_base": LateBase}
    made = [replace(HEALTHY[TalkerDecoder], name=name, load=load) for name, load in talkers.items()]
    return [*made, replace(HEALTHY[Quick], name="from200", load=From200)]


def _text_of_another(patch: pytest.MonkeyPatch) -> None:
    """Each utterance is fed the text row of the one that was asked before it."""
    right, rows = talker_stage._step, list[Tensor]()

    def wrong(decoder: Any) -> DecodeStep:
        step = right(decoder)
        rows.append(step.text)
        return replace(step, text=rows[-2] if len(rows) > 1 else step.text)

    patch.setattr(talker_stage, "_step", wrong)


def _seedless(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("megatalker.engine.utterance.stream_seed", lambda seed, index: 0)


def _too_loud(patch: pytest.MonkeyPatch) -> None:
    right = codec_stage.CodecStage._hand_out

    def wrong(self: Any, utterance: Any, pcm: Any, *rest: Any) -> Any:
        return right(self, utterance, pcm * 1.01, *rest)

    patch.setattr(codec_stage.CodecStage, "_hand_out", wrong)


ENGINE: Mapping[str, Spoil] = {
    "text mixed between utterances": _text_of_another,
    "seeds of utterances ignored": _seedless,
    "sound of the engine too loud": _too_loud,
}
