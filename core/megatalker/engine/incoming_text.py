"""Text that callers have fed and the worker has not read yet: it reads a bounded number of characters a tick."""

from collections.abc import Sequence

from megatalker.engine.utterance import Utterance

TICK_CHARS = 1024
"""Characters of all utterances that are cut and tokenised in one tick. 1,024 of the costliest ones (Chinese sentences
of one character) take about 3 ms."""
LEAST_SHARE = 64
"""Characters that an utterance reads at once where many have text: some seconds of speech."""


def read_incoming(utterances: Sequence[Utterance], now: float) -> bool:
    """Read some of the text that was fed, by turns; says whether there was any."""
    waiting = [one for one in utterances if one.incoming.unread and one.ending is None]
    if not waiting:
        return False
    waiting.sort(key=lambda one: one.incoming.read_at)
    share = max(LEAST_SHARE, TICK_CHARS // len(waiting))
    for utterance in waiting[: TICK_CHARS // share]:
        utterance.incoming.read_at = now
        try:
            _read(utterance, share)
        except Exception as error:  # whatever it is, it concerns this utterance alone
            utterance.end("error", error)
    return True


def _read(utterance: Utterance, most: int) -> None:
    incoming, text, progress = utterance.incoming, utterance.text, utterance.progress
    while incoming.pieces and most > 0:
        if not progress.segments and not text.can_begin:
            progress.requested_at = incoming.came_at
        piece = incoming.take(most)
        most -= len(piece)
        text.feed(piece)
    if incoming.pieces or not incoming.complete:
        return
    incoming.end_read = True
    text.finish()
    if utterance.decoder is None and text.exhausted:
        utterance.end("eos")
