"""Forced decoding: how parity is checked, and how a stream moves to another backend."""

import pytest

from megatalker.checkpoint import Checkpoint
from megatalker.errors import InvalidRequestError
from megatalker_conformance.cases import SENTENCES, Cases
from megatalker_conformance.checks import Judge, require
from megatalker_conformance.oracle import Oracle
from megatalker_conformance.streams import SuiteStreams


@pytest.fixture(autouse=True)
def _forced_codes(streams: SuiteStreams) -> None:
    require(streams.decoder.capabilities, "forced_codes")


def test_forced_codes_come_out_whatever_the_model_would_choose(
    streams: SuiteStreams, cases: Cases, judge: Judge, oracle: Oracle
) -> None:
    """Codes of another case are improbable here; the logits before each frame come out all the same."""
    case = cases.prompt(SENTENCES[0], "interleaved", judge.manner)
    other = oracle.codes(cases.prompt(SENTENCES[1], "interleaved", judge.manner), 5)
    logits = streams.force(case, other)
    assert logits.talker.isfinite().all()
    assert logits.predictor.isfinite().all()


def test_forced_end_of_speech_ends_the_stream(
    streams: SuiteStreams, cases: Cases, judge: Judge, checkpoint: Checkpoint
) -> None:
    config = checkpoint.config
    stream = streams.start(cases.rows(8, judge.manner))
    end = [config.codec_eos_id] + [0] * (config.num_code_groups - 1)
    (frame,) = streams.advance(stream, forced=end, return_logits=True)
    assert frame.ended
    assert frame.logits is not None
    assert frame.logits.talker.shape == (config.talker.vocab_size,)
    assert frame.logits.predictor.shape == (0, config.predictor.vocab_size)
    with pytest.raises(InvalidRequestError):
        streams.advance(stream)
    streams.release(stream)
