"""Odd texts at every face of the engine: each one must be spoken in full; a text without a letter may be refused.

Texts are drawn from all of Unicode, and given whole and in pieces that may cut a character in half. The backend says
one frame for each token, so that what it read is what it said. For each text the letters of the segments said are
compared with those of the clean text, and where a face reports words as spoken, with those of its words. Exits with 1
if a letter is missing, or if a face fails in any way but a clear refusal.
"""

import argparse
import random
import sys
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import megatalker.plugins
from megatalker import Checkpoint, Engine, Settings
from megatalker.engine import SpeechStream
from megatalker.engine.speech.text_segmenter import TextSegmenter
from megatalker.errors import MegatalkerError, UnsupportedError
from megatalker.interfaces import CodecBackend, DecodeStep, Frame, StreamHandle, StreamRequest, TalkerBackend
from megatalker.plugins import BackendRegistry
from megatalker.prompt.cleaning import clean
from megatalker.prompt.control_tokens import ControlTokens, control_tokens
from megatalker.testing.random_checkpoint import TINY, write_checkpoint
from megatalker_benchmarks.engine_host import CODEC, TALKER, IdleCodec, IdleTalker
from megatalker_benchmarks.fuzz_faces import FACES, Face, SpeakText, load_face
from megatalker_benchmarks.report import add_json_option, hand_out, whole

FRAMES = 20
"""Frames of each decoder stream: some segments end before all of their text was read."""
SILENCE_SAMPLES = 480
"""Faces that must answer with audio say this much, 20 ms, where there is nothing to say."""
GOOD = ("spoken", "nothing to say", "refused")
"""Outcomes of a text that are right; only a text without a letter or digit may be refused."""
SHOWN = 10
"""At most this many failures of a face are told in full."""
BLOCK = 128
"""Characters of a block, of which a text has some runs: scripts stand in blocks."""
MARKERS = ("<|im_end|>", "<tts_pad>", "<|im", "\x1b[1m", "\x1b]0;", "\ud83d", "\ude00", "\r\n\r\n", "\n\n", "Hello. ")


class EndingTalker(IdleTalker):
    """Ends each stream after :data:`FRAMES` frames."""

    def __init__(self, groups: int) -> None:
        super().__init__(groups, paced=False)
        self._said: Counter[StreamHandle] = Counter()

    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        handles = super().prefill(requests)
        self._said.update(dict.fromkeys(handles, 0))
        return handles

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> list[Frame]:  # type: ignore[override]
        assert not return_logits
        self._said.update(step.stream for step in steps)
        return [Frame(step.stream, None if self._said[step.stream] > FRAMES else self._frames[0]) for step in steps]

    def release(self, stream: StreamHandle) -> None:
        del self._said[stream]


class _StandIns:
    @megatalker.plugins.hookimpl
    def megatalker_backends(self) -> list[TalkerBackend | CodecBackend]:
        common: dict[str, Any] = {"name": "ending", "summary": "computes nothing", "api_version": 2}
        talker = TalkerBackend(
            **common, capabilities=TALKER, load=lambda checkpoint, _: EndingTalker(checkpoint.config.num_code_groups)
        )
        return [talker, CodecBackend(**common, capabilities=CODEC, load=lambda *_: IdleCodec())]


class SpokenSegments:
    """Text that the streams of engines have read. Each engine speaks one text after another."""

    def __init__(self) -> None:
        self._texts: dict[TextSegmenter, str] = {}
        """A segment may end before its engine has returned the stream."""
        self._segmenters: dict[Engine, list[TextSegmenter]] = {}

    def take(self, engine: Engine) -> str:
        """Return what the engine said since the last call, a segment a line."""
        return "\n".join(self._texts.get(segmenter, "") for segmenter in self._segmenters.pop(engine, ()))

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record within this context."""
        speak_for, end = Engine.speak_for, TextSegmenter.end

        def speak_and_record(engine: Engine, *arguments: Any, **changes: Any) -> SpeechStream:
            stream = speak_for(engine, *arguments, **changes)
            self._segmenters.setdefault(engine, []).append(stream._link.utterance.text)
            return stream

        def end_and_record(segmenter: TextSegmenter, ids_fed: int, said_chars: int | None = None) -> None:
            current = segmenter._current
            assert current is not None
            read = segmenter._tokenizer.decode(current.ids[:ids_fed], skip_special_tokens=False)
            self._texts[segmenter] = self._texts.get(segmenter, "") + read.rstrip("\ufffd") + "\n"
            end(segmenter, ids_fed, said_chars)

        with (
            mock.patch.object(Engine, "speak_for", speak_and_record),
            mock.patch.object(TextSegmenter, "end", end_and_record),
        ):
            yield


def draw(chance: random.Random) -> str:
    """A text of runs, each from one block of Unicode; some runs are what rules about text look for."""
    runs = []
    for _ in range(chance.randint(1, 6)):
        if chance.random() < 0.3:
            runs.append(chance.choice(MARKERS))
            continue
        block = chance.choice((chance.randrange(0x110000 // BLOCK), chance.randrange(0x3000 // BLOCK)))
        runs.append("".join(chr(block * BLOCK + chance.randrange(BLOCK)) for _ in range(chance.randint(1, 20))))
        runs.append(chance.choice(("", " ", ". ", "\n")))
    return "".join(runs)


def cut(text: str, chance: random.Random) -> list[str]:
    """Pieces of the text, cut between UTF-16 units, also within a character."""
    units = text.encode("utf-16-le", "surrogatepass")
    most = chance.choice((1, 3, 20))
    pieces, place = [], 0
    while place < len(units):
        end = place + 2 * chance.randint(1, most)
        pieces.append(_decode_units(units[place:end]))
        place = end
    return pieces


def _decode_units(units: bytes) -> str:
    return "".join(chr(int.from_bytes(units[place : place + 2], "little")) for place in range(0, len(units), 2))


def letters(text: str) -> str:
    """Letters and digits, composed."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFC", text)))


def _joined(text: str) -> str:
    """Halves that stand next to each other are one character, however the text was drawn."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


@dataclass
class _Lane:
    """A face on an engine of its own."""

    face: Face
    engine: Engine
    said: SpokenSegments

    def run(self, texts: int, seed: int) -> dict[str, Any]:
        """Speak ``texts`` texts, every other one in pieces; counts by outcome, and the first few failures."""
        chance = random.Random(seed)
        self._tokens = ControlTokens(control_tokens(self.engine.checkpoint.tokenizer))
        counts, failures = Counter(dict.fromkeys(GOOD, 0)), []
        with self.face(self.engine) as speak:
            for index in range(texts):
                text = _joined(draw(chance))
                pieces = cut(text, chance) if index % 2 else None
                outcome = self._outcome(speak, text, pieces)
                counts[outcome if outcome in GOOD else "failed"] += 1
                if outcome not in GOOD:
                    failures.append({"text": ascii(text), "in_pieces": pieces is not None, "outcome": outcome})
        named = {outcome.replace(" ", "_"): counts[outcome] for outcome in (*GOOD, "failed")}
        return {"texts": texts, **named, "failures": failures[:SHOWN]}

    def _outcome(self, speak: SpeakText, text: str, pieces: list[str] | None) -> str:
        """Speak one text and return an outcome of :data:`GOOD`, or the failure in words."""
        self.said.take(self.engine)
        meant = self._letters([text])
        try:
            speech = speak(text, pieces)
        except MegatalkerError as error:
            return f"refused {meant!r}: {error}" if meant else "refused"
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        if speech.texts is not None:
            if letters("".join(speech.texts)) != letters(text):
                return f"given {speech.texts!r}"
            meant = self._letters(speech.texts)
        spoken = letters(self.said.take(self.engine))
        if speech.finish_reason != "eos":
            return f"ended {speech.finish_reason}"
        if spoken != meant:
            return f"said {spoken!r} for {meant!r}"
        if (speech.samples > SILENCE_SAMPLES) != bool(meant):
            return f"{speech.samples} samples for {meant!r}"
        words = speech.words
        if words is not None and meant not in (self._letters(words), self._letters(["".join(words)])):
            return f"reported {words!r} for {meant!r}"
        return "spoken" if meant else "nothing to say"

    def _letters(self, texts: Sequence[str]) -> str:
        """Letters that are spoken of these texts."""
        return letters("\n".join(clean(text, self._tokens) for text in texts))


def fuzz(names: Sequence[str], texts: int, seed: int) -> dict[str, Any]:
    """Divide ``texts`` texts among the faces, which speak at the same time; figures by face.

    Faces whose packages are missing are left out.
    """
    faces: dict[str, Face] = {}
    skipped: dict[str, str] = {}
    for name in names:
        try:
            faces[name] = load_face(name)
        except UnsupportedError as error:
            skipped[name] = str(error)
            sys.stderr.write(f"skipped {name}: {error}\n")
    said = SpokenSegments()
    with ExitStack() as stack:
        lanes = [_Lane(face, stack.enter_context(open_engine()), said) for face in faces.values()]
        stack.enter_context(said.recorded())
        pool = stack.enter_context(ThreadPoolExecutor(max(1, len(lanes))))
        shares = [(texts + number) // len(lanes) for number in range(len(lanes))]
        runs = pool.map(_Lane.run, lanes, shares, range(seed, seed + len(lanes)))
        found = dict(zip(faces, runs, strict=True))
    totals = {key: sum(face[key] for face in found.values()) for key in ("texts", "failed")}
    return {"seed": seed, **totals, "faces": found, "skipped": skipped}


@contextmanager
def open_engine() -> Iterator[Engine]:
    """An engine on a tiny checkpoint and backends that compute nothing."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Checkpoint.open(write_checkpoint(Path(folder) / "tiny", TINY))
        settings = Settings(max_segment_chars=30, runaway_guard=False, short_speech="believe")
        with Engine.open(settings, checkpoint=checkpoint, registry=BackendRegistry([("fuzz", _StandIns())])) as engine:
            yield engine


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--face", choices=list(FACES), action="append", help="only this one; may be repeated")
    parser.add_argument("--texts", type=whole(), default=10_000, help="of all faces together")
    parser.add_argument("--seed", type=whole(0), default=1)
    add_json_option(parser)
    options = parser.parse_args()
    with suppress(ImportError):
        from loguru import logger

        logger.disable("pipecat")
    figures = fuzz(options.face or list(FACES), options.texts, options.seed)
    hand_out(figures, options.json)
    sys.exit(figures["failed"] > 0 or not figures["faces"])


if __name__ == "__main__":
    main()
