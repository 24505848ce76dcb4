"""Players that can only open an address: GET speaks where a setting says so."""

from collections.abc import Iterator

import httpx
import pytest

from http_client import post
from megatalker.checkpoint import Checkpoint
from serving import TEXT, Served, serving
from waiting import HANG_S

FIELDS = {"input": TEXT, "response_format": "wav", "seed": "7"}


@pytest.fixture(scope="module")
def open_to_players(tiny_custom_voice: Checkpoint) -> Iterator[Served]:
    with serving(tiny_custom_voice, server={"get_speech": True}) as served:
        yield served


def get(served: Served, **fields: str) -> httpx.Response:
    return httpx.get(served.url + "/v1/audio/speech", params=fields, timeout=HANG_S)


def test_an_address_speaks_as_a_request_does(open_to_players: Served) -> None:
    spoken = get(open_to_players, **FIELDS)
    assert spoken.headers["content-type"] == "audio/wav"
    assert spoken.content == post(open_to_players, input=TEXT, response_format="wav", seed=7).content
    whole = get(open_to_players, **FIELDS, stream="false", speed="2")
    assert int(whole.headers["content-length"]) == len(whole.content) < len(spoken.content)


def test_what_is_wrong_is_told(open_to_players: Served) -> None:
    assert get(open_to_players).status_code == 400
    assert "input" in get(open_to_players).json()["error"]["message"]
    assert get(open_to_players, **FIELDS, voice="nobody").status_code == 400
    assert get(open_to_players, **FIELDS, other="1").headers["x-megatalker-ignored"] == "other"


def test_it_is_off_by_default_and_needs_the_key(tiny_custom_voice: Checkpoint) -> None:
    with serving(tiny_custom_voice) as served:
        refused = get(served, **FIELDS)
        assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
    with serving(tiny_custom_voice, server={"get_speech": True, "api_key": "secret"}) as served:
        assert get(served, **FIELDS).status_code == 401
