"""The talker's launches: prompts in, frames out."""

import logging
from collections.abc import Sequence
from functools import partial
from operator import methodcaller

from megatalker.engine.admission import Grant, serve
from megatalker.engine.decoder_stream import Codes, DecoderStream
from megatalker.engine.endings import end_of_speech, end_segment
from megatalker.engine.failover import pass_trial
from megatalker.engine.guarded_calls import REQUEST_ERRORS, Fault, GuardedCalls
from megatalker.engine.speech.outputs import StreamEnd
from megatalker.engine.speech.request import frames_that_fit
from megatalker.engine.state import StepInProgress, WorkerState
from megatalker.engine.utterance import Utterance
from megatalker.errors import CapacityError, describe_error
from megatalker.interfaces import DecodeStep, StreamRequest
from megatalker.prompt import PromptBuilder

logger = logging.getLogger(__name__)

MOST_REFUSALS = 3  # not tuned: a bound of trials
"""Requests that a backend may refuse without a frame in between; the last of them is tried by another."""


class TalkerStage:
    """Prefill, decode and release for all utterances."""

    def __init__(self, state: WorkerState, calls: GuardedCalls, builder: PromptBuilder) -> None:
        self._state, self._work, self._calls = state, state.talker_work, calls
        self._builder = builder

    def release(self) -> bool:
        """Free the rows of streams that nobody needs any more; says whether there were any."""
        did = bool(self._work.to_release)
        while self._work.to_release:
            handle = self._work.to_release.pop()
            try:
                self._calls.step(self._state.talker, "release", methodcaller("release", handle))
            except REQUEST_ERRORS as error:  # it refuses to release what it handed out itself
                name = self._state.talker.last
                raise Fault(self._state.talker, name, f"release raised {describe_error(error)}") from error
        return did

    def read_text(self, utterance: Utterance) -> None:
        """Turn text that arrived for its decoder stream into rows."""
        decoder = utterance.decoder
        if decoder is None or decoder.complete or utterance.ending is not None:
            return
        if decoder.new_ids or decoder.segment.complete:
            self._read_text(utterance, decoder)

    def prefill(self, grants: Sequence[Grant]) -> None:
        """Begin or continue these decoder streams, all prompts in one call, in the rows that are lent to them."""
        self._take_rows([grant.lender for grant in grants if grant.lender is not None])
        chosen = [grant.taker for grant in grants]
        for utterance in chosen:
            utterance.admitted = True
        begun = self._begin_texts([utterance for utterance in chosen if utterance.decoder is None])
        ready = []
        for utterance in chosen:
            decoder = utterance.decoder or begun.get(id(utterance))
            request = None if decoder is None else self._request(utterance, decoder)
            if decoder is not None and request is not None:
                ready.append((utterance, decoder, request))
        self._prefill(ready)
        now = self._state.clock()
        for utterance in chosen:
            utterance.update(now)

    def begin(self, chosen: Sequence[Utterance]) -> None:
        """Start one frame for each of these; for one alone that may have made a backend fail."""
        trial = next((one for one in chosen if one.suspected and one.is_suspect("talker")), None)
        self._begin(chosen if trial is None else [trial])

    def take(self) -> None:
        """Wait for the frames that were begun, if any, and give them to their streams."""
        step, self._work.step = self._work.step, None
        if step is None:
            return
        served = [utterance for utterance, _ in step.shares]
        try:
            frames = self._calls.step(self._state.talker, "decode", lambda _: step.finish(), served)
        except REQUEST_ERRORS as error:
            self._sort_out(served, error)
            return
        now, counters, loaded = self._state.clock(), self._state.counters, self._state.talker.loaded
        tried = served[0] if served[0].suspected else None
        counters.decode_calls += 1
        counters.decode_rows += len(frames)
        if loaded is not None:
            loaded.refusals = 0
        for (utterance, decoder), frame in zip(step.shares, frames, strict=True):
            if utterance.ending is not None or utterance.decoder is not decoder:  # by its audio, meanwhile
                continue
            if frame.codes is None:
                end = end_of_speech(utterance, decoder)
                utterance.ends.append(StreamEnd(len(utterance.frames), end))
                end_segment(self._state, utterance, decoder, end)
            else:
                counters.frames += 1
                self._add(utterance, decoder, frame.codes)
            utterance.update(now)
        if tried is not None:
            pass_trial(self._state.utterances, self._state.talker, tried)

    # ---- prefill

    def _take_rows(self, lenders: Sequence[Utterance]) -> None:
        """Free the rows of these streams, which go on later, from the frames they have."""
        for utterance in lenders:
            utterance.admitted, decoder = False, utterance.decoder
            if decoder is not None and decoder.handle is not None:
                self._work.to_release.append(decoder.handle)
                decoder.handle = None
            utterance.update(self._state.clock())
            self._state.counters.lent += 1
        self.release()

    def _read_text(self, utterance: Utterance, decoder: DecoderStream) -> None:
        ids = decoder.new_ids
        try:
            rows = self._calls.device("text rows", partial(self._builder.text_rows, ids)) if ids else None
        except Exception as error:  # whatever it is, it concerns this utterance alone
            utterance.end("error", error)
            return
        decoder.extend(rows, self._builder.end_row)

    def _begin_texts(self, utterances: Sequence[Utterance]) -> dict[int, DecoderStream]:
        """Decoder streams of the texts that come next, by the utterance's ``id``. Whose prompt is impossible has
        ended.
        """
        texts = [utterance.next_text for utterance in utterances]
        try:
            prompts = self._calls.device("prompts", partial(self._builder.build_all, texts))
        except Exception as error:  # whatever it is, it concerns one utterance alone
            if len(utterances) == 1:
                utterances[0].end("error", error)
                return {}
            alone = [self._begin_texts([utterance]) for utterance in utterances]
            return {key: decoder for each in alone for key, decoder in each.items()}
        return {
            id(utterance): utterance.new_stream(prompt) for utterance, prompt in zip(utterances, prompts, strict=True)
        }

    def _request(self, utterance: Utterance, decoder: DecoderStream) -> StreamRequest | None:
        """The prefill that begins or continues the decoder stream; ``None``: the stream or the utterance has ended."""
        max_positions = self._state.talker.instance.max_positions
        try:
            rows = len(decoder.prompt.embeds)
            asked = utterance.request
            most = min(asked.max_segment_frames, asked.max_frames - decoder.start)
            decoder.max_frames = frames_that_fit(rows, most, max_positions)
            if utterance.to_repeat and not self._repeat(utterance, decoder):
                return None
            ask = partial(decoder.request, self._builder)
            request = self._calls.device("prompt", ask) if decoder.frames else ask()
        except Exception as error:  # whatever it is, it concerns this utterance alone
            utterance.end("error", error)
            return None
        if decoder.frames >= decoder.max_frames:  # this backend has fewer positions than the one before
            end_segment(self._state, utterance, decoder, "limit")
            return None
        return request

    def _repeat(self, utterance: Utterance, decoder: DecoderStream) -> bool:
        """Go through what another engine said of this decoder stream. ``False``: it is over, or its text has yet to
        come.
        """
        if utterance.decoder is None:
            utterance.begin_segment(decoder)
        said = utterance.to_repeat
        while said and utterance.decoder is decoder and utterance.ending is None:
            item = said[0]
            if not isinstance(item, StreamEnd) and decoder.next_row is None:
                break
            said.popleft()
            if isinstance(item, StreamEnd):
                end_segment(self._state, utterance, decoder, item.reason)
            else:
                self._add(utterance, decoder, item)
                utterance.skip_audio()
        return utterance.decoder is decoder and utterance.ending is None and decoder.next_row is not None

    def _prefill(self, ready: Sequence[tuple[Utterance, DecoderStream, StreamRequest]]) -> None:
        if not ready:
            return
        requests = [request for _, _, request in ready]
        try:
            served = [utterance for utterance, _, _ in ready]
            handles = self._calls.step(self._state.talker, "prefill", lambda talker: talker.prefill(requests), served)
        except REQUEST_ERRORS as error:
            if len(ready) == 1:
                self._refused(ready[0][0], error)
                return
            for one in ready:  # no prompt was taken: find out whom it concerns
                self._prefill([one])
            return
        now, counters = self._state.clock(), self._state.counters
        for (utterance, decoder, _), handle in zip(ready, handles, strict=True):
            decoder.handle = handle
            serve(self._state.served, utterance.owner)
            if utterance.progress.prefilled_at is None:
                counters.begun += 1
                counters.queue_wait_s += now - utterance.progress.requested_at
                utterance.progress.prefilled_at = now
            if utterance.decoder is None:
                utterance.begin_segment(decoder)

    def _refused(self, utterance: Utterance, error: Exception) -> None:
        """The backend does not take a prompt: it has no row left, or the prompt is impossible."""
        held = self._held
        if held == 0 or not isinstance(error, CapacityError):
            self._end_refused(utterance, error)
            return
        # it holds fewer streams than it promised: remember how many, and let the stream wait for one
        logger.warning("%s backend holds only %d streams now: %s", self._state.talker.last, held, error)
        self._work.row_limit = held
        utterance.admitted = False

    @property
    def _held(self) -> int:
        """Streams in the backend."""
        return sum(other.decoder is not None and other.decoder.handle is not None for other in self._state.utterances)

    def _end_refused(self, utterance: Utterance, error: Exception) -> None:
        """End an utterance that the backend does not want, unless that is the backend's fault: where another could take
        over, it must serve something harmless, and one of a few requests.

        Raises:
            Fault: it does not.
        """
        role = self._state.talker
        loaded = role.loaded
        if loaded is not None and error is loaded.instance.own_refusal and role.has_substitute:
            if self._held == 0:
                try:
                    self._calls.step(role, "something harmless", methodcaller("smoke_test"))
                except REQUEST_ERRORS as again:
                    reason = f"it holds no stream and refuses anything: {describe_error(again)}"
                    raise Fault(role, role.last, reason) from again
            loaded.refusals += 1
            if loaded.refusals >= MOST_REFUSALS:
                reason = f"it refused {MOST_REFUSALS} requests in a row, the last one with {describe_error(error)}"
                raise Fault(role, role.last, reason, [utterance]) from error
        utterance.end("error", error)

    # ---- decode

    def _begin(self, chosen: Sequence[Utterance]) -> None:
        shares = [(utterance, utterance.decoder) for utterance in chosen if utterance.decoder is not None]
        steps, role = [_step(decoder) for _, decoder in shares], self._state.talker
        try:
            finish = self._calls.step(role, "decode", lambda talker: talker.decode(steps), chosen, ends=False)
        except REQUEST_ERRORS as error:
            self._sort_out(chosen, error)
            return
        self._work.step = StepInProgress(shares, finish)

    def _sort_out(self, chosen: Sequence[Utterance], error: Exception) -> None:
        """A step was refused and nobody advanced: find out whom it concerns. One without room waits for others."""
        if len(chosen) == 1:
            waits = isinstance(error, CapacityError) and self._held > 1
            self._take_rows(chosen)
            if not waits:
                chosen[0].admitted = True
                self._end_refused(chosen[0], error)
                chosen[0].update(self._state.clock())
            return
        for utterance in chosen:
            self._begin([utterance])
            self.take()

    def _add(self, utterance: Utterance, decoder: DecoderStream, codes: Codes) -> None:
        text_done = decoder.text_done_at(len(utterance.frames))
        utterance.frames.append(codes)
        reason = utterance.runaway.frame(codes, text_done) if utterance.runaway is not None else None
        if reason is not None:
            logger.warning("stream with seed %d runs away and is cut: %s", utterance.progress.seed, reason)
            end_segment(self._state, utterance, decoder, "runaway")
        elif len(utterance.frames) >= utterance.request.max_frames:
            utterance.end("max_frames")
        elif decoder.frames >= decoder.max_frames:
            end_segment(self._state, utterance, decoder, "limit")


def _step(decoder: DecoderStream) -> DecodeStep:
    row = decoder.next_row
    assert decoder.handle is not None, "only decodable utterances are chosen"
    assert row is not None, "as above"
    return DecodeStep(decoder.handle, row)
