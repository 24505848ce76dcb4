"""From the streams to the next launch: looks at all of them, asks the scheduler, and makes the launch that it picks."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from megatalker.engine.admission import Grant
from megatalker.engine.codec_stage import CodecStage
from megatalker.engine.guarded_calls import Fault, GuardedCalls
from megatalker.engine.incoming_text import read_incoming
from megatalker.engine.scheduler import Batch, CodecStep, DecodeStep, Launch, Prefill, Stream, View, Wait, pick
from megatalker.engine.state import WorkerState
from megatalker.engine.talker_stage import TalkerStage
from megatalker.engine.utterance import Utterance
from megatalker.engine.waiting import WaitingRequests
from megatalker.prompt import PromptBuilder
from megatalker.settings import Settings

ARRIVALS_APART_S = 0.0003
"""Requests that follow one another so soon come at one moment: while nothing plays, a prefill batch waits for them."""
MOST_ARRIVALS_S = 0.02
"""The longest that a prefill batch waits for further requests."""
LAUNCH_S = 0.005
"""Audio that a stream needs sooner than this is handed out before prompts are built and launched."""


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
        self._batch: Batch | None = None
        self._last_batch_at, self._rest_until = -math.inf, math.inf

    def launch(self) -> bool:
        """Make the next launch; returns ``False`` when there was nothing to do."""
        state, paused_s, chosen = self._state, self._calls.paused_s, list[Grant]()
        began_at = state.clock()
        did = state.failure is None and self._read_text()
        if state.codec.loaded is not None:
            did |= self.codec.restore_states()
        now = state.clock()
        view = self._view(now)
        launch = pick(view, now)
        if isinstance(launch, Prefill):
            chosen = self._choose(launch, view)
            if not chosen:  # no row is free
                launch = pick(replace(view, waiting=0, resuming=0, owed=False), now)
        if self._batch is None and self._new:
            self._waiting.end_late(self._new, chosen, now)
        if not chosen:
            frames = state.counters.frames
            made = self._make(launch)
            if made and self._batch is None and not isinstance(launch, Wait):
                seconds = max(0.0, state.clock() - began_at - (self._calls.paused_s - paused_s))
                state.costs.observe_serving(seconds, state.counters.frames - frames)
                state.budget.earn(seconds, state.costs.slowdown * state.costs.need(view.running))
            return made or did
        self._prefill(chosen, view)
        return True

    @property
    def is_opening(self) -> bool:
        """Requests of a prefill batch wait for their first audio."""
        return self._batch is not None

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
        state = self._state
        did = bool(state.unread)
        if did:
            read_incoming(state.unread)
        return self.talker.read_text() or did

    # ---- what there is to do

    def _view(self, now: float) -> View:
        state, streams, new = self._state, list[Stream](), list[Utterance]()
        resuming, running, next_at, opens = 0, 0, math.inf, False
        for place, one in enumerate(state.utterances):
            frames, decodable = one.ungiven, False
            if one.admitted:
                running += one.idle_since is None
                if not frames and one.rests_until > now:  # nothing about it can have changed
                    next_at = min(next_at, one.rests_until)
                    continue
                if one.needs_prefill:
                    resuming += 1
                else:
                    held_until = one.observe(now)
                    decodable = held_until <= now
                    if not decodable:
                        next_at = min(next_at, held_until)
            elif one.needs_prefill:
                new.append(one)
            if one.codec_state is None:  # it is being restored
                frames = 0
            if frames or decodable:
                deadline, ready = one.runs_dry_at, frames > 0 and one.chunk_ready
                opening = deadline is None and not one.given and not one.ungiven - frames
                opens |= opening
                asked_at = one.progress.requested_at
                dry_at = math.inf if deadline is None else deadline
                streams.append(Stream(place, dry_at, asked_at, opening, frames, ready, decodable, one.owner))
        if self._batch is not None and not opens:
            self._end_batch(self._batch, now)
        self._new = self._waiting.enter(new) if new else ()
        capable = bool(self._new or resuming or streams)
        talker, codec = (state.talker.instance, state.codec.instance) if capable else (None, None)
        return View(
            streams,
            state.costs,
            state.budget,
            running=running,
            waiting=len(self._new),
            waiting_since=min((one.progress.requested_at for one in self._new), default=math.inf),
            resuming=resuming,
            owed=bool(self._new) and self._waiting.is_owed(self._new),
            batch=self._batch,
            last_batch_at=self._last_batch_at,
            batched=talker is None or talker.capabilities.batch,
            decode_limit=math.inf if talker is None or talker.max_streams is None else talker.max_streams,
            codec_limit=math.inf if codec is None or codec.max_streams is None else codec.max_streams,
            next_at=next_at,
        )

    # ---- launches

    def _make(self, launch: Launch) -> bool:
        """Make a step; returns whether there was anything to do."""
        state = self._state
        match launch:
            case CodecStep(places, wait) if state.codec.loaded is not None:
                self.codec.start([state.utterances[place] for place in places], wait=wait)
            case DecodeStep(places):
                self._decode([state.utterances[place] for place in places])
            case _:
                self._rest_until = launch.until if isinstance(launch, Wait) else math.inf
                return self.codec.collect()
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

    def _choose(self, asked: Prefill, view: View) -> list[Grant]:
        if self._batch is None and len(self._new) > 1 and not view.running:
            self._await_arrivals()
        return self._waiting.next_launch(asked, self._batch, self._state.clock())

    def _await_arrivals(self) -> None:
        """Wait for requests that follow at once: they are checked in another thread, which the prefill of the first few
        would hold up, and they would wait for its end.
        """
        clock = self._state.clock
        until = clock() + MOST_ARRIVALS_S
        while clock() < until and self._handle_commands(ARRIVALS_APART_S):
            pass

    def _prefill(self, chosen: Sequence[Grant], view: View) -> None:
        """Launch prompts. Audio that has arrived is handed out before; what a device still computes is waited for only
        where playback runs dry: else it has the prompts before it is done.
        """
        clock = self._state.clock
        self.codec.collect(clock() + LAUNCH_S)
        batch = self._batch
        if batch is None:
            batch = self._batch = Batch(clock(), beside=any(one.deadline < math.inf for one in view.streams))
        batch.launches += 1
        batch.rows += sum(grant.taker.prompt_rows for grant in chosen)
        self.talker.prefill(chosen)
        batch.left_over, batch.closed = self._waiting.has_left_over, chosen[0].due

    def _end_batch(self, batch: Batch, now: float) -> None:
        self._batch, self._last_batch_at = None, now
        seconds = now - batch.began_at
        if self.is_warm:
            self._state.costs.prefill.observe(batch.rows, seconds)
            if batch.beside:
                self._state.budget.spend(seconds)
        for utterance in self._state.utterances:
            utterance.chunking.rest()
