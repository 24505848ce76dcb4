"""Words of a lexicon and numbers over every face of the server: by request, by voice and by setting."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from client_stage import Pair
from megatalker.checkpoint import Checkpoint
from megatalker.engine.speech.options import SpeechOptions
from megatalker.errors import InvalidRequestError
from megatalker.prompt.rewriting import Lexicon
from serving import Served, Server, serving
from spoken_text import SpokenText
from waiting import HANG_S

WRITTEN = "Sean ran 5 km on May 3."
SPOKEN = "Shawn ran five kilometers on May third."
FIELDS: dict[str, Any] = {"normalize": "on", "lexicon": {"en": {"Sean": "Shawn"}}, "language": "en"}
SEED = 5


@pytest.fixture
def spoken(monkeypatch: pytest.MonkeyPatch) -> SpokenText:
    return SpokenText(monkeypatch)


def post(served: Served, route: str, **body: Any) -> httpx.Response:
    return httpx.post(served.url + route, json=body, timeout=HANG_S)


@pytest.mark.parametrize(("route", "name"), [("/v1/audio/speech", "input"), ("/tts/stream", "text")])
def test_a_text_over_http(shared: Served, spoken: SpokenText, route: str, name: str) -> None:
    assert post(shared, route, **{name: WRITTEN}, **FIELDS).status_code == 200
    assert post(shared, route, **{name: WRITTEN}, **(FIELDS | {"normalize": True})).status_code == 200
    assert post(shared, route, **{name: WRITTEN}, normalize="off").status_code == 200
    assert post(shared, route, **{name: WRITTEN}).status_code == 200
    assert spoken.take() == [SPOKEN, SPOKEN, WRITTEN, WRITTEN]


def test_pieces_over_a_websocket(shared: Served, spoken: SpokenText) -> None:
    talk = shared.talk()
    talk.say("open", seed=SEED, format="f32le", **FIELDS)
    for piece in WRITTEN:
        talk.say("text", text=piece)
    talk.say("finish")
    assert talk.hear_all().last["finish_reason"] == "eos"
    assert spoken.take() == [SPOKEN]


def test_a_text_over_the_protocol_of_few_words(shared: Served, spoken: SpokenText) -> None:
    socket = shared.talk("/api/v1/speak").socket
    socket.send(json.dumps({"type": "start", "seed": SEED, **FIELDS}))
    socket.send(json.dumps({"type": "speak", "text": WRITTEN}))
    while True:
        message = socket.recv(HANG_S)
        if isinstance(message, str) and (event := json.loads(message))["type"] != "ready":
            assert event["type"] == "complete", event
            break
    assert spoken.take() == [SPOKEN]


@pytest.mark.parametrize("words", [{"Sean": "Shawn"}, {"en": {"Sean": "Shawn"}}, Lexicon({"Sean": "Shawn"})])
def test_pieces_and_the_whole_over_the_client(connect: Pair, spoken: SpokenText, words: Any) -> None:
    _, engine = connect()
    options = SpeechOptions(normalize="on", lexicon=words, language="english", seed=SEED)
    fed = engine.speak(None, options)
    for piece in WRITTEN:
        fed.feed(piece)
    fed.finish()
    assert fed.read_all().size
    assert engine.speak(WRITTEN, options).read_all().size
    assert spoken.take() == [SPOKEN, SPOKEN]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"normalize": "always"}, "normalize is 'always': Input should be 'off' or 'on'"),
        ({"normalize": "on", "clean_text": False}, "normalize changes the text, and clean_text=False"),
        ({"lexicon": {"a": "b"}, "clean_text": False}, "lexicon changes the text, and clean_text=False"),
        ({"lexicon": {"a": ""}}, "'a': the respelling has 0 characters, expected 1 to 256"),
        ({"lexicon": {"elvish": {"a": "b"}}}, "lexicon has a table 'elvish', expected one of "),
        ({"lexicon": {f"w{number}": "x" for number in range(1001)}}, "lexicon"),
        ({"lexicon": ["a"]}, "lexicon"),
    ],
)
def test_impossible_wishes_are_refused(shared: Served, fields: dict[str, Any], message: str) -> None:
    response = post(shared, "/v1/audio/speech", input=WRITTEN, **fields)
    assert response.status_code in (400, 422)
    assert message in response.json()["error"]["message"]


def test_a_client_hears_what_is_wrong(connect: Pair) -> None:
    _, engine = connect()
    with pytest.raises(InvalidRequestError, match="'a': the respelling has 0 characters"):
        engine.speak(WRITTEN, lexicon={"a": ""}).read_all()


def test_settings_hold_where_a_request_says_nothing(
    tiny_custom_voice: Checkpoint, spoken: SpokenText, tmp_path: Path
) -> None:
    words = tmp_path / "words.toml"
    words.write_text('"Sean" = "Shorn"\n"ran" = "wran"\n')
    with serving(tiny_custom_voice, normalize="on", lexicon=words) as served:
        post(served, "/v1/audio/speech", input=WRITTEN)
        post(served, "/v1/audio/speech", input=WRITTEN, normalize="off", lexicon={"Sean": "Shawn"})
        post(served, "/v1/audio/speech", input=WRITTEN, clean_text=False)
        words.write_text('"km" = "clicks"\n')
        post(served, "/v1/audio/speech", input=WRITTEN)
    assert spoken.take() == [
        "Shorn wran five kilometers on May third.",
        "Shawn wran 5 km on May 3.",
        WRITTEN,
        "Sean ran five clicks on May third.",
    ]


def test_lexicons_in_the_folder_of_voices_follow_the_voice_and_the_folder(
    tiny_custom_voice: Checkpoint, spoken: SpokenText, tmp_path: Path
) -> None:
    one, other = list(tiny_custom_voice.config.speakers)[:2]
    (tmp_path / "lexicon.toml").write_text('"Sean" = "Shawn"\n"km" = "clicks"\n')
    (tmp_path / f"{one}.lexicon.toml").write_text('[english]\n"Sean" = "Shane"\n')
    with serving(tiny_custom_voice, server={"voices_dir": tmp_path}) as served:

        def said(voice: str, **fields: Any) -> str:
            assert post(served, "/v1/audio/speech", input=WRITTEN, voice=voice, language="en", **fields).is_success
            (text,) = spoken.take()
            return text

        assert said(one) == "Shane ran 5 clicks on May 3."
        assert said(one.upper()) == "Shane ran 5 clicks on May 3."
        assert said(other) == "Shawn ran 5 clicks on May 3."
        assert said(one, lexicon={"Sean": "Sheen"}) == "Sheen ran 5 clicks on May 3."
        assert said(one, clean_text=False) == WRITTEN
        (tmp_path / f"{one}.lexicon.toml").write_text('"Sean" = "Shaun"\n"May" = "Mai"\n')
        assert said(one) == "Shaun ran 5 clicks on Mai 3."
        (tmp_path / f"{one}.lexicon.toml").write_text('"Sean" = \n')
        assert said(one) == "Shaun ran 5 clicks on Mai 3.", "a faulty file changes nothing"
        (tmp_path / f"{other}.lexicon.toml").write_text('"Sean" = \n')
        assert said(other) == "Shawn ran 5 clicks on May 3.", "one that was never right has no words"
        (tmp_path / f"{other}.lexicon.toml").write_text('"Sean" = "Shone"\n')
        assert said(other) == "Shone ran 5 clicks on May 3."
        (tmp_path / f"{one}.lexicon.toml").unlink()
        (tmp_path / "lexicon.toml").unlink()
        assert said(one) == WRITTEN
        assert httpx.get(served.url + "/v1/voices").is_success


def test_a_strict_server_knows_the_fields(serve: Server, spoken: SpokenText) -> None:
    served = serve(server={"strict": True})
    assert post(served, "/v1/audio/speech", input=WRITTEN, **FIELDS).status_code == 200
    assert spoken.take() == [SPOKEN]
