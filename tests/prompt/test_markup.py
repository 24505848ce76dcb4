"""Text in markup: what it asks for, cut anywhere, and what is refused with its place."""

import random
import time

import pytest

from megatalker.errors import MarkupError
from megatalker.prompt.control_tokens import ControlTokens
from megatalker.prompt.markup import MarkedText
from megatalker.prompt.markup.controls import ControlReader, without_controls
from megatalker.prompt.markup.parts import LONGEST_PAUSE_S, MOST_PAUSES_S, MarkupReader
from megatalker.prompt.markup.say_as import SayAs
from megatalker.prompt.markup.ssml import SsmlReader
from megatalker.prompt.markup.tags import TagReader
from megatalker.prompt.rewriting import Lexicon, TextRewriter
from megatalker.prompt.rewriting.normalisation import normaliser_of
from megatalker_benchmarks.rewriting import random_pieces

VOICES = ("mina", "robin")
WORDS = Lexicon({"Sean": "Shawn", "New York": "Noo York"})


def reader(kind: str, language: str | None = "english") -> MarkupReader:
    return TagReader(VOICES) if kind == "tags" else SsmlReader(VOICES, SayAs(language))


def marked(kind: str, language: str | None = "english", *, rewrite: bool = False) -> MarkedText:
    rewriter = TextRewriter(WORDS.tables(language), normaliser_of(language)) if rewrite else None
    return MarkedText(reader(kind, language), ControlTokens(), rewriter)


def parts_of(said: list[str]) -> list[tuple[str, str]]:
    """The parts that a segmenter finds in these pieces of clean text, neighbouring text together and stripped."""
    control = ControlReader()
    found: list[tuple[str, str]] = []
    for piece in said:
        for kind, value in control.read(piece):
            if kind == "text" and found and found[-1][0] == "text":
                found[-1] = (kind, found[-1][1] + value)
            else:
                found.append((kind, value))
    stripped = [(kind, value.strip() if kind == "text" else value) for kind, value in found]
    return [part for part in stripped if part != ("text", "")]


def said(kind: str, *pieces: str, language: str | None = "english", rewrite: bool = False) -> list[tuple[str, str]]:
    text = marked(kind, language, rewrite=rewrite)
    return parts_of([*map(text.feed, pieces), text.finish()])


@pytest.mark.parametrize(
    ("kind", "text", "right"),
    [
        ("tags", "Wait.[pause:400ms]Go.", [("text", "Wait."), ("pause", "9600"), ("text", "Go.")]),
        ("tags", "[Pause: 1.5s ]Go.", [("pause", "36000"), ("text", "Go.")]),
        ("tags", "a [mark:x-1.b] b", [("text", "a"), ("mark", "x-1.b"), ("text", "b")]),
        ("tags", "[voice:MINA]Hi.[/voice]Yo.", [("voice", "mina"), ("text", "Hi."), ("voice", ""), ("text", "Yo.")]),
        (
            "tags",
            "see [1] and [sic], [pauses] [voiced] [/voices]",
            [("text", "see [1] and [sic], [pauses] [voiced] [/voices]")],
        ),
        ("tags", r"\[pause:1s] C:\dir \\[mark:a] \ ", [("text", r"[pause:1s] C:\dir \[mark:a] \ ".strip())]),
        ("tags", "a < b & c <break/>", [("text", "a < b & c <break/>")]),
        ("ssml", 'Wait.<break time="400ms"/>Go.', [("text", "Wait."), ("pause", "9600"), ("text", "Go.")]),
        ("ssml", "<speak>Wait.<break/>Go.</speak>", [("text", "Wait."), ("pause", "12000"), ("text", "Go.")]),
        ("ssml", "a<break strength='none'/>b <break strength='x-strong'/>", [("text", "ab"), ("pause", "36000")]),
        (
            "ssml",
            "<p>One.</p><s>Two.</s>",
            [("end", ""), ("text", "One."), ("end", ""), ("end", ""), ("text", "Two."), ("end", "")],
        ),
        ("ssml", 'The <sub alias="World Wide Web">W3</sub>!', [("text", "The World Wide Web!")]),
        ("ssml", "<!-- no <tag> & --><![CDATA[a < b]]> &amp; &#x41;&lt;", [("text", "a < b & A<")]),
        ("ssml", "a<mark name='m'/>b", [("text", "a"), ("mark", "m"), ("text", "b")]),
        (
            "ssml",
            "<voice name='mina'>A<voice name='robin'>B</voice>C</voice>D",
            [
                *(
                    ("voice", "mina"),
                    ("text", "A"),
                    ("voice", "robin"),
                    ("text", "B"),
                    ("voice", "mina"),
                    ("text", "C"),
                ),
                *(("voice", ""), ("text", "D")),
            ],
        ),
        ("ssml", "5 [pause:1s] apples", [("text", "5 [pause:1s] apples")]),
        ("ssml", "", []),
    ],
)
def test_markup_says_what_it_means(kind, text, right):
    assert said(kind, text) == right
    assert said(kind, *text) == right


# From W3C's "Speech Synthesis Markup Language (SSML) Version 1.1", sections 3.1.1, 3.1.8.1, 3.1.11 and 3.2.3.
DOCUMENT = """<?xml version="1.0"?>
<speak version="1.1" xmlns="http://www.w3.org/2001/10/synthesis"
       xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
       xsi:schemaLocation="http://www.w3.org/2001/10/synthesis http://www.w3.org/TR/speech-synthesis11/synthesis.xsd"
       xml:lang="en-US">
  <p>
    <s>This is the first sentence of the paragraph.</s>
    <s>Here's another sentence.</s>
  </p>
  <sub alias="World Wide Web Consortium">W3C</sub>
  Take a deep breath <break/> then continue.
  Press 1 or wait for the tone. <break time="3s"/>
  Go from <mark name="here"/> here, to <mark name="there"/> there!
</speak>"""


def test_examples_of_the_specification_are_read():
    right = [
        ("text", "This is the first sentence of the paragraph."),
        ("text", "Here's another sentence."),
        ("text", "World Wide Web Consortium Take a deep breath"),
        ("pause", "12000"),
        ("text", "then continue. Press 1 or wait for the tone."),
        ("pause", "72000"),
        ("text", "Go from"),
        ("mark", "here"),
        ("text", "here, to"),
        ("mark", "there"),
        ("text", "there!"),
    ]
    for pieces in ([DOCUMENT], list(DOCUMENT)):
        assert [part for part in said("ssml", *pieces) if part[0] != "end"] == right


@pytest.mark.parametrize(
    ("kind", "form", "text", "right"),
    [
        ("characters", "", "MI6", "M I six"),
        ("spell-out", "", "a-b", "A dash B"),
        ("digits", "", "2024", "two oh two four"),
        ("cardinal", "", "2024", "two thousand and twenty-four"),
        ("number", "", "-3.5", "minus three point five"),
        ("ordinal", "", "21st", "twenty-first"),
        ("ordinal", "", "3", "third"),
        ("date", "mdy", "9/10/2024", "September tenth, twenty twenty-four"),
        ("date", "dmy", "9/10/2024", "October ninth, twenty twenty-four"),
        ("date", "ymd", "20240309", "March ninth, twenty twenty-four"),
        ("date", "m", "3", "March"),
        ("date", "y", "1999", "nineteen ninety-nine"),
        ("date", "", "2024-03-03", "March third, twenty twenty-four"),
        ("time", "", "2:30pm", "two thirty P M"),
        ("telephone", "1", "+1 555 0199", "plus one, five five five, oh one nine nine"),
        ("currency", "", "$3.50", "three dollars and fifty cents"),
        ("fraction", "", "3/4", "three quarters"),
        ("fraction", "", "1 1/2", "one and a half"),
    ],
)
def test_say_as_reads_as_it_is_told(kind, form, text, right):
    element = f'<say-as interpret-as="{kind}" format="{form}">{text}</say-as>'
    assert said("ssml", f"It is {element}.") == [("text", f"It is {right}.")]
    assert said("ssml", *f"It is {element}.", rewrite=True) == [("text", f"It is {right}.")]


def test_say_as_speaks_the_language_of_the_text():
    german = '<say-as interpret-as="cardinal">21</say-as>, <say-as interpret-as="date" format="dmy">3.10.1990</say-as>'
    assert said("ssml", german, language="german")[0][1].startswith("einundzwanzig, dritte Oktober")
    assert said("ssml", '<say-as interpret-as="cardinal">21</say-as>', language="chinese") == [("text", "二十一")]


def test_what_markup_says_is_neither_respelled_nor_normalised_again():
    text = "Sean <sub alias='Sean 2'>x</sub> Sean 2"
    assert said("ssml", text, rewrite=True) == [("text", "Shawn Sean 2 Shawn two")]
    assert said("ssml", *text, rewrite=True) == [("text", "Shawn Sean 2 Shawn two")]


def test_text_between_controls_is_rewritten_by_itself():
    assert said("tags", "New[mark:a]York 1[pause:1s]2", rewrite=True) == [
        ("text", "New"), ("mark", "a"), ("text", "York one"), ("pause", "24000"), ("text", "two"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("tags", "Go.\n  [pause:soon] now", "line 2, column 3: the pause is 'soon', expected a length such as 400ms"),
        ("tags", "[pause:11s]", "line 1, column 1: a pause of 11 s was asked for, expected at most 10 s"),
        ("tags", "[pause:6s] [pause:6s]", "column 12: a pause of 12 s was asked for"),
        ("tags", f"[pause:{'9' * 30}s]", "the pause is '999"),
        ("tags", f"[pause:{'9' * 9}s]", "a pause of 1e+09 s was asked for"),
        ("tags", "a [pause:1s", "column 3: the tag [pause: does not end"),
        ("tags", "a [pause:1[s]", "column 3: the tag [pause: does not end"),
        ("tags", f"a [mark:{'x' * 200}]", "column 3: the tag [mark: does not end"),
        ("tags", "a [mark:x y]", "column 3: the mark is named 'x y', expected a letter or digit"),
        ("tags", "a [voice:ann]", "column 3: unknown voice 'ann'; the option cast names voices"),
        ("tags", "a [whisper] b", "column 3: the tag [whisper] asks for a tone"),
        ("ssml", "Hi <b>you</b>", "line 1, column 4: unknown element <b>"),
        ("ssml", "Hi\n <p>you", "line 2, column 8: the text ends within <p>; expected </p>"),
        ("ssml", "<speak>Hi\n <p>you</speak>", "line 2, column 10: this is no well-formed SSML (mismatched tag)"),
        ("ssml", "a\nb & c", "line 2, column 4: this is no well-formed SSML (not well-formed (invalid token))"),
        ("ssml", "a < b", "line 1, column 4: this is no well-formed SSML (not well-formed (invalid token))"),
        ("ssml", "x &nbsp; y", "line 1, column 3: this is no well-formed SSML (undefined entity)"),
        (
            "ssml",
            "<speak>a</speak>b",
            "line 1, column 9: <speak> ends here and more follows, expected the end of the text",
        ),
        ("ssml", "<speak/> \u5317</speak>", "line 1, column 9: <speak> ends here and more follows"),
        ("ssml", "a</speak>", "line 1, column 2: </speak> stands here, and no <speak> before it; leave it out"),
        ("ssml", "</speak>\u5317</speak>", "line 1, column 1: </speak> stands here, and no <speak> before it"),
        ("ssml", '<?xml version="1.0"?><!DOCTYPE speak [<!ENTITY a "b">]><speak>&a;</speak>', "a document type"),
        ("ssml", '<!DOCTYPE speak SYSTEM "file:///etc/passwd"><speak>a</speak>', "this is no well-formed SSML"),
        ("ssml", "a<?php x?>", "line 1, column 2: a processing instruction is not taken"),
        ("ssml", "a<speak>b</speak>", "line 1, column 2: <speak> stands here, expected one <speak> around everything"),
        (
            "ssml",
            "<phoneme ph='x'>a</phoneme>",
            "<phoneme> is not spoken: the model reads letters and knows no phonemes",
        ),
        ("ssml", "<emphasis>a</emphasis>", "<emphasis> is not spoken: the model takes no emphasis"),
        ("ssml", "<audio src='http://x/'/>", "<audio> is not spoken: nothing is loaded from outside"),
        ("ssml", "<break time='1'/>", "the pause is '1', expected a length such as 400ms or 1.5s"),
        ("ssml", "<break time='-1s'/>", "the pause is '-1s'"),
        ("ssml", "<break strength='huge'/>", "strength is 'huge', expected none, x-weak, weak"),
        ("ssml", "<break length='1s'/>", "<break> has an attribute 'length', expected time, strength"),
        ("ssml", "<sub>a</sub>", "<sub> has no attribute 'alias'; expected <sub alias=...>"),
        ("ssml", "<sub alias='b'><s>a</s></sub>", "<s> stands within <sub>, expected no element there"),
        ("ssml", "<mark/>", "<mark> has no attribute 'name'"),
        ("ssml", "<voice name='ann'>a</voice>", "unknown voice 'ann'"),
        ("ssml", "<voice gender='male'>a</voice>", "<voice> has an attribute 'gender'"),
        ("ssml", "<speak xml:lang='de'>a</speak>", "xml:lang is 'de', which is not the language of the request"),
        ("ssml", "<say-as interpret-as='swear'>a</say-as>", "interpret-as is 'swear', expected characters"),
        ("ssml", "a\n<say-as interpret-as='date'>soon</say-as>", "line 2, column 1: 'soon' cannot be read as date"),
        ("ssml", "<say-as interpret-as='date' format='dmy'>45.1.2024</say-as>", "cannot be read as date 'dmy'"),
        ("ssml", "<say-as interpret-as='cardinal'>" + "1" * 300, "<say-as> holds more than 256 characters"),
        ("ssml", "a \ud800 b", "line 1, column 3: a NUL character or half of a surrogate pair"),
        ("ssml", "a \ud83d", "line 1, column 3: a NUL character or half of a surrogate pair"),
        ("ssml", "a \0", "line 1, column 3: a NUL character"),
        ("ssml", "<p>" * 40, "elements stand within one another 33 deep"),
        ("ssml", "<break " + "x" * 3000, "'<break xxxxxxxxxxxxx' begins what does not end within 1024 characters"),
        ("ssml", "a &" + "x" * 3000, "line 1, column 3: '&xxxxxxxxxxxxxxxxxxx' begins what does not end within"),
    ],
    ids=lambda text: repr(text[:40]),
)
def test_what_cannot_be_meant_is_refused_with_its_place(kind, text, message):
    refusals = []
    for pieces in ([text], list(text)):
        with pytest.raises(MarkupError) as refusal:
            said(kind, *pieces)
        refusals.append(str(refusal.value))
    assert message in refusals[0]
    assert refusals[0] == refusals[1]


def test_pauses_of_a_text_are_bounded():
    tag = f"a [pause:{LONGEST_PAUSE_S}s]"
    many = MOST_PAUSES_S // LONGEST_PAUSE_S
    assert len(said("tags", tag * many)) == 2 * many
    with pytest.raises(MarkupError, match="the pauses of a text last more than 600 s in all"):
        said("tags", tag * (many + 1))


def test_no_text_can_forge_a_control():
    assert said("tags", "a\ufdd0p9600\ufdd1b") == [("text", "a p9600 b")]
    assert said("ssml", "a\ufdd0p9600\ufdd1b") == [("text", "a p9600 b")]
    assert without_controls(marked("tags").feed("a[pause:1s]b")) == "a\u2029b"


TAGS = ("[pause:1s]", "[pause:10ms]", "[mark:a]", "[voice:mina]", "[/voice]", "[", "]", "\\", "\\[", "[pau", "[x]", "<")
ELEMENTS = (
    "<break/>", "<break time='1s'/>", '<break time="20ms" />', "<mark name='a'/>", "&amp;", "&lt;", "&#65;",
    "<sub alias='Sean &amp; 3'>x y</sub>", "<say-as interpret-as='cardinal'>12</say-as>", "<!-- a > b -->",
    "<![CDATA[ <x> ]]>",
)  # fmt: skip
PLAIN = (
    "Sean", " New", " York", " 12", "5", " km", ".", " ", "\n\n", "\r\n", "é", "e\u0301", "北京", "\U0001f600", "'",
    '"', "=", "$5", " million", "\x1b[1m" "\u200d", "]", ">",
)  # fmt: skip


def random_markup(chance: random.Random, kind: str, depth: int = 0) -> str:
    """A text in markup, which is well formed in SSML."""
    text = ""
    for _ in range(chance.randint(1, 8)):
        choice = chance.random()
        if choice < 0.6:
            text += chance.choice([part for part in PLAIN if kind == "tags" or part[0] != "\x1b"])
        elif choice < 0.85 or depth > 3 or kind == "tags":
            text += chance.choice(TAGS if kind == "tags" else ELEMENTS)
        else:
            name = chance.choice(("p", "s", "voice name='mina'", "prosody rate='110%'", "prosody volume='-1dB'"))
            text += f"<{name}>{random_markup(chance, kind, depth + 1)}</{name.split()[0]}>"
    return f"<speak>{text}</speak>" if kind == "ssml" and depth == 0 and chance.random() < 0.5 else text


def spoilt(chance: random.Random, text: str) -> str:
    """The text with some characters left out or put in."""
    for _ in range(chance.randint(0, 2)):
        at = chance.randrange(len(text) + 1)
        text = (
            text[:at] + chance.choice(("", "<", "&", "]", "[", "/", '"', "\ud83d")) + text[at + chance.randint(0, 1) :]
        )
    return text


def outcome(kind: str, pieces: list[str], *, rewrite: bool) -> object:
    try:
        return said(kind, *pieces, rewrite=rewrite)
    except MarkupError as error:
        return str(error)


@pytest.mark.parametrize("kind", ["tags", "ssml"])
@pytest.mark.parametrize("block", range(4))
def test_cuts_do_not_change_what_is_said(kind, block):
    well_formed = 0
    for seed in range(500 * block, 500 * (block + 1)):
        chance = random.Random(seed)
        text = random_markup(chance, kind)
        text = spoilt(chance, text) if seed % 2 else text
        rewrite = chance.random() < 0.5
        whole = outcome(kind, [text], rewrite=rewrite)
        assert outcome(kind, random_pieces(chance, text), rewrite=rewrite) == whole, (seed, text)
        assert outcome(kind, list(text), rewrite=rewrite) == whole, (seed, text)
        well_formed += not isinstance(whole, str)
    assert well_formed > 250


@pytest.mark.parametrize(
    "text",
    [
        "[" * 20_000, "[pause:1ms]a" * 1_600, "\\" * 20_000, "[pau" * 5_000, "<" * 20_000, "<p>" * 6_000, "&" * 20_000,
        "<a b='" + ">" * 20_000, "<!--" + "-" * 20_000, "<![CDATA[" + "]" * 20_000, "<break " * 3_000, "a\n" * 10_000,
        "&amp;" * 4_000, "<s>a</s>" * 2_500, " " * 20_000, "\ud800" * 20_000, "<speak" * 4_000, "<?xml" * 4_000,
        "<x" + " y='1'" * 3_000, "<!-- > " * 3_000, "&#" * 10_000, "[voice:" * 3_000, "<" + "a" * 20_000,
    ],
    ids=lambda text: repr(text[:12]),
)  # fmt: skip
@pytest.mark.parametrize("kind", ["tags", "ssml"])
def test_absurd_text_costs_no_more_than_it_is_long(kind, text):
    """20,000 characters at once and one by one; a quadratic reader takes minutes for some of these."""
    begin = time.process_time()
    assert outcome(kind, list(text), rewrite=False) == outcome(kind, [text], rewrite=False)
    assert time.process_time() - begin < 20
