"""Text that is fed: what is read in a tick, what becomes of odd pieces, and where segments end."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from engine_stage import EngineClock, Opener, codes_of, fakes_with
from fake_backend import Fakes
from launches import Launches, hear
from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.template import text_ids
from megatalker.engine import Engine, dispatcher
from megatalker.engine.costs import Cost
from megatalker.engine.incoming_text import LEAST_SHARE, TICK_CHARS, read_incoming
from megatalker.engine.speech.text_segmenter import IncomingText, TextSegmenter
from megatalker.engine.utterance import Utterance
from megatalker.errors import InvalidRequestError
from megatalker.interfaces import StreamRequest
from megatalker.prompt.cleaning import clean
from megatalker.prompt.control_tokens import ControlTokens, control_tokens
from megatalker.prompt.text import TextChecker
from spoken_text import SpokenText

PARAGRAPHS = "Good morning.\n\nHow are you?\n\nGood night."
HALVES = ("I am happy \ud83d", "\ude00 to see you.")
JOINED = "I am happy \U0001f600 to see you."
SEED = 7

# ---- how much is read in a tick


@dataclass(eq=False)
class Reader:
    """The part of an utterance that the reading of text needs."""

    text: TextSegmenter
    incoming: IncomingText = field(default_factory=IncomingText)
    progress: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(segments=0, requested_at=0.0))
    ending: str | None = None
    decoder: None = None

    def end(self, reason: str, error: Exception | None = None) -> None:
        self.ending = reason

    def take_joint(self) -> None:
        pass

    def receive(self, *pieces: str) -> "Reader":
        self.incoming.pieces.extend((piece, float(index)) for index, piece in enumerate(pieces))
        self.incoming.complete = True
        return self


@pytest.fixture
def reader(tiny_custom_voice: Checkpoint) -> Callable[[], Reader]:
    return lambda: Reader(TextSegmenter(tiny_custom_voice.tokenizer, 400, clean=True))


def read(unread: dict[Any, None]) -> int:
    """One tick; returns the characters read in it."""
    before = [(reader, reader.text.characters) for reader in unread]
    read_incoming(unread)
    return sum(reader.text.characters - characters for reader, characters in before)


@pytest.mark.parametrize("pieces", [["Hello." + "." * 19_900], list("." * 1_500), ["word " * 4, *"ab" * 3_000]])
def test_a_tick_reads_a_bounded_number_of_characters(
    reader: Callable[[], Reader], pieces: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = reader().receive(*pieces)
    unread: dict[Any, None] = {one: None}
    ticks, fed = [], list[str]()
    feed = one.text.feed
    monkeypatch.setattr(one.text, "feed", lambda text: (fed.append(text), feed(text)))
    while unread:
        ticks.append(read(unread))
    assert max(ticks) <= TICK_CHARS
    assert len(fed) == len(ticks), "pieces are cut and tokenised together, however small they are"
    assert "".join(fed) == "".join(pieces)
    assert sum(ticks) == one.text.characters == sum(map(len, pieces))
    assert len(ticks) <= sum(ticks) // TICK_CHARS + 1


@pytest.mark.parametrize("count", [2, 5, 40])
def test_utterances_are_read_by_turns(reader: Callable[[], Reader], count: int) -> None:
    long = [reader().receive("x" * 20_000) for _ in range(count)]
    short = reader().receive("Hello there.")
    unread: dict[Any, None] = dict.fromkeys([*long, short])
    share = max(LEAST_SHARE, TICK_CHARS // (count + 1))
    for _ in range((count + 1) * share // TICK_CHARS + 1):
        assert read(unread) <= TICK_CHARS
    assert short.incoming.end_read
    assert len({one.text.characters for one in long}) <= 2, "nobody was read twice before all were read once"


def test_the_worker_reads_bounded_text_between_steps(open_engine: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = [0]
    feed = TextSegmenter.feed

    def counted(segmenter: TextSegmenter, text: str) -> None:
        ticks[-1] += len(text)
        feed(segmenter, text)

    def tick(unread: dict[Any, None]) -> list[Any]:
        ticks.append(0)
        return read_incoming(unread)

    monkeypatch.setattr(TextSegmenter, "feed", counted)
    monkeypatch.setattr("megatalker.engine.dispatcher.read_incoming", tick)
    engine = open_engine(fakes_with(frames=3))
    streams = [engine.speak(None) for _ in range(3)]
    streams[0].feed("Hello." + "." * 19_900)
    for _ in range(1_500):
        streams[1].feed(".")
    streams[2].feed("Hello there.")
    for stream in streams:
        stream.finish()
    assert [bool(stream.read_all().size) for stream in streams] == [True, False, True]
    assert max(ticks) <= TICK_CHARS
    assert sum(ticks) == 19_906 + 1_500 + 12


def test_the_time_in_which_text_is_read_is_not_taken_for_that_of_a_launch(
    open_engine: Opener, launches: Launches, engine_clock: EngineClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise who sends much text would make the engine seem full, and others would wait for their first chunk."""
    observed: list[float] = []
    reading = dispatcher.read_incoming

    def read(unread: dict[Utterance, None]) -> Sequence[Utterance]:
        engine_clock.passed_s += 0.25
        return reading(unread)

    monkeypatch.setattr(Cost, "observe", lambda *arguments, **_: observed.append(arguments[2]))
    monkeypatch.setattr(dispatcher, "read_incoming", read)
    engine = open_engine(max_chunk_frames=1)
    writing = engine.speak(None, layout="interleaved", max_frames=40)
    launches.on_launch = lambda _: (
        writing.feed("One more sentence. ") if len(launches.events) < 12 else writing.finish()
    )
    writing.feed("A sentence. ")
    hear(writing)
    assert len(observed) > 12
    assert max(observed) < 0.25


# ---- odd pieces


@pytest.fixture
def spoken(monkeypatch: pytest.MonkeyPatch) -> SpokenText:
    return SpokenText(monkeypatch)


def speak(engine: Engine, *pieces: str) -> None:
    stream = engine.speak(None)
    for piece in pieces:
        stream.feed(piece)
    stream.finish()
    assert stream.read_all().size
    assert stream.finish_reason == "eos"


@pytest.mark.parametrize(
    ("pieces", "meant"),
    [
        (HALVES, JOINED),
        (("I am \ud83d happy", " to see", " you. \ude00"), "I am happy to see you."),
        (("Hello \x1b[1", ";31mred", "\x1b[0m world.", "\x1b["), "Hello red world."),
        (("Hello <|im", "_end|>", " world. <tts_", "pad>"), "Hello world."),
        (("\ufeff", "Hel\u200b", "\u200blo\0world", "."), "Hello world."),
        (("\U0001d573\U0001d586", "\U0001d591\U0001d591\U0001d594 Welt."), "Hallo Welt."),
    ],
)
def test_an_odd_piece_costs_no_word(
    open_engine: Opener, spoken: SpokenText, pieces: tuple[str, ...], meant: str
) -> None:
    engine = open_engine()
    speak(engine, *pieces)
    assert spoken.take() == [meant]
    assert engine.speak("".join(pieces)).read_all().size
    assert spoken.take() == [meant]


def test_a_piece_that_is_no_text_costs_itself_alone(open_engine: Opener, spoken: SpokenText) -> None:
    stream = open_engine(max_text_chars=40).speak(None)
    stream.feed(HALVES[0])
    for bad in (None, b"bytes", 5, "much too long " * 3):
        with pytest.raises(InvalidRequestError):
            stream.feed(bad)  # type: ignore[arg-type]
    stream.feed(HALVES[1])
    stream.finish()
    assert stream.read_all().size
    assert spoken.take() == [JOINED]


def test_raw_text_reaches_the_model_as_it_is(open_engine: Opener, tiny_custom_voice: Checkpoint) -> None:
    text = "\ufeffHe\u00adllo\u00a0\U0001d573  x\n\ny."
    fakes = Fakes()
    engine = open_engine(fakes)
    told = {
        cleaning: engine.speak(text, clean_text=cleaning, seed=SEED, return_codes=True) for cleaning in (True, False)
    }
    codes = {cleaning: codes_of(stream) for cleaning, stream in told.items()}
    assert codes[True] == codes_of(engine.speak("Hello H x\n\ny.", seed=SEED, return_codes=True))
    assert codes[True] != codes[False]
    assert told[False].facts().segments == 1
    segmenter = TextSegmenter(tiny_custom_voice.tokenizer, 400)
    segmenter.add_whole(text)
    assert segmenter.upcoming.ids == text_ids(tiny_custom_voice.tokenizer, text)


# ---- paragraphs


@pytest.mark.parametrize(
    "text",
    [PARAGRAPHS, PARAGRAPHS.replace("\n", "\r\n"), PARAGRAPHS.replace("\n\n", "\u2029"), PARAGRAPHS + "\n\n...\n\n"],
)
@pytest.mark.parametrize("step", [0, 1, 5, 1000])
def test_each_paragraph_is_a_segment(tiny_custom_voice: Checkpoint, text: str, step: int) -> None:
    tokenizer = tiny_custom_voice.tokenizer
    tokens = ControlTokens(control_tokens(tokenizer))
    segmenter = TextSegmenter(tokenizer, 400, clean=True)
    if step == 0:
        segmenter.add_whole(clean(text, tokens))
    else:
        checker = TextChecker(tokens, 1000)
        for start in range(0, len(text), step):
            segmenter.feed(checker.check(text[start : start + step]))
        segmenter.feed(checker.finish())
        segmenter.finish()
    wanted = ["Good morning.", "How are you?", "Good night."]
    assert [segment.text.strip() for segment in segmenter.coming] == wanted
    assert [segment.ids for segment in segmenter.coming] == [text_ids(tokenizer, paragraph) for paragraph in wanted]


@pytest.mark.parametrize("fed", [False, True])
def test_each_paragraph_is_spoken(open_engine: Opener, fed: bool) -> None:
    requests: list[StreamRequest] = []
    engine = open_engine(fakes_with(frames=5, on_prefill=requests.append))
    stream = engine.speak(None if fed else PARAGRAPHS)
    if fed:
        for character in PARAGRAPHS:
            stream.feed(character)
        stream.finish()
    assert stream.read_all().size == 3 * 5 * 1920
    assert stream.finish_reason == "eos"
    assert stream.facts().segments == len(requests) == 3


def test_a_line_break_alone_is_a_space(open_engine: Opener, spoken: SpokenText) -> None:
    engine = open_engine()
    speak(engine, "Hello\nthere\r\n", "world.")
    assert engine.speak("Hello\nthere\r\nworld.").read_all().size
    assert spoken.take() == ["Hello there world."] * 2


# ---- linear work


def classes() -> dict[str, str]:
    """Kinds of text that a rule with a step back would take the square of its length for."""
    return {
        "dots": ".",
        "sentence then dots": "Hello." + "." * 500,
        "closers": ".”",
        "quotes": '"',
        "quote and space": '" ',
        "brackets": "([",
        "spaces": " ",
        "line breaks": "\n",
        "line ends": "\r\n",
        "blank lines": "a\n\n",
        "combining marks": "\u0301",
        "joiners": "\u200d",
        "emoji with joiners": "\U0001f469\u200d",
        "Chinese stops": "。",
        "Chinese sentences": "我。",
        "Chinese without a stop": "我",
        "digits": "1",
        "decimals": "1.",
        "escapes": "\x1b",
        "escape strings": "\x1b]",
        "escapes with numbers": "\x1b[0",
        "eight-bit escapes": "\x9b0",
        "token beginnings": "<|",
        "angle brackets": "<",
        "tokens": "<|im_end|>",
        "token within": "<|im_",
        "letters": "a",
        "high surrogates": "\ud83d",
        "low surrogates": "\ude00",
        "one-letter sentences": "A. ",
        "exclamations": "!?",
        "abbreviations": "Dr. e.g. ",
        "mathematical letters": "\U0001d573",
        "dashes": "— ",
        "commas": ", ",
        "tags": "\U000e0061",
        "NUL": "\0",
    }


SIZE = 2_000
GROWTH, BOUND = 4, 9
"""Four times the text: linear work takes about four times as long, and a square sixteen times."""


def whole(tokenizer: Any, tokens: ControlTokens, text: str) -> None:
    segmenter = TextSegmenter(tokenizer, 400, clean=True)
    segmenter.add_whole(clean(text, tokens))


def in_pieces(tokenizer: Any, tokens: ControlTokens, text: str) -> None:
    segmenter = TextSegmenter(tokenizer, 400, clean=True)
    checker = TextChecker(tokens, 2 * len(text))
    for character in text:
        segmenter.feed(checker.check(character))
    segmenter.feed(checker.finish())
    segmenter.finish()


def fed_at_once(tokenizer: Any, tokens: ControlTokens, text: str) -> None:
    segmenter = TextSegmenter(tokenizer, 400, clean=True)
    segmenter.feed(TextChecker(tokens, 2 * len(text)).check(text))
    segmenter.finish()


def seconds(work: Callable[[], None]) -> float:
    best = float("inf")
    for _ in range(2):
        began = time.thread_time()
        work()
        best = min(best, time.thread_time() - began)
    return best


@pytest.mark.parametrize("way", [whole, in_pieces, fed_at_once])
@pytest.mark.parametrize("unit", classes().values(), ids=classes())
def test_work_grows_with_the_text(tiny_custom_voice: Checkpoint, unit: str, way: Callable[..., None]) -> None:
    tokenizer = tiny_custom_voice.tokenizer
    tokens = ControlTokens(control_tokens(tokenizer))

    def spent(chars: int) -> float:
        text = (unit * (chars // len(unit) + 1))[:chars]
        return seconds(lambda: way(tokenizer, tokens, text))

    ratios = []
    for _ in range(3):  # another process may have had the core
        ratios.append(spent(SIZE * GROWTH) / max(spent(SIZE), 1e-4))
        if ratios[-1] < BOUND:
            return
    pytest.fail(f"{GROWTH} times the text took {ratios} times as long")
