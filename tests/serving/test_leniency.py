"""Fields of other servers' clients in our words: what is taken, what is left out and named, what is refused."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatalker.errors import InvalidRequestError
from megatalker.serving.protocol import leniency
from megatalker.serving.protocol.leniency import FieldError, read_fields, read_json, told_names
from megatalker.serving.protocol.messages import Open
from megatalker.serving.protocol.plain_messages import StartSession
from megatalker.serving.server.speech_routes import PlainSpeechRequest, SpeechRequest


def speech(**given: Any) -> SpeechRequest:
    return read_fields(SpeechRequest, {"input": "Hi."} | given)[0]


@pytest.mark.parametrize(
    ("field", "given", "taken"),
    [
        ("speed", None, 1.0),
        ("speed", "", 1.0),
        ("speed", "1.25", 1.25),
        ("speed", " 2 ", 2.0),
        ("seed", "7", 7),
        ("seed", 7.0, 7),
        ("seed", -1, None),
        ("seed", "-1", None),
        ("seed", -1.0, None),
        ("seed", 0, 0),
        ("seed", "", None),
        ("voice", "", None),
        ("voice", "  ", None),
        ("voice", " ryan ", "ryan"),
        ("voice", {"id": "ryan"}, "ryan"),
        ("language", "", None),
        ("instructions", "", None),
        ("instructions", " Softly. ", " Softly. "),
        ("response_format", None, "mp3"),
        ("response_format", " MP3 ", "mp3"),
        ("response_format", "audio/mpeg", "mp3"),
        ("response_format", "ogg", "opus"),
        ("response_format", "pcm16", "pcm"),
        ("response_format", ".WAV", "wav"),
        ("stream_format", "SSE", "sse"),
        ("stream", "false", False),
        ("stream", "True", True),
        ("stream", 0, False),
        ("stream", None, True),
        ("layout", "Upfront", "upfront"),
        ("layout", None, "auto"),
        ("max_frames", "40", 40),
        ("max_ahead_s", "0.5", 0.5),
        (
            "sampling",
            {"temperature": "0.5", "top_k": None, "top_p": None, "do_sample": "False", "seed": "4"},
            {"temperature": 0.5, "top_k": None, "do_sample": False, "seed": 4},
        ),
    ],
)
def test_a_value_is_taken_where_it_has_one_meaning(field: str, given: Any, taken: Any) -> None:
    assert getattr(speech(**{field: given}), field) == taken


@pytest.mark.parametrize(
    ("field", "given"),
    [
        *(
            ("speed", value)
            for value in (True, "fast", "1,25", "nan", math.nan, math.inf, "1e400", "\uff11.\uff12", 0.2, 5, [1])
        ),
        *(
            ("seed", value)
            for value in (False, -2, "-2", 1.5, 2**64, 10**300, "\uff11\uff12", math.inf, math.nan, "x", {})
        ),
        *(("max_frames", value) for value in (0, True, "0", 1e300)),
        *(("max_ahead_s", value) for value in (0, "nan", True)),
        *(("response_format", value) for value in ("m4a", "raw", "mp3_44100_128", 3, ["mp3"])),
        *(("stream", value) for value in ("maybe", 2, 0.5)),
        *(("input", value) for value in (5, None, True, ["Hi."])),
        *(("voice", value) for value in (5, True, {"name": "ryan"})),
    ],
)
def test_any_other_value_is_refused_by_name(field: str, given: Any) -> None:
    with pytest.raises(FieldError, match=f"^{field} is ") as refused:
        speech(**{field: given})
    assert (refused.value.field or "").split(".")[0] == field


@pytest.mark.parametrize(
    ("model", "given", "field", "taken"),
    [
        (SpeechRequest, {"lang_code": "a"}, "language", "english"),
        (SpeechRequest, {"lang_code": "zh-CN"}, "language", "chinese"),
        (SpeechRequest, {"language_code": "DE"}, "language", "german"),
        (SpeechRequest, {"language": "french", "lang": "de"}, "language", "french"),
        (SpeechRequest, {"max_new_tokens": 51}, "max_frames", 50),
        (SpeechRequest, {"max_new_tokens": "51"}, "max_frames", 50),
        (SpeechRequest, {"speaker": "ryan"}, "voice", "ryan"),
        (SpeechRequest, {"voice": "", "voice_id": "ryan"}, "voice", "ryan"),
        (SpeechRequest, {"format": "WAV"}, "response_format", "wav"),
        (SpeechRequest, {"output_format": "pcm_24000"}, "response_format", "pcm"),
        (SpeechRequest, {"instruction": "Softly."}, "instructions", "Softly."),
        (Open, {"response_format": "pcm16"}, "format", "s16le"),
        (Open, {"input": "Hi."}, "text", "Hi."),
        (StartSession, {"voice": "ryan"}, "speaker", "ryan"),
        (StartSession, {"max_frames": 50}, "max_new_tokens", 51),
        (PlainSpeechRequest, {"input": "Hello."}, "text", "Hello."),
    ],
)
def test_fields_that_mean_the_same_elsewhere_are_understood(
    model: type[Any], given: dict[str, Any], field: str, taken: Any
) -> None:
    whole = {"input": "Hi."} | given if model is SpeechRequest else given
    assert getattr(read_fields(model, whole)[0], field) == taken


FOREIGN = {
    "user": "me",
    "temperature": 0,
    "top_p": 0.9,
    "volume_multiplier": 1.5,
    "normalization_options": {"normalize": False},
    "lang_code": "h",  # Hindi, which no checkpoint names
    "max_new_tokens": "many",
    "output_format": "mp3_44100_128",
    "task_type": "CustomVoice",
    "an_entirely_different_thing": [1],
    "voice_engine": 3,
    "languages_spoken": 2,
}


@pytest.mark.parametrize(("value", "meant"), [(True, "on"), ("true", "on"), (False, "off"), ("on", "on"), ("", None)])
def test_a_truth_value_says_whether_text_is_normalised(value: object, meant: str | None) -> None:
    message, ignored = read_fields(SpeechRequest, {"input": "Hi.", "normalize": value})
    assert (message.normalize, ignored) == (meant, ())


def test_fields_without_meaning_here_are_left_out_and_named() -> None:
    message, ignored = read_fields(SpeechRequest, {"input": "Hi."} | FOREIGN | {"service_tier": None, "prefix": ""})
    assert message == speech()
    assert ignored == tuple(FOREIGN)


@pytest.mark.parametrize("model", [SpeechRequest, Open, StartSession, PlainSpeechRequest])
def test_names_of_other_servers_are_never_typing_errors(model: type[Any]) -> None:
    for name in leniency.OTHERS - model.model_fields.keys():
        read_fields(model, {"input": "Hi.", "text": "Hi."} | {name: [0]})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("voise", "voice"),
        ("langauge", "language"),
        ("sede", "seed"),
        ("speeed", "speed"),
        ("instuctions", "instructions"),
        ("respone_format", "response_format"),
        ("response-format", "response_format"),
        ("Voice", "voice"),
        ("max_frame", "max_frames"),
        ("steam", "stream"),
        ("inputt", "input"),
        ("mdoel", "model"),
    ],
)
def test_a_typing_error_is_refused_with_the_name_that_is_meant(name: str, meant: str) -> None:
    with pytest.raises(FieldError, match=f"unknown key {name!r}; did you mean {meant!r}") as refused:
        speech(**{name: "x"})
    assert refused.value.field == name


def test_a_strict_reader_takes_only_documented_fields() -> None:
    for wish in ({"user": "me"}, {"speed": "1"}, {"speed": None}, {"response_format": "MP3"}, {"seed": -1}):
        with pytest.raises(FieldError):
            read_fields(SpeechRequest, {"input": "Hi."} | wish, strict=True)
    assert read_fields(SpeechRequest, {"input": "Hi.", "speed": 1.5}, strict=True)[0].speed == 1.5


# ---- many names, and odd ones


def test_unknown_names_cost_a_look_each_and_few_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    monkeypatch.setattr(leniency.difflib, "get_close_matches", lambda name, *_, **__: compared.append(name) or [])
    given = {"input": "Hi."} | {f"k{at}": at for at in range(90_000)}
    assert len(read_fields(SpeechRequest, given)[1]) == 90_000
    assert len(compared) == leniency.COMPARED_NAMES


def test_only_a_few_of_many_ignored_names_are_told() -> None:
    told = told_names(tuple(f"k{at}" for at in range(90_000)))
    assert told == (*(f"k{at}" for at in range(16)), "and 89984 more")


@given(st.lists(st.text(st.characters(), max_size=300), max_size=30))
def test_told_names_fit_a_header(names: list[str]) -> None:
    line = ", ".join(told_names(tuple(names)))
    assert len(line) < 800
    assert all(" " <= letter <= "~" for letter in line)


def test_names_cannot_add_headers() -> None:
    assert told_names(("x\r\nSet-Cookie: a=b", "naïve, 🎉")) == (
        "x%0D%0ASet-Cookie%3A%20a%3Db",
        "na%C3%AFve%2C%20%F0%9F%8E%89",
    )


# ---- JSON


def test_json_may_begin_with_a_byte_order_mark() -> None:
    text = '{"input": "Grüße"}'
    for data in ("\ufeff" + text, text.encode(), text.encode("utf-8-sig"), text.encode("utf-16")):
        assert read_json(data) == {"input": "Grüße"}


@pytest.mark.parametrize("data", ["", "{", b"\xff\xfe\xff", "[" * 100_000, b"\x80", '{"a": }', "NaN x"])
def test_invalid_json_is_refused(data: str | bytes) -> None:
    with pytest.raises(InvalidRequestError, match="this is not JSON"):
        read_json(data)


def test_numbers_of_any_length_are_read() -> None:
    assert read_json("9" * 5_000) == math.inf
    assert read_json('{"seed": 1e400}') == {"seed": math.inf}


@given(st.text(st.characters(), max_size=20))
def test_half_a_surrogate_pair_reaches_the_text(text: str) -> None:
    assert read_fields(Open, read_json(json.dumps({"text": text})))[0].text == text
