"""Codes held to the sampling contract on official logits, wherever they were drawn."""

import numpy as np

from megatalker.checkpoint.config import ModelConfig
from megatalker.sampling import CodeVocabulary
from megatalker_conformance.choices import Choice
from megatalker_conformance.precision import FLOAT32_ERROR, row_errors
from megatalker_conformance.streams import StreamCase, TeacherForced
from megatalker_conformance.verify.company import PlayedStream
from megatalker_conformance.verify.forward import OfficialForward

ANGLE_ERROR = 2**-23
"""Relative error of a rotary angle in float32, which grows with the position."""


class ContractJudge:
    """Finds the first code that the sampling contract does not make of the official logits.

    Args:
        config: of the checkpoint.
        forward: the official modules.
    """

    def __init__(self, config: ModelConfig, forward: OfficialForward) -> None:
        self._vocabulary = CodeVocabulary.from_config(config)
        self._forward = forward

    def fault(self, said: PlayedStream) -> tuple[str | None, int]:
        """Return what is wrong with what a stream said itself, and how many of its codes stand at near-ties."""
        case, codes, first = said.plan.case, said.codes, len(said.plan.emitted)
        official = self._forward.logits(case, codes)
        wrong = self._logit_fault(said, official)
        history, ties = [frame[0] for frame in codes], 0
        for frame in range(first, len(codes) + said.ended):
            last = frame == len(codes)
            found = (self._vocabulary.eos_id,) if last else codes[frame]
            rows = [official.talker[frame]] if last else [official.talker[frame], *official.predictor[frame]]
            for codebook, (code, row) in enumerate(zip(found, rows, strict=True)):
                choice = Choice(row.numpy(), case.sampling, codebook, frame, history[:frame], self._vocabulary)
                if choice.code() != code:
                    if not _near(choice, code, _allowed(case, frame)):
                        where = f"frame {frame}, position {len(case.embeds) + frame}, codebook {codebook}"
                        return f"{where}: {code}, not {choice.code()}", ties
                    ties += 1
        return wrong, ties

    def _logit_fault(self, said: PlayedStream, official: TeacherForced) -> str | None:
        """The frame whose logits are furthest from the official ones, if that is too far."""
        case, first, last = said.plan.case, len(said.plan.emitted), len(said.codes)
        if not said.logits or first == last:
            return None
        ours = said.own_logits
        found = TeacherForced(ours.talker[: last - first], ours.predictor[: last - first])
        errors = row_errors(found, TeacherForced(official.talker[first:last], official.predictor[first:last])).amax(1)
        excess = [float(error) / _allowed(case, first + frame) for frame, error in enumerate(errors)]
        frame = int(np.argmax(excess))
        if excess[frame] <= 1:
            return None
        position, bound = len(case.embeds) + first + frame, _allowed(case, first + frame)
        where = f"frame {first + frame}, position {position}"
        return f"{where}: logits are off by {float(errors[frame]):.2g} (at most {bound:.2g})"


def _allowed(case: StreamCase, frame: int) -> float:
    """Error of logits, relative to their size, that float32 explains there."""
    return FLOAT32_ERROR + (len(case.embeds) + frame) * ANGLE_ERROR


def _near(choice: Choice, code: int, error: float) -> bool:
    """Whether rounding explains the code."""
    scores = choice.scores()
    size = float(np.sqrt(np.square(choice.logits).mean()))
    return float(scores.max() - scores[code]) <= 2 * error * size or code in choice.codes_within(error)
