"""One utterance while it is made; owned by the worker, and the consumer's stream reads :class:`Progress` only."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from megatalker.checkpoint.config import FRAME_SAMPLES, FRAME_SECONDS, SAMPLE_RATE
from megatalker.engine.decoder_stream import CodecReplay, Codes, DecoderStream
from megatalker.engine.runaway import RunawayDetector
from megatalker.engine.scheduler import Stream, StreamStatus
from megatalker.engine.speech.chunks import ChunkPolicy, ChunkQueue, Progress, hold_until
from megatalker.engine.speech.joints import Joint
from megatalker.engine.speech.options import stream_seed
from megatalker.engine.speech.outputs import Continuation, FinishReason, StreamEnd
from megatalker.engine.speech.request import Request
from megatalker.engine.speech.speech_rate import spoken_chars
from megatalker.engine.speech.text_segmenter import IncomingText, TextSegmenter
from megatalker.engine.speech.word_times import BegunSegment
from megatalker.interfaces import CodecState
from megatalker.plugins.registry import Kind
from megatalker.prompt import Prompt, PromptText
from megatalker.prompt.markup.prosody import PLAIN, Prosody
from megatalker.settings import ShortSpeech
from megatalker.voices import Voice

WAITING, RUNNING, STARVED, FULL, ENDED = StreamStatus
REST_S = 0.3  # tuned, not measured
"""A stream without work for this long lends its row: words of one sentence come faster."""
RESUME_SHARE = 0.5  # not tuned: half way between full and empty
"""A stream that lent its row because nobody took its audio wants it back when this share of it is left."""


@dataclass(slots=True, eq=False)
class Utterance(Stream):
    """The state of one utterance. Its frames are one log with three cursors: decoded (the log's length), given to the
    codec, delivered to the consumer.
    """

    request: Request
    text: TextSegmenter
    progress: Progress
    chunks: ChunkQueue
    chunking: ChunkPolicy
    runaway: RunawayDetector | None
    short_speech: ShortSpeech = "repeat"
    """The setting of that name: whether speech that is too short for its text is repeated or believed."""
    incoming: IncomingText = field(default_factory=IncomingText)
    """Text that was fed and is not in ``text`` yet."""
    paused_before_s: float = 0.0
    """How long the process had been stopped when it was asked for: what is added meanwhile is no waiting."""
    idle_since: float | None = None
    """Since when it has had no work: no text to speak, or audio enough that nobody takes."""
    decoder: DecoderStream | None = None
    frames: list[Codes] = field(default_factory=list)
    given: int = 0
    """Frames the codec was given: those beyond ``delivered`` are on their way as audio."""
    codec_state: CodecState | None = None
    """Stands after the frames given; ``None`` before the first, and when it was lost."""
    joints: deque[Joint] = field(default_factory=deque)
    """Joints between frames that exist, which were not handed out. No audio goes beyond the first of them."""
    silence: int = 0
    """Samples of all joints so far."""
    silence_before: int = 0
    """Samples of all joints before the segment that began last."""
    silence_known: int = 0
    """Samples of joints that another engine has handed out, and this one has not gone through."""
    marks_known: int = 0
    """Marks, likewise."""
    voice: str = ""
    """Name of the voice that the talker speaks with, where the text names it."""
    voice_streams: int = 0
    """Decoder streams since that voice began: seeds follow from it, so that they do not depend on what others say."""
    codec_voice_name: str = ""
    """The voice of the frames that the codec is given next."""
    codec_from: int = 0
    """Frames before the first with that voice."""
    prosody: Prosody = PLAIN
    """The prosody of the next chunk, for its consumer."""
    edge: float | None = None
    """The sample before the next chunk, where a joint lies between."""
    last_sample: float = 0.0
    """The last one that was handed out."""
    replay: CodecReplay | None = None
    """The replay that becomes its codec state, while that is ``None``."""
    to_repeat: deque[Codes | StreamEnd] = field(default_factory=deque)
    """Frames and ends that another engine made, and this one has not gone through."""
    distrusted: bool = False
    """An engine process died in a call for it."""
    unwatched: bool = False
    """Its audio was made by another engine: ``runaway`` has not heard it."""
    ends: list[StreamEnd] = field(default_factory=list)
    """Decoder streams that ended, and that no chunk has told of."""
    suspected: set[tuple[Kind, str]] = field(default_factory=set)
    """The backends that failed in a call for it; see :mod:`megatalker.engine.failover`."""
    flaw: FinishReason | None = None
    """How it will end since a segment did not say all of its text; ``None`` while nothing is missing."""
    ending: FinishReason | None = None
    """Nothing more will be decoded: hand out what is pending, then end like this."""
    error: Exception | None = None

    @property
    def delivered(self) -> int:
        """Frames handed out as audio."""
        return self.progress.frames

    @property
    def pending(self) -> int:
        """Frames decoded and not handed out."""
        return len(self.frames) - self.progress.frames

    @property
    def ready(self) -> int:
        """Frames that the codec may have been given."""
        return min(len(self.frames), self.joints[0].frame) if self.joints else len(self.frames)

    @property
    def codec_voice(self) -> Voice:
        """The voice of the frames that the codec is given next."""
        return self.request.plan_of(self.codec_voice_name).voice

    @property
    def begun(self) -> bool:
        """Its speech has begun, here or in another engine."""
        return bool(self.progress.segments or self.to_repeat)

    def is_suspect(self, kind: Kind) -> bool:
        """It goes alone in the calls of this role: one of them has failed."""
        return any(role == kind for role, _ in self.suspected)

    @property
    def ends_well(self) -> bool:
        """Nothing more will be decoded, and nothing went wrong."""
        return self.ending is not None and self.ending != "error"

    @property
    def prompt_rows(self) -> int:
        """Rows of the prefill that it needs."""
        decoder = self.decoder
        if decoder is None:
            upcoming = self.text.upcoming
            return self.request.plan_of(upcoming.voice).prefill_rows(len(upcoming.ids))
        return len(decoder.prompt.embeds) + decoder.frames

    @property
    def lends_at(self) -> float:
        """When its row may be lent; infinite while it has work, and when it is over."""
        return math.inf if self.idle_since is None or self.ending is not None else self.idle_since + REST_S

    def frames_left(self, frames_a_character: float) -> float:
        """Return about how many frames the text that has come still takes, at least one."""
        frames = min(self.text.characters * frames_a_character, self.request.max_frames)
        return max(1.0, frames - len(self.frames))

    def left_s(self, frames_a_character: float) -> float:
        """Return about how many seconds of speech are still to be made; infinite while text may come."""
        return self.frames_left(frames_a_character) * FRAME_SECONDS if self.text.finished else math.inf

    def in_hand_s(self, now: float) -> float:
        """Audio that its consumer has yet to play, or even to take."""
        return max(self.progress.playback.ahead(now), self.chunks.untaken_s)

    @property
    def decoding(self) -> bool:
        """Its row holds a decoder stream that goes on."""
        return self.ending is None and self.decoder is not None and self.decoder.handle is not None

    def go_on_after(self, said: Continuation, now: float) -> None:
        """Another engine has said this much: nothing of it is decoded or handed out again."""
        frames: list[Codes] = list(map(tuple, said.codes.tolist()))
        ends = deque(said.ends)
        for number in range(len(frames) + 1):
            while ends and ends[0].frame <= number:
                self.to_repeat.append(ends.popleft())
            self.to_repeat += frames[number : number + 1]
        self.unwatched = True
        self.silence_known, self.marks_known, self.progress.silence = said.silence, said.marks, said.silence
        self.progress.playback.dry_at = now + said.ahead_s

    def watch_audio(self, levels: Sequence[float], first: int) -> str | None:
        """Return why the utterance should be cut, after audio with these levels, which begins with frame ``first``."""
        if self.runaway is None:
            return None
        return self.runaway.audio(levels, self.decoder is not None and self.decoder.text_done_at(first))

    def skip_audio(self) -> None:
        """The consumer has all frames that there are."""
        self.given = self.progress.frames = len(self.frames)

    def take_ends(self) -> tuple[StreamEnd, ...]:
        """Decoder streams that ended before the last frame given to the codec, each once."""
        told = tuple(end for end in self.ends if end.frame < self.given)
        del self.ends[: len(told)]
        return told

    def update(self, now: float) -> None:
        """Bring what the scheduler sees up to date: call this after anything about the utterance has changed.

        While it waits for its caller's text or for its consumer, its playback may run dry, and no audio is kept back.
        Hundreds of streams are updated for each frame, so that nothing is computed twice.
        """
        decoder, progress, given, made = self.decoder, self.progress, self.given, len(self.frames)
        coming_s, dry_at = (given - progress.frames) * FRAME_SECONDS, progress.playback.dry_at
        deadline = self.deadline = -math.inf if dry_at is None else dry_at + coming_s
        self.ungiven = fresh = 0 if self.codec_state is None else self.ready - given
        self.chunk_frames, self.decode_at = 1, math.inf
        self.status = status = self._find_status(decoder, made, coming_s)
        if status is RUNNING:
            self.idle_since, target = None, self.chunking.target
            self.chunk_frames = target
            if self.joints:
                self._wait_for_joints(deadline)
            elif fresh or (made != given and made - given < target):
                self.decode_at = -math.inf
            elif made == given:
                limit = self.request.max_ahead_s
                idle = limit is None or dry_at is None
                self.decode_at = -math.inf if idle else hold_until(deadline, limit or 0.0, target)
        elif status is WAITING:
            self.idle_since = None
        elif status is not ENDED:
            progress.playback.excuse()
            if status is STARVED:
                self.chunking.target = 1
            if self.idle_since is None:
                self.idle_since = now

    def _wait_for_joints(self, deadline: float) -> None:
        """No frame joins those before a joint, so that they become audio now; its silence is audio in hand, too."""
        sealed, limit = self.ready - self.given, self.request.max_ahead_s
        self.chunk_frames, self.decode_at = max(1, sealed), -math.inf
        if limit is not None and self.progress.playback.dry_at is not None:
            silence_s = sum(joint.silence for joint in self.joints) / SAMPLE_RATE
            deadline += sealed * FRAME_SECONDS + silence_s
            self.decode_at = hold_until(deadline, limit, self.chunking.target)

    def _find_status(self, decoder: DecoderStream | None, made: int, coming_s: float) -> StreamStatus:
        if self.ending is not None:
            return ENDED
        if decoder is None:
            if not self.text.can_begin:
                return STARVED
        elif not decoder.complete and decoder.start + len(decoder.rows) <= made:
            return STARVED
        elif decoder.handle is not None:
            return FULL if made == self.given and self.chunks.is_full(coming_s) else RUNNING
        return FULL if not self.admitted and self.chunks.is_full(share=RESUME_SHARE) else WAITING

    @property
    def next_text(self) -> PromptText:
        """The text that comes next, for its prompt."""
        segment = self.text.upcoming
        return PromptText(segment.ids, self.request.plan_of(segment.voice), segment.complete)

    def new_stream(self, prompt: Prompt) -> DecoderStream:
        """The decoder stream of the text that comes next, which begins with this prompt."""
        segment, sampling = self.text.upcoming, self.request.sampling
        seed = stream_seed(sampling.seed, self.voice_streams if segment.voice == self.voice else 0)
        if seed != sampling.seed:  # all parameters are checked again then
            sampling = replace(sampling, seed=seed)
        return DecoderStream.of(segment, len(segment.ids), prompt, sampling, self.frames)

    def end(self, reason: FinishReason, error: Exception | None = None) -> None:
        """Decode nothing more; the first call decides. Text that is left counts as unsaid, unless nobody listens."""
        if self.ending is not None:
            return
        self.ending, self.error = reason, error
        self.status, self.decode_at, self.chunk_frames = ENDED, math.inf, 1
        if reason in ("max_frames", "error"):
            self.progress.unsaid_chars += self._chars_left
        self.drop_incoming()

    def drop_incoming(self) -> None:
        """Speech is over: text that was fed and not read counts as unsaid, unless nobody listens."""
        if self.ending != "cancelled":
            self.progress.unsaid_chars += self.incoming.chars
        self.incoming.pieces.clear()

    def begin_segment(self, decoder: DecoderStream) -> None:
        """This decoder stream speaks the text that comes next."""
        voice, begins_s = decoder.segment.voice, (len(self.frames) * FRAME_SAMPLES + self.silence) / SAMPLE_RATE
        pause_s, self.silence_before = (self.silence - self.silence_before) / SAMPLE_RATE, self.silence
        self.progress.begun.append(BegunSegment(self.text.letters_said, decoder.segment, begins_s, pause_s=pause_s))
        self.text.begin()
        self.decoder = decoder
        if not self.progress.segments:
            self.voice = self.codec_voice_name = voice
        elif voice != self.voice:
            self.voice, self.voice_streams = voice, 0
            self.joints.append(Joint(frame=len(self.frames), voice=voice))
        self.progress.segments += 1
        self.voice_streams += 1

    def take_joint(self) -> None:
        """Let what markup asks for now be handed out, once all audio before it was."""
        joint = self.text.take_joint()
        if joint is None:
            return
        known, marks_known = min(self.silence_known, joint.silence), min(self.marks_known, len(joint.marks))
        self.silence_known -= known
        self.marks_known -= marks_known
        self.silence += joint.silence
        left = joint.without(known, marks_known)
        if self.to_repeat:  # the consumer knows of it
            self.prosody, left = left.prosody or self.prosody, replace(left, prosody=None)
        if left.has_chunk:
            self.joints.append(replace(left, frame=len(self.frames)))

    def change_codec_voice(self, joint: Joint) -> None:
        """The audio before this joint has been handed out, and another voice follows."""
        self.codec_voice_name, self.codec_from = joint.voice or "", joint.frame
        self.edge = self.last_sample
        self.lose_codec()

    def end_if_said(self) -> None:
        """End where all text has been spoken and none will come."""
        self.take_joint()
        if self.decoder is None and self.text.exhausted:
            self.end(self.flaw or "eos")

    def leave_unsaid(self, chars: int, flaw: FinishReason) -> None:
        """A segment is over and left this many characters out. Missing text outweighs a segment that ran away."""
        self.progress.unsaid_chars += chars
        if self.flaw is None or flaw == "incomplete":
            self.flaw = flaw

    @property
    def _chars_left(self) -> int:
        """Characters that are not spoken where it ends now; those of the current segment are estimated."""
        left, decoder = self.text.chars_coming, self.decoder
        if decoder is not None:
            read, follows = decoder.segment.read(decoder.ids_fed)
            left += len(read) - spoken_chars(read, decoder.frames) + len(follows)
        return left

    def fail(self, error: Exception) -> None:
        """Hand out nothing more. Speech that was made and not handed out is missing, however well its text ended."""
        if self.ends_well and self.ending != "cancelled" and (self.pending or self.joints):
            self.ending, self.error = "error", error
        self.end("error", error)
        self.drop_pending()

    def drop_pending(self) -> None:
        """Nobody wants to hear the frames that were not handed out."""
        del self.frames[self.delivered :]
        self.joints.clear()
        self.given, self.ungiven = self.delivered, 0

    def rewind_codec(self) -> None:
        """The audio on its way is lost: the codec is given its frames once more, in a state before them."""
        if self.given > self.delivered:
            self.lose_codec()

    def lose_codec(self) -> None:
        """Its codec state is of no use any more."""
        self.given, self.codec_state, self.replay = self.delivered, None, None

    def forget(self) -> None:
        """Drop everything heavy; the progress stays for the consumer."""
        self.decoder, self.codec_state, self.replay = None, None, None
        self.frames, self.given = [], 0
