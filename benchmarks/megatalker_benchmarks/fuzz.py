"""Odd texts through an engine: each one must be spoken in full, or refused with a clear error.

Texts are drawn from all of Unicode, and given whole and in pieces that may cut a character in half. The backend says
one frame for each token, so that what it read is what it said. For each text the letters of the segments said are
compared with those of the clean text. Exits with 1 if a letter is missing, or anything but a ``MegatalkerError`` comes.
"""

import argparse
import random
import sys
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import megatalker.plugins
from megatalker import Checkpoint, Engine, Settings
from megatalker.engine.text_segmenter import TextSegmenter
from megatalker.errors import MegatalkerError
from megatalker.interfaces import CodecBackend, DecodeStep, Frame, StreamHandle, StreamRequest, TalkerBackend
from megatalker.plugins import BackendRegistry
from megatalker.prompt.cleaning import clean
from megatalker.prompt.control_tokens import ControlTokens, control_tokens
from megatalker.testing.random_checkpoint import TINY, write_checkpoint
from megatalker_benchmarks.engine_host import CODEC, TALKER, IdleCodec, IdleTalker
from megatalker_benchmarks.report import add_json_option, hand_out, whole

FRAMES = 40
"""Frames of each decoder stream: some segments end before all of their text was read."""
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
        frames = super().decode(steps, return_logits=return_logits)()
        self._said.update(step.stream for step in steps)
        return [Frame(one.stream, None if self._said[one.stream] > FRAMES else one.codes) for one in frames]

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


@dataclass
class _Said:
    """Text that decoder streams have read, by the segmenter of the utterance."""

    texts: dict[TextSegmenter, str] = field(default_factory=dict)


@contextmanager
def _recorded() -> Iterator[_Said]:
    said = _Said()
    end = TextSegmenter.end

    def recorded(segmenter: TextSegmenter, ids_fed: int, said_chars: int | None = None) -> None:
        current = segmenter._current
        assert current is not None
        read = segmenter._tokenizer.decode(current.ids[:ids_fed], skip_special_tokens=False)
        said.texts[segmenter] = said.texts.get(segmenter, "") + read.rstrip("\ufffd") + "\n"
        end(segmenter, ids_fed, said_chars)

    with mock.patch.object(TextSegmenter, "end", recorded):
        yield said


def draw(chance: random.Random) -> str:
    """A text of runs, each from one block of Unicode; some runs are what rules about text look for."""
    runs = []
    for _ in range(chance.randint(1, 8)):
        if chance.random() < 0.3:
            runs.append(chance.choice(MARKERS))
            continue
        block = chance.choice((chance.randrange(0x110000 // BLOCK), chance.randrange(0x3000 // BLOCK)))
        runs.append("".join(chr(block * BLOCK + chance.randrange(BLOCK)) for _ in range(chance.randint(1, 40))))
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


def _speak(engine: Engine, said: _Said, tokens: ControlTokens, text: str, pieces: list[str] | None) -> str:
    """Speak one text and return its outcome: ``spoken``, ``nothing to say``, ``refused``, or the failure in words."""
    try:
        stream = engine.speak(text if pieces is None else None)
        for piece in pieces or ():
            stream.feed(piece)
        if pieces is not None:
            stream.finish()
        samples = stream.read_all().size
    except MegatalkerError:
        return "refused"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    meant, heard = letters(clean(text, tokens)), letters(said.texts.pop(stream._utterance.text, ""))
    if stream.finish_reason != "eos":
        return f"ended {stream.finish_reason}"
    if heard != meant:
        return f"said {heard!r} for {meant!r}"
    if bool(samples) != bool(meant):
        return f"{samples} samples for {meant!r}"
    return "spoken" if meant else "nothing to say"


def fuzz(engine: Engine, texts: int, seed: int, threads: int = 8) -> dict[str, Any]:
    """Speak ``texts`` texts, every other one in pieces; counts by outcome, and the first few failures."""
    chance, tokens = random.Random(seed), ControlTokens(control_tokens(engine.checkpoint.tokenizer))
    drawn = [_joined(draw(chance)) for _ in range(texts)]
    plans = [(text, cut(text, chance) if index % 2 else None) for index, text in enumerate(drawn)]
    with _recorded() as said, ThreadPoolExecutor(threads) as pool:
        outcomes = list(pool.map(lambda plan: _speak(engine, said, tokens, *plan), plans))
    good = ("spoken", "nothing to say", "refused")
    failures = [
        {"text": ascii(text), "in_pieces": pieces is not None, "outcome": outcome}
        for (text, pieces), outcome in zip(plans, outcomes, strict=True)
        if outcome not in good
    ]
    counts = {outcome.replace(" ", "_"): outcomes.count(outcome) for outcome in good}
    return {"texts": texts, "seed": seed, **counts, "failed": len(failures), "failures": failures[:20]}


@contextmanager
def open_engine() -> Iterator[Engine]:
    """An engine on a tiny checkpoint and backends that compute nothing."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Checkpoint.open(write_checkpoint(Path(folder) / "tiny", TINY))
        settings = Settings(
            max_streams=8, max_waiting=64, max_segment_chars=60, runaway_guard=False, short_speech="believe"
        )
        with Engine.open(settings, checkpoint=checkpoint, registry=BackendRegistry([("fuzz", _StandIns())])) as engine:
            yield engine


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=whole(), default=10_000)
    parser.add_argument("--seed", type=whole(0), default=1)
    add_json_option(parser)
    options = parser.parse_args()
    with open_engine() as engine:
        figures = fuzz(engine, options.texts, options.seed)
    hand_out(figures, options.json)
    sys.exit(figures["failed"] > 0)


if __name__ == "__main__":
    main()
