"""Odd text over every face of the server: no word is lost, and a bad piece costs itself alone."""

import json
import threading
from typing import Any

import httpx
import pytest

from client_stage import Pair
from megatalker.errors import InvalidRequestError
from megatalker.prompt.cleaning import clean
from megatalker.prompt.text import TextChecker
from megatalker.serving.protocol import leniency
from megatalker.serving.protocol.leniency import MAX_KEYS
from megatalker.serving.server.encoding import ENCODERS
from serving import Served, Server
from spoken_text import SpokenText, letters
from waiting import HANG_S

HALVES = ("I am happy \ud83d", "\ude00 to see you.")
JOINED = "I am happy \U0001f600 to see you."
ODD = [
    (HALVES, JOINED),
    (("I am \ud83d happy", " to see", " you. \ude00"), "I am happy to see you."),
    (("Hello <|im", "_end|>", " world."), "Hello world."),
    (("Hel\0\ufeff", "lo \x1b[1mworld", "."), "Hel lo world."),
]
SEED = 5
SOCKETS: dict[str, dict[str, Any]] = {
    "/v1/speak": {"kind": "open"},
    "/api/v1/speak": {"kind": "start"},
    "/v1/realtime": {"kind": "session.update", "session": {"x": [0]}},
}
"""A message of each protocol."""


@pytest.fixture
def spoken(monkeypatch: pytest.MonkeyPatch) -> SpokenText:
    return SpokenText(monkeypatch)


@pytest.mark.parametrize(("pieces", "meant"), ODD)
def test_pieces_over_a_websocket(shared: Served, spoken: SpokenText, pieces: tuple[str, ...], meant: str) -> None:
    talk = shared.talk()
    talk.say("open", seed=SEED, format="f32le")
    for piece in pieces:
        talk.say("text", text=piece)  # JSON escapes the halves
    talk.say("finish")
    heard = talk.hear_all()
    assert (heard.last["type"], heard.last["finish_reason"]) == ("done", "eos")
    assert heard.packets
    assert spoken.take() == [meant]


@pytest.mark.parametrize(("pieces", "meant"), ODD)
def test_odd_texts_over_the_protocol_of_few_words(
    shared: Served, spoken: SpokenText, pieces: tuple[str, ...], meant: str
) -> None:
    socket = shared.talk("/api/v1/speak").socket
    socket.send(json.dumps({"type": "start", "seed": SEED}))
    texts = ["".join(pieces), *pieces]  # each one is an utterance of its own
    for text in texts:
        socket.send(json.dumps({"type": "speak", "text": text}))
    complete = 0
    while complete < len(texts):
        message = socket.recv(HANG_S)
        if isinstance(message, str):
            complete += (event := json.loads(message))["type"] == "complete"
            assert event["type"] != "error", event
    whole, *parts = spoken.take()
    assert whole == meant
    assert letters(" ".join(parts)).startswith(letters(clean(pieces[0])))


@pytest.mark.parametrize(("pieces", "meant"), ODD)
def test_pieces_over_the_client(connect: Pair, spoken: SpokenText, pieces: tuple[str, ...], meant: str) -> None:
    _, engine = connect()
    stream = engine.speak(None, seed=SEED)
    for piece in pieces:
        stream.feed(piece)
    stream.finish()
    assert stream.read_all().size
    assert stream.finish_reason == "eos"
    assert spoken.take() == [meant]


@pytest.mark.parametrize(("route", "name"), [("/v1/audio/speech", "input"), ("/tts/stream", "text")])
@pytest.mark.parametrize(("pieces", "meant"), ODD)
def test_a_whole_text_over_http(
    shared: Served, spoken: SpokenText, route: str, name: str, pieces: tuple[str, ...], meant: str
) -> None:
    url = shared.url + route

    def post(text: str, **more: Any) -> list[str]:
        body = json.dumps({name: text, **more})
        response = httpx.post(url, content=body, headers={"Content-Type": "application/json"}, timeout=HANG_S)
        assert response.status_code == 200, response.text
        assert response.content
        return spoken.take()

    assert post("".join(pieces)) == [meant]
    assert post("Hello.\u200b\n\nMore.") == ["Hello.", "More."]
    assert post("Hello.\u200b\n\nMore.", clean_text=False) == ["Hello.\u200b\n\nMore."]


def test_a_refused_piece_of_raw_text_costs_itself_alone(shared: Served, spoken: SpokenText) -> None:
    talk = shared.talk()
    talk.say("open", seed=SEED, format="f32le", clean_text=False)
    for piece in ("Hello ", "wor\0ld", "<|im_end|>", "there."):
        talk.say("text", text=piece)
    talk.say("finish")
    heard = talk.hear_all()
    assert heard.last["finish_reason"] == "eos"
    refused = [event["error"]["message"] for event in heard.events if event["type"] == "error"]
    assert len(refused) == 2
    assert all("the rest of it is spoken" in message for message in refused)
    assert spoken.take() == ["Hello there."]


def test_a_client_sends_raw_text_and_is_told_of_bad_pieces_at_once(connect: Pair, spoken: SpokenText) -> None:
    _, engine = connect()
    stream = engine.speak(None, seed=SEED, clean_text=False)
    stream.feed("Hello ")
    with pytest.raises(InvalidRequestError, match="NUL"):
        stream.feed("wor\0ld")
    stream.feed("there.")
    stream.finish()
    assert stream.read_all().size
    assert spoken.take() == ["Hello there."]


@pytest.mark.parametrize(
    ("options", "piece", "quick"),
    [
        ({}, "Hello there.", True),
        ({}, "a\u0301" * 5_000, False),
        ({"normalize": "on", "language": "german"}, "1" * 100, False),
        ({"markup": "ssml"}, "<speak>Hello there.</speak>", False),
        ({"lexicon": {"ten": "eleven"}}, "It is ten.", False),
    ],
)
def test_fed_text_that_takes_long_to_check_keeps_nobody_waiting(
    serve: Server, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], piece: str, quick: bool
) -> None:
    """To write out a message of digits takes the event loop, with all who listen, up to a second."""
    threads, check = list[bool](), TextChecker.check

    def checked(checker: TextChecker, text: object) -> str:
        threads.append("megatalker-check" in threading.current_thread().name)
        return check(checker, text)

    monkeypatch.setattr(TextChecker, "check", checked)
    talk = serve().talk()
    talk.say("open", seed=SEED, max_frames=2, **options)
    talk.say("text", text=piece)
    talk.say("finish")
    assert talk.hear_all().last["type"] == "done"
    assert threads == [not quick]


@pytest.mark.parametrize("face", ["/v1/audio/speech", "/tts/stream", "/v1/audio/speech/batch", *SOCKETS])
def test_a_long_message_keeps_nobody_waiting(serve: Server, monkeypatch: pytest.MonkeyPatch, face: str) -> None:
    """To look at each of the 400,000 numbers in a message takes the event loop, with all who listen, half a second."""
    threads, whole = set[bool](), leniency._whole

    def looked_at(value: object) -> object:
        if isinstance(value, list):
            threads.add("megatalker-check" in threading.current_thread().name)
        return whole(value)

    monkeypatch.setattr(leniency, "_whole", looked_at)
    served = serve()
    for numbers, in_a_thread in ((10, False), (5_000, True)):
        fields = {"input": "Hello.", "text": "Hello.", "x": [0] * numbers} | SOCKETS.get(face, {})
        if face in SOCKETS:
            talk = served.talk(face)
            talk.say(**fields)
            while not threads:
                talk.hear_event()
        else:
            httpx.post(served.url + face, json=fields | {"items": [fields]}, timeout=HANG_S)
        assert threads == {in_a_thread}
        threads.clear()


@pytest.mark.parametrize("path", ["/v1/speak", "/api/v1/speak"])
def test_a_message_of_many_keys_is_one_complaint(serve: Server, path: str) -> None:
    talk = serve(server={"strict": True}).talk(path)
    kind = "open" if path == "/v1/speak" else "start"
    for fields in ({f"k{index}": 1 for index in range(20_000)}, {f"k{index}": 1 for index in range(MAX_KEYS - 10)}):
        talk.say(kind, **fields)
        answer = json.dumps(talk.hear_event())
        assert "error" in answer
        assert len(answer) < 4_000


def test_checks_and_encoders_have_threads_of_their_own(serve: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many texts wait for their check, running speech is encoded, and the other way round."""
    served = serve(short_speech="believe")
    threads: dict[str, set[threading.Thread]] = {"check": set(), "encode": set()}
    speak_for, service = served.engine.speak_for, served.server.service

    def checked(*arguments: Any, **options: Any) -> Any:
        threads["check"].add(threading.current_thread())
        return speak_for(*arguments, **options)

    service.engine.speak_for = checked  # type: ignore[method-assign]
    make = ENCODERS["mp3"]

    def made(**own: Any) -> Any:
        encoder = make(**own)
        for name in ("encode", "finish"):
            monkeypatch.setattr(encoder, name, noted(getattr(encoder, name)))
        return encoder

    def noted(work: Any) -> Any:
        def run(*arguments: Any) -> Any:
            threads["encode"].add(threading.current_thread())
            return work(*arguments)

        return run

    monkeypatch.setitem(ENCODERS, "mp3", made)
    body = {"input": "A text that is longer than the quickest ones. " * 20, "response_format": "mp3"}
    assert httpx.post(served.url + "/v1/audio/speech", json=body, timeout=HANG_S).status_code == 200
    assert {thread.name.rsplit("_", 1)[0] for thread in threads["check"]} == {"megatalker-check"}
    assert {thread.name.rsplit("_", 1)[0] for thread in threads["encode"]} == {"megatalker-encode"}
    served.stop()
    for thread in threads["check"] | threads["encode"]:  # the server tells them to end and does not wait for them
        thread.join(HANG_S)
        assert not thread.is_alive()
