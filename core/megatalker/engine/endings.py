"""How utterances end, and what becomes of those who wait when there is nobody left to serve them."""

import queue

from megatalker.engine.blame import leave_untried
from megatalker.engine.commands import CommandQueue, Lend, Submit, Warmup
from megatalker.engine.state import WorkerState
from megatalker.engine.utterance import Utterance
from megatalker.errors import MegatalkerError


def finish(state: WorkerState, commands: CommandQueue, utterance: Utterance) -> None:
    """The utterance is over: forget it, then tell its consumer."""
    state.utterances.remove(utterance)
    if utterance.suspected:
        leave_untried(state.utterances, (state.talker, state.codec), utterance)
    reason = utterance.ending or "error"
    if reason == "eos" and utterance.delivered and utterance.text.characters:
        state.throughput.note_end(utterance.delivered, utterance.text.characters)
    state.counters.cancelled += reason == "cancelled"
    state.counters.errors += reason == "error"
    commands.finished(utterance)
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
        utterance.end("error", error)
        finish(state, commands, utterance)
