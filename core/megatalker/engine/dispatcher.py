"""From the streams to the next launch: looks at all of them, asks the scheduler, and makes the launch that it picks."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

from megatalker.checkpoint.config import FRAME_SECONDS
from megatalker.engine.codec_stage import CodecStage
from megatalker.engine.costs import MOST_PREFILL_S, UNBATCHED_STREAMS
from megatalker.engine.failover import suspect
from megatalker.engine.guarded_calls import Fault, GuardedCalls
from megatalker.engine.handing_out import pass_joints
from megatalker.engine.incoming_text import read_incoming
from megatalker.engine.scheduler import (
    CodecLaunch,
    DecodeLaunch,
    NextLaunch,
    PrefillLaunch,
    Rest,
    StreamStatus,
    View,
    codec_launch,
    pick,
)
from megatalker.engine.state import WorkerState
from megatalker.engine.talker_stage import TalkerStage
from megatalker.engine.utterance import Utterance
from megatalker.engine.waiting import WaitingRequests
from megatalker.prompt import PromptBuilder
from megatalker.settings import Settings

ARRIVALS_APART_S = 0.0003  # measured: docs/notes/throughput.md#what-each-constant-is-worth
"""Requests that follow one another so soon come at one moment: while nothing plays, a prefill batch waits for them."""
MOST_ARRIVALS_S = 0.02  # measured: docs/notes/throughput.md#what-each-constant-is-worth
"""The longest that a prefill batch waits for further requests."""
LAUNCH_S = 0.005  # measured: docs/notes/throughput.md#what-each-constant-is-worth
"""Audio that a stream needs sooner than this is handed out before prompts are built and launched."""
PREFILL_LAUNCHES = 3  # measured: docs/notes/throughput.md#what-each-constant-is-worth
"""Launches of one prefill batch that requests can join which arrive during the first."""


class Dispatcher:
    """Makes one launch at a time, between which the worker handles commands."""

    def __init__(
        self,
        state: WorkerState,
        calls: GuardedCalls,
        builder: PromptBuilder,
        settings: Settings,
        handle_commands: Callable[[float], bool],
    ) -> None:
        """``handle_commands``: wait this long for commands; returns whether there was any."""
        self._state, self._calls, self._handle_commands = state, calls, handle_commands
        self._waiting = WaitingRequests(state, settings, lambda: calls.paused_s)
        self.talker, self.codec = TalkerStage(state, calls, builder), CodecStage(state, calls)
        self._new: Sequence[Utterance] = ()
        """Requests that wait for a row."""
        self._rest_until = math.inf
        self._codec_s = 0.0
        """Seconds spent on codec steps that were not handed out yet."""
        self.frame_s = 0.0
        """Seconds that a frame of one running stream takes, with its audio, by the costs of launches."""
        self._busy_since: float | None = None
        """When the launch before was done, if the engine has not rested since."""

    def launch(self) -> bool:
        """Make the next launch; returns ``False`` when there was nothing to do."""
        state = self._state
        did = state.failure is None and self._read_text()
        if did:
            self._busy_since = None  # no launch's cost
        if state.codec.loaded is not None:
            did |= pass_joints(state)
            did |= self.codec.restore_states()
        now = state.clock()
        view = self._view()
        self.frame_s = FRAME_SECONDS * state.costs.need(view.running) / max(1, view.running)
        launch = pick(view, now)
        if isinstance(launch, PrefillLaunch):
            if self._prefill(launch, view):
                self._busy_since = state.clock()
                return True
            launch = pick(replace(view, waiting=0, resuming=0), now)  # no slot is free, or no prompt fits
        if self._new:
            self._waiting.end_late(self._new, (), now)
        if not self._make(launch, view, now if self._busy_since is None else self._busy_since):
            self._busy_since = None
            return did
        self._busy_since = state.clock()
        return True

    def enter(self, utterance: Utterance) -> None:
        """A new utterance has come."""
        if utterance.distrusted:
            suspect((self._state.talker, self._state.codec), utterance)
        if utterance.begun:
            self._waiting.resume(utterance)
        utterance.update(self._state.clock())

    @property
    def is_warm(self) -> bool:
        """Both backends are warm: what a launch takes now, it takes again."""
        roles = (self._state.talker, self._state.codec)
        return all(role.loaded is not None and role.loaded.warm for role in roles)

    @property
    def rest_until(self) -> float:
        """When there is something to do, where there was nothing and nothing arrives."""
        return min(self._rest_until, self._waiting.rows_change_at(self._new)) if self._new else self._rest_until

    def _read_text(self) -> bool:
        """Read some of the text that callers have fed; returns whether there was any."""
        state = self._state
        if not state.unread:
            return False
        for utterance in read_incoming(state.unread):
            came_first = utterance.status is StreamStatus.STARVED and not utterance.begun
            self.talker.read_text(utterance)
            utterance.update(state.clock())
            if came_first and utterance.status is StreamStatus.WAITING:
                self._waiting.enter(utterance)
        return True

    # ---- what there is to do

    def _view(self) -> View[Utterance]:
        state, waits = self._state, StreamStatus.WAITING
        held = sum([one.admitted for one in state.utterances])
        waiting = [one for one in state.utterances if one.status is waits]
        self._new = new = [one for one in waiting if not one.admitted]
        resuming = len(waiting) - len(new)
        running = resuming + sum([one.decode_at != math.inf for one in state.utterances])
        first = self._waiting.first(new) if new else None
        batched, codec_limit = True, math.inf
        if held or new:
            talker, codec = state.talker.instance, state.codec.instance
            batched = talker.capabilities.batch
            most = math.inf if talker.max_streams is None else talker.max_streams
            state.costs.most_decoded = most if batched else min(most, UNBATCHED_STREAMS)
            codec_limit = math.inf if codec.max_streams is None else codec.max_streams
        return View(
            state.utterances,
            state.costs,
            state.budget,
            waiting=len(new),
            next_rows=1 if first is None else first.prompt_rows,
            next_s=math.inf if first is None else first.left_s(state.throughput.frames_a_character),
            resuming=resuming,
            held=held,
            running=running,
            owed=bool(new) and self._waiting.is_owed(new),
            batched=batched,
            codec_limit=codec_limit,
        )

    # ---- launches

    def _make(self, launch: NextLaunch[Utterance], view: View[Utterance], began_at: float) -> bool:
        """Make a step, and learn what it costs: all of the time since the launch before. Returns whether there was
        anything to do.
        """
        state, paused_s = self._state, self._calls.paused_s
        self.codec.round_s = max(1, view.running) * self.frame_s
        codec_s, streams = self.codec.seconds, state.counters.decode_rows
        match launch:
            case CodecLaunch(chosen, wait) if state.codec.loaded is not None:
                self.codec.start(chosen, wait=wait)
            case DecodeLaunch(chosen):
                self._decode(chosen)
            case _:
                self._rest_until = launch.until if isinstance(launch, Rest) else math.inf
                return self.codec.collect()
        seconds = max(0.0, state.clock() - began_at - (self._calls.paused_s - paused_s))
        streams, costs = state.counters.decode_rows - streams, state.costs
        if streams:
            codec_s = self.codec.seconds - codec_s
            costs.decode.observe(streams, max(0.0, seconds - codec_s), warm=self.is_warm)
            self._codec_s += codec_s
        else:
            self._codec_s += seconds
        steps, frames = self.codec.take_counts()
        if steps:
            costs.observe_codec(max(1, frames // steps), self._codec_s / steps, warm=self.is_warm)
            self._codec_s = 0.0
        state.budget.earn(seconds, costs.need(view.running))
        return True

    def _decode(self, chosen: Sequence[Utterance]) -> None:
        """Make a frame for each, and hand out the audio of the frames before while the device computes."""
        try:
            self.talker.begin(chosen)
        except Fault:
            self.codec.collect()  # not to wait until another talker is loaded
            raise
        self.codec.collect()
        step = self._state.talker_work.step
        if step is not None:
            self.codec.open_states([utterance for utterance, _ in step.shares])
        self.talker.take()

    def _prefill(self, asked: PrefillLaunch, view: View[Utterance]) -> bool:
        """Begin or continue streams, and those that arrive meanwhile, up to their first audio; returns whether there
        were any.

        Audio that has arrived is handed out before; what a device still computes is waited for only where playback
        runs dry: else it has the prompts before it is done.
        """
        clock = self._state.clock
        others = any(one.deadline > -math.inf and one.status is not StreamStatus.ENDED for one in view.streams)
        if len(self._new) > 1 and not view.held:
            self._await_arrivals()
        chosen, begun, rows = self._waiting.next_launch(asked, clock()), list[Utterance](), 0
        if not chosen:
            return False
        self._waiting.end_late(self._new, chosen, clock())
        self.codec.collect(math.inf if asked.forced else clock() + LAUNCH_S)
        began_at = clock()
        for launch in count(1):
            begun += [grant.taker for grant in chosen]
            rows += sum(grant.taker.prompt_rows for grant in chosen)
            self.talker.prefill(chosen)
            enough = launch >= PREFILL_LAUNCHES and not self._waiting.has_left_over
            if enough or chosen[0].due or not view.batched or clock() > began_at + MOST_PREFILL_S:
                break
            self._handle_commands(0.0)
            self.codec.collect(clock() + LAUNCH_S)
            chosen = self._waiting.next_launch(asked, began_at, len(begun), rows)
            if not chosen:
                break
        if self._open(begun, view) and self.is_warm:
            seconds = clock() - began_at
            self._state.costs.prefill.observe(rows, seconds)
            self._state.budget.spend(seconds, others_waited=others)
        self._codec_s = 0.0
        self.codec.take_counts()
        return True

    def _await_arrivals(self) -> None:
        """Wait for requests that follow at once: they are checked in another thread, which the prefill of the first few
        would hold up, and they would wait for its end.
        """
        clock = self._state.clock
        until = clock() + MOST_ARRIVALS_S
        while clock() < until and self._handle_commands(ARRIVALS_APART_S):
            pass

    def _open(self, begun: Sequence[Utterance], view: View[Utterance]) -> bool:
        """Make the first audio of streams that were prefilled; returns whether there were any without audio."""
        first = [one for one in begun if one.status is StreamStatus.RUNNING and one.deadline == -math.inf]
        if not first:
            return False
        self._decode(first)
        left = [one for one in first if one.ungiven]
        while left and self._state.codec.loaded is not None:
            step = codec_launch(left, view, first=True)
            self.codec.start(step.streams, wait=step.wait)
            left = left[len(step.streams) :]
        return True
