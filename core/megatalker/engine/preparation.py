"""Taking into use what a talker prepares in the background, when a pause harms no listener."""

import logging
import math
from collections.abc import Sequence

from megatalker.engine.backend_role import LoadedBackend
from megatalker.engine.guarded_calls import GuardedCalls
from megatalker.engine.scheduler import StreamStatus
from megatalker.engine.utterance import Utterance
from megatalker.errors import describe_error
from megatalker.plugins.checked import CheckedTalker

logger = logging.getLogger(__name__)

POLL_S = 0.5  # not tuned: a poll period
PAUSE_S = 1.0  # not tuned: longer than any such pause
"""Audio that every playback must have in hand, for a pause to harm nobody."""
LATEST_S = 30.0  # not tuned: a bound of waiting
"""An engine that is busy all the time pauses after so long."""


def go_on(
    calls: GuardedCalls, talker: LoadedBackend[CheckedTalker], utterances: Sequence[Utterance], now: float
) -> None:
    """Ask the talker to take a piece into use, unless one of the utterances has little audio in hand and needs more."""
    hurried = any(
        (one.status in (StreamStatus.WAITING, StreamStatus.RUNNING) or one.pending)
        and not one.chunks.is_full()
        and one.progress.playback.ahead(now) < PAUSE_S
        for one in utterances
    )
    if hurried and now < talker.prepare_at + LATEST_S:
        return
    talker.prepare_at = now + POLL_S
    try:
        talker.preparing = calls.prepare(talker)
    except Exception as error:  # it can do without
        reason, what = describe_error(error), talker.preparing or "what it prepared"
        logger.error("talker backend %s goes on without %s: %s", talker.name, what, reason)
        talker.preparing, talker.unprepared = None, reason
    if talker.preparing is None:
        talker.prepare_at = math.inf
