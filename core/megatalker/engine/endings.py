"""How segments and utterances end, and what becomes of requests that wait when no backend is left to serve them.

A segment ends with its end of speech, at its limit of frames, or because it runs away. Whatever ends it, the text that
follows is spoken. End of speech is believed unless the speech is too short for its text
(:mod:`megatalker.engine.speech.speech_rate`) or the decoder stream had not even read all of it: then the segment is
spoken once more. If that is no better, and after a limit or a runaway, the utterance goes on with the sentence that was
being spoken, or the next one where that is the segment's first. What is left out between is counted, and the utterance
ends as ``incomplete`` or ``runaway``. Audio of what is repeated may have been played before. Words that are heard twice
are the lesser evil.

The second try is a decoder stream like any other, so that its seed follows from the request's seed and the number of
streams that the utterance had before (:func:`megatalker.engine.speech.options.stream_seed`): the same request gives the
same codes, on whichever backend. Where nothing is drawn at random it would say the same, and is left out.
"""

import logging
import queue
from typing import Literal

from megatalker.engine.commands import CommandQueue, Lend, Submit, Warmup
from megatalker.engine.decoder_stream import DecoderStream
from megatalker.engine.failover import leave_untried
from megatalker.engine.runaway import PATIENCE_FRAMES
from megatalker.engine.speech.speech_rate import is_short, resume_at, spoken_chars
from megatalker.engine.state import WorkerState
from megatalker.engine.utterance import Utterance
from megatalker.errors import MegatalkerError
from megatalker.prompt.text import speakable

logger = logging.getLogger(__name__)

SegmentEnd = Literal["eos", "short", "limit", "runaway"]
"""Why a decoder stream is over: end of speech; the same, too early for its text; as many frames as it may have; or
:mod:`megatalker.engine.runaway`."""


def end_of_speech(utterance: Utterance, decoder: DecoderStream) -> Literal["eos", "short"]:
    """How the decoder stream ended that has chosen end of speech."""
    return "short" if _is_short(utterance, decoder) else "eos"


def end_segment(state: WorkerState, utterance: Utterance, decoder: DecoderStream, end: SegmentEnd) -> None:
    """The utterance's decoder stream is over: go on with the text that follows, or end where there is none."""
    text, short = utterance.text, end == "short"
    retire(state, utterance)
    if short and utterance.short_speech == "repeat" and _may_differ(utterance) and not decoder.segment.repeated:
        logger.warning(
            "stream with seed %d: %d frames are too few for %d characters; they are spoken once more",
            utterance.progress.seed,
            decoder.frames,
            len(decoder.segment.text),
        )
        state.counters.repeated += 1
        text.repeat()
        return
    said = None
    if end != "eos":
        said = _leave_unsaid(utterance, decoder, end)
    text.end(decoder.ids_fed, said)
    utterance.end_if_said()


def _leave_unsaid(utterance: Utterance, decoder: DecoderStream, end: SegmentEnd) -> int:
    """Count what a decoder stream left out; returns where in the text that it read to go on: at a sentence."""
    read, _ = decoder.segment.read(decoder.ids_fed)
    frames = max(0, decoder.frames - PATIENCE_FRAMES) if end == "runaway" else decoder.frames
    spoken = spoken_chars(read, frames)
    said = resume_at(read, spoken)
    chars = max(0 if end == "short" else 1, said - spoken)
    if chars:
        utterance.progress.begun[-1].cut = True
        logger.warning(
            "stream with seed %d: about %d of %d characters are left unsaid after %d frames (%s)",
            utterance.progress.seed,
            chars,
            len(decoder.segment.text),
            decoder.frames,
            end,
        )
        utterance.leave_unsaid(chars, "runaway" if end == "runaway" else "incomplete")
    return said


def retire(state: WorkerState, utterance: Utterance) -> None:
    """The utterance's decoder stream is over; its rows are freed in this tick or at the start of the next."""
    decoder, utterance.decoder = utterance.decoder, None
    if decoder is not None and decoder.handle is not None:
        state.talker_work.to_release.append(decoder.handle)


def _is_short(utterance: Utterance, decoder: DecoderStream) -> bool:
    if utterance.short_speech == "believe":
        return False
    read, follows = decoder.segment.read(decoder.ids_fed)
    return speakable(follows) or is_short(read, decoder.frames)


def _may_differ(utterance: Utterance) -> bool:
    sampling = utterance.request.sampling
    return sampling.do_sample or sampling.predictor_do_sample


def finish(state: WorkerState, commands: CommandQueue, utterance: Utterance) -> None:
    """The utterance is over: forget it, then tell its consumer."""
    state.utterances.remove(utterance)
    if utterance.suspected:
        leave_untried(state.utterances, (state.talker, state.codec), utterance)
    reason = utterance.ending or "error"
    if reason == "eos" and utterance.delivered and utterance.text.characters:
        state.throughput.observe_end(utterance.delivered, utterance.text.characters)
    commands.finished(utterance)  # before it counts: who sees it counted finds its place free
    state.counters.cancelled += reason == "cancelled"
    state.counters.errors += reason == "error"
    state.counters.incomplete += reason in ("incomplete", "runaway")
    utterance.forget()
    utterance.chunks.finish(reason, utterance.error)


def refuse_waiting(state: WorkerState, error: MegatalkerError) -> None:
    """Nobody will be served any more: fail those who wait for something else than a stream."""
    for done in state.warmups:
        done.set_exception(error)
    state.warmups.clear()
    for loan in state.loans:
        loan.lent.set_exception(error)
    state.loans.clear()


def end_everything(state: WorkerState, commands: CommandQueue, error: MegatalkerError) -> None:
    """End all streams and requests, also those still in the queue. Nobody else may touch the state meanwhile."""
    while True:
        try:
            command = commands.queue.get_nowait()
        except queue.Empty:
            break
        match command:
            case Submit(utterance):
                state.utterances.append(utterance)
            case Warmup(done):
                state.warmups.append(done)
            case Lend():
                state.loans.append(command)
    refuse_waiting(state, error)
    for utterance in list(state.utterances):
        utterance.fail(error)
        finish(state, commands, utterance)
