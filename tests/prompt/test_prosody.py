"""``<prosody>`` in SSML: which rates and volumes it takes, and what it refuses."""

import pytest

from megatalker.errors import MarkupError
from megatalker.prompt.markup import prosody
from megatalker.prompt.markup.parts import TextPlace
from megatalker.prompt.markup.prosody import PLAIN, Prosody
from megatalker.prompt.markup.say_as import SayAs
from megatalker.prompt.markup.ssml import SsmlReader

HERE = TextPlace(1, 1)


def parts(*pieces: str) -> list[tuple[str, str]]:
    reader, found = SsmlReader((), SayAs("english")), list[tuple[str, str]]()
    for part in [part for piece in pieces for part in reader.feed(piece)] + reader.finish():
        if part.kind == "text" and found and found[-1][0] == "text":
            found[-1] = "text", found[-1][1] + part.value
        else:
            found.append((part.kind, part.value))
    return [(kind, value.strip()) for kind, value in found if value.strip()]  # a fragment begins with a line break


@pytest.mark.parametrize(
    ("attribute", "value", "rate", "gain"),
    [
        *(("rate", value, rate, 1.0) for value, rate in (
            ("x-slow", 0.5), ("slow", 0.75), ("medium", 1.0), ("default", 1.0), ("fast", 1.5), ("x-fast", 2.0),
            ("80%", 0.8), ("+20%", 1.2), ("-20%", 0.8), (" 1.25 ", 1.25), (".5", 0.5), ("25%", 0.25), ("400%", 4.0),
        )),
        *(("volume", value, 1.0, gain) for value, gain in (
            ("silent", 0.0), ("x-soft", 0.25), ("soft", 0.5), ("medium", 1.0), ("default", 1.0), ("loud", 1.5),
            ("x-loud", 2.0), ("+6dB", 1.99526), ("-3dB", 0.70795), ("-6db", 0.50119), ("+0dB", 1.0), ("0", 0.0),
            ("50", 0.5), ("100", 1.0), ("+10%", 1.1), ("-10", 0.9), ("-999999999dB", 0.0), ("-100%", 0.0),
        )),
        ("pitch", "medium", 1.0, 1.0),
        ("range", "+0%", 1.0, 1.0),
    ],
)  # fmt: skip
def test_values_of_the_specification_are_taken(attribute: str, value: str, rate: float, gain: float) -> None:
    found = PLAIN.within({attribute: value}, HERE)
    assert found.rate == pytest.approx(rate)
    assert found.gain == pytest.approx(gain, abs=1e-5)
    assert Prosody.decode(found.encode()) == found


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"rate": "0"}, "the rate here is 0 times the usual one, expected 0.25 to 4"),
        ({"rate": "-100%"}, "the rate here is 0 times"),
        ({"rate": "-150%"}, "the rate here is -0.5 times"),
        ({"rate": "-1"}, "rate is '-1', expected x-slow, slow, medium, default, fast, x-fast, a share such as 80%"),
        ({"rate": "nan"}, "rate is 'nan'"),
        ({"rate": "inf"}, "rate is 'inf'"),
        ({"rate": "1e9"}, "rate is '1e9'"),
        ({"rate": "999999999"}, "the rate here is 1e+09 times"),
        ({"rate": "9" * 900}, "rate is '999"),
        ({"rate": ""}, "rate is ''"),
        ({"rate": "slower"}, "did you mean 'slow'"),
        ({"rate": "2dB"}, "rate is '2dB'"),
        ({"rate": "٣"}, "rate is '٣'"),
        ({"volume": "101"}, "volume is '101', expected silent, x-soft"),
        ({"volume": "6dB"}, "volume is '6dB'"),
        ({"volume": "+13dB"}, "the volume here is 4.47 times the usual one, expected at most 4 (12 dB)"),
        ({"volume": "+999999999dB"}, "the volume here is 1e+20 times"),
        ({"volume": "-101%"}, "volume is '-101%'"),
        ({"volume": "nan"}, "volume is 'nan'"),
        ({"pitch": "high"}, "pitch is 'high', expected 'default': the model's pitch cannot be changed"),
        ({"range": "+2st"}, "range is '+2st'"),
        ({"contour": "(0%,+20Hz)"}, "<prosody> has an attribute 'contour', expected rate, volume, pitch, range"),
        ({"duration": "2s"}, "<prosody> has an attribute 'duration'"),
    ],
)
def test_values_that_cannot_be_meant_are_refused_with_their_place(attributes: dict[str, str], message: str) -> None:
    written = "".join(f' {name}="{value}"' for name, value in attributes.items())
    for pieces in ([f"a\n<prosody{written}>b</prosody>"], list(f"a\n<prosody{written}>b</prosody>")):
        with pytest.raises(MarkupError) as refused:
            parts(*pieces)
        assert str(refused.value).startswith("line 2, column 1: ")
        assert message in str(refused.value)


def test_elements_within_one_another_multiply_and_end_with_what_was_before() -> None:
    text = "a<prosody rate='2' volume='50'>b<prosody rate='50%'>c</prosody>d</prosody>e"
    right = [
        ("text", "a"),
        ("prosody", "2.0 0.5"),
        ("text", "b"),
        ("prosody", "1.0 0.5"),
        ("text", "c"),
        ("prosody", "2.0 0.5"),
        ("text", "d"),
        ("prosody", "1.0 1.0"),
        ("text", "e"),
    ]
    assert parts(text) == parts(*text) == right


def test_what_changes_nothing_is_no_part() -> None:
    for text in (
        "a<prosody>b</prosody>c",
        "a<prosody rate='100%' volume='medium' pitch='default'>b</prosody>c",
        "a<prosody rate='slow'></prosody>b<prosody rate='slow'/>c",
    ):
        assert parts(text) == parts(*text) == [("text", "abc")]
    pauses = parts("<prosody rate='slow'><break time='1s'/></prosody>")
    assert pauses == [("pause", "24000")], "a pause has no rate"


def test_elements_are_bounded() -> None:
    with pytest.raises(MarkupError, match="elements stand within one another 33 deep"):
        parts("<prosody rate='+1%'>" * 200 + "a" + "</prosody>" * 200)
    with pytest.raises(MarkupError, match="the rate here is 8 times"):
        parts("<prosody rate='2'><prosody rate='2'><prosody rate='2'>a")
    with pytest.raises(MarkupError, match="the text ends within <prosody>"):
        parts("<prosody rate='slow'>a")


def test_the_package_that_a_rate_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prosody, "find_spec", lambda name: None)
    assert PLAIN.within({"volume": "soft"}, HERE).gain == 0.5
    with pytest.raises(MarkupError, match=r"a rate needs the package av; .* pip install 'megatalker\[server\]'"):
        PLAIN.within({"rate": "slow"}, HERE)
