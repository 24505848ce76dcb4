"""Text that callers have fed and the worker has not read yet: it reads a bounded number of characters a tick."""

from collections.abc import Sequence
from itertools import islice

from megatalker.engine.utterance import Utterance

TICK_CHARS = 1024  # not tuned: a bound of work
"""Characters of all utterances that are cut and tokenised in one tick. 1,024 of the costliest ones (Chinese sentences
of one character) take about 3 ms."""
LEAST_SHARE = 64  # not tuned: a bound of work
"""Characters that an utterance reads at once where many have text: some seconds of speech."""


def read_incoming(unread: dict[Utterance, None]) -> Sequence[Utterance]:
    """Read some of the text that was fed to these, by turns; those that have more go to the end of ``unread``.
    Returns the utterances whose text was read.
    """
    share = max(LEAST_SHARE, TICK_CHARS // len(unread))
    chosen = list(islice(unread, TICK_CHARS // share))
    for utterance in chosen:
        del unread[utterance]
        if utterance.ending is not None:
            utterance.drop_incoming()
            continue
        try:
            _read(utterance, share)
        except Exception as error:  # whatever it is, it concerns this utterance alone
            utterance.end("error", error)
        if utterance.incoming.unread:
            unread[utterance] = None
    return chosen


def _read(utterance: Utterance, most: int) -> None:
    incoming, text, progress = utterance.incoming, utterance.text, utterance.progress
    if incoming.pieces:
        if not progress.segments and not text.can_begin:
            progress.requested_at = incoming.came_at
        text.feed(incoming.take(most))
    utterance.take_joint()
    if incoming.pieces or not incoming.complete:
        return
    incoming.end_read = True
    text.finish()
    utterance.end_if_said()
