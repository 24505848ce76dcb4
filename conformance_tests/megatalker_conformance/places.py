"""Holds single frames of a stream to the oracle, however far the stream has come.

Frames that were emitted are rows of a prompt as well, so the oracle is asked by one prefill, at any place.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import torch

from megatalker.checkpoint import Checkpoint
from megatalker.sampling import CodeVocabulary, SamplingParams
from megatalker.sampling.numpy_sampler import choose
from megatalker_conformance.cases import Cases
from megatalker_conformance.measure import Measure
from megatalker_conformance.oracle import Oracle
from megatalker_conformance.precision import ERROR_RATIO, FLOAT32_ERROR, row_errors
from megatalker_conformance.streams import PLAIN_GREEDY, Codes, StreamCase, SuiteStream, SuiteStreams, TeacherForced

ANGLE_ERROR = 2**-23
"""Relative error of a rotary angle in float32: at far positions it exceeds all other rounding."""
SINGLE_RATIO = 4.0
"""Errors of single frames scatter more than their mean does, which ``ERROR_RATIO`` bounds."""
LIVELY = SamplingParams(
    seed=2**40 + 17,
    temperature=2.0,
    top_k=None,
    repetition_penalty=4.0,
    min_new_tokens=2**31 - 1,
    predictor_temperature=3.0,
    predictor_top_k=None,
)
"""Goes on for ever, and what it chooses depends on history and noise, however sure the model is."""


class FrameExaminer:
    """Advances streams freely by one frame, and fails unless the frame is right.

    Its codes must be what the sampling contract makes of the logits that came with them, and the logits those of the
    oracle. Of a decoder without ``forced_codes``, which returns none, the codes must be what the contract makes of the
    oracle's.

    Args:
        streams: on the decoder under test.
        oracle: of its checkpoint.
        cases: of its checkpoint.
        checkpoint: loaded.
        dtype: what it computes in.
    """

    def __init__(
        self, streams: SuiteStreams, oracle: Oracle, cases: Cases, checkpoint: Checkpoint, dtype: torch.dtype
    ) -> None:
        self.streams = streams
        self._oracle, self._cases, self._dtype = oracle, cases, dtype
        self.checkpoint_positions = checkpoint.config.talker.max_positions
        """Most positions of the checkpoint."""
        self._vocabulary = CodeVocabulary.from_config(checkpoint.config)
        self._with_logits = streams.decoder.capabilities.forced_codes
        seeded = streams.decoder.capabilities.seeded_sampling
        self.sampling = LIVELY if seeded else replace(PLAIN_GREEDY, min_new_tokens=LIVELY.min_new_tokens)
        """Sampling of its streams."""
        self._means: list[tuple[float, float]] = []
        """Mean errors of each frame in a 16-bit type: the decoder's, and that of ``reference``."""
        self._worst = 0.0
        """The worst of ``reference`` so far."""

    def __call__(self, stream: SuiteStream, given: Sequence[Codes] = ()) -> None:
        """Advance by one frame; ``given`` are the frames that came with the request."""
        emitted = [*given, *stream.codes]
        (frame,) = self.streams.advance(stream, return_logits=self._with_logits)
        place = self._place(stream.case, emitted)
        where = f"{stream.case.name}, frame {len(emitted)}, position {len(place.embeds)}"
        assert frame.codes is not None, f"{where}: end of speech, which min_new_tokens bars"
        exact = self._oracle.logits(place, [frame.codes])
        found = exact
        if frame.logits is not None:
            found = TeacherForced(frame.logits.talker.cpu()[None], frame.logits.predictor.cpu()[None])
            self._compare(where, len(place.embeds), found, exact, place, frame.codes)
        expected = self._chosen(stream.case.sampling, found, frame.codes, [codes[0] for codes in emitted])
        whose = "the right" if frame.logits is None else "its own"
        assert frame.codes == expected, (
            f"{where}: codes {frame.codes}; from {whose} logits the contract chooses {expected} with "
            f"{stream.case.sampling}. See megatalker/sampling/sampler.py, at the top"
        )

    def _place(self, case: StreamCase, emitted: Sequence[Codes]) -> StreamCase:
        if not emitted:
            return case
        digest = hashlib.sha256(repr(emitted).encode()).hexdigest()[:12]
        rows = self._cases.emitted_rows(case, emitted)
        return replace(case, name=f"{case.name}, then {digest}", embeds=torch.cat((case.embeds, rows)))

    def _chosen(self, sampling: SamplingParams, logits: TeacherForced, codes: Codes, history: Sequence[int]) -> Codes:
        """Return the codes that the contract chooses from these logits, each after the ``codes`` before it."""
        rows = [logits.talker[0], *logits.predictor[0]]
        return tuple(
            choose(
                row.numpy(),
                sampling,
                codebook=codebook,
                frame=len(history),
                history=history,
                vocabulary=self._vocabulary,
            )
            for codebook, row in enumerate(rows)
        )

    def _compare(
        self, where: str, position: int, found: TeacherForced, exact: TeacherForced, place: StreamCase, codes: Codes
    ) -> None:
        ours = row_errors(found, exact)[0]
        if self._dtype == torch.float32:
            bound, yardstick = FLOAT32_ERROR + position * ANGLE_ERROR, "rounding in float32"
        else:
            official = row_errors(self._oracle.logits(place, [codes], self._dtype), exact)[0]
            self._means.append((float(ours.mean()), float(official.mean())))
            self._worst = max(self._worst, float(official.max()))
            bound, yardstick = SINGLE_RATIO * self._worst, f"{SINGLE_RATIO} x reference"
        codebook = int(ours.argmax())
        assert ours[codebook] <= bound, (
            f"{where}: logits of codebook {codebook} have a relative error of {ours[codebook]:.3g}, expected at most "
            f"{bound:.3g} ({yardstick}). A frame depends on its own stream's rows, at their own positions only "
            "(interfaces.py, TalkerDecoder)"
        )

    def finish(self, measure: Measure) -> None:
        """Bound the mean error of all frames; in 16-bit types only."""
        if self._means:
            ours, official = (sum(column) / len(self._means) for column in zip(*self._means, strict=True))
            measure(f"mean of the frames' errors, reference's is {official:.3g}", ours, ERROR_RATIO * official)
