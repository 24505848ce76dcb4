"""``POST /v1/audio/speech/batch``: the same speech as one by one, errors by item, and shares like other requests."""

import base64
import threading
from typing import Any

import httpx
import pytest

from http_client import post
from megatalker.checkpoint import Checkpoint
from megatalker.serving.server.batch_routes import AT_ONCE, MOST_ITEMS
from megatalker.serving.server.keyring import hash_key
from serving import ENDLESS, TEXT, Served, Server, endless, fakes_with, serving
from waiting import HANG_S, eventually


def ask(served: Served, headers: Any = None, **body: Any) -> httpx.Response:
    return httpx.post(served.url + "/v1/audio/speech/batch", json=body, headers=headers, timeout=HANG_S)


def test_items_are_spoken_as_one_by_one_and_a_bad_one_alone_fails(serve: Server) -> None:
    served = serve()
    items = [
        {"input": TEXT, "seed": 1},
        {"input": TEXT, "voice": "nobody"},
        {"input": "Good morning.", "seed": 2, "voice": "ryan", "response_format": "pcm"},
        {"input": TEXT, "speaker": "vivian", "seed": 4},
    ]
    answer = ask(served, items=items, voice="serena", model="any").raise_for_status()
    body = answer.json()
    assert (body["total"], body["succeeded"], body["failed"]) == (4, 3, 1)
    assert [one["index"] for one in body["results"]] == [0, 1, 2, 3]
    assert [one["status"] for one in body["results"]] == ["success", "error", "success", "success"]
    assert "unknown speaker 'nobody'" in body["results"][1]["error"]
    assert [one.get("media_type") for one in body["results"]] == ["audio/wav", None, "audio/pcm", "audio/wav"]
    for place, wishes in (
        (0, {"input": TEXT, "voice": "serena", "seed": 1, "response_format": "wav"}),
        (2, {"input": "Good morning.", "voice": "ryan", "seed": 2, "response_format": "pcm"}),
        (3, {"input": TEXT, "voice": "vivian", "seed": 4, "response_format": "wav"}),
    ):
        alone = post(served, **wishes, stream=False).raise_for_status().content
        assert base64.b64decode(body["results"][place]["audio_data"]) == alone
    assert answer.headers["x-megatalker-source-type"]


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ({}, "items is None, expected a list of 1 to 32"),
        ({"items": []}, "items is a list of 0"),
        ({"items": [{"input": "x"}] * (MOST_ITEMS + 1)}, "items is a list of 33"),
        ({"items": ["x"]}, "items.0 is 'x', expected an object"),
        ({"items": [{"input": TEXT}, {}]}, "items.1: input is missing"),
        ({"items": [{"input": ""}]}, "items.0: input is empty"),
        ({"items": [{"input": TEXT, "seed": "x"}]}, "items.0: seed"),
        ({"items": [{"input": TEXT, "stream_format": "sse"}]}, "a batch answers with whole files"),
        ({"items": [{"input": TEXT}], "response_format": "mp9"}, "response_format"),
    ],
)
def test_a_malformed_batch_is_refused_before_anything_is_spoken(
    serve: Server, body: dict[str, Any], complaint: str
) -> None:
    served = serve()
    refused = ask(served, **body)
    assert (refused.status_code, complaint in refused.json()["error"]["message"]) == (400, True), refused.text
    assert not served.engine.metrics().streams


def test_a_batch_takes_few_streams_at_a_time_and_keeps_to_the_limits_of_its_key(
    tiny_custom_voice: Checkpoint,
) -> None:
    most, running, lock = 0, 0, threading.Lock()
    keys = {"limited": {"hash": hash_key("k"), "max_streams": 2}}
    with serving(tiny_custom_voice, fakes_with(), server={"keys": keys}) as served:
        speak = served.engine.speak_for

        def counting(*given: Any, **wanted: Any) -> Any:
            nonlocal most
            with lock:
                most = max(most, len(served.server.service.running) + 1)
            return speak(*given, **wanted)

        served.engine.speak_for = counting  # type: ignore[method-assign]
        body = ask(served, {"Authorization": "Bearer k"}, items=[{"input": TEXT, "seed": n} for n in range(9)]).json()
        assert running == 0
    assert (body["succeeded"], most) == (9, 2), "items wait for others of their batch"


def test_a_client_that_goes_away_frees_all_rows(serve: Server) -> None:
    fakes = endless()
    served = serve(fakes, **ENDLESS)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            served.url + "/v1/audio/speech/batch", json={"items": [{"input": TEXT}] * (2 * AT_ONCE)}, timeout=1.0
        )
    eventually(lambda: served.rows_free(fakes) and not served.server.service.running, "the server has forgotten it")
