"""Messages that nobody would send, over both WebSockets: each is answered or obeyed, none is a defect."""

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed, ConnectionClosedOK

from megatalker.checkpoint import Checkpoint
from serving import TEXT, Served, serving
from waiting import HANG_S

EXAMPLES = 100
NAMES = st.sampled_from(["", "a", "é", "x" * 64, "x" * 65])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
TEXTS = st.sampled_from([TEXT, "", " ", "a\0b", "<|im_", "end|>", "👩‍👩‍👧", "\u202e", "3.14159 " * 40]) | st.text(
    max_size=20
)
PLAUSIBLE = {
    "id": NAMES,
    "text": TEXTS,
    "voice": st.sampled_from(["ryan", "Ryan", "nobody"]),
    "speaker": st.sampled_from(["ryan", "Ryan", "nobody"]),
    "voice_file": st.sampled_from(["é", "!", "aGk=", "A" * 400]),
    "language": st.sampled_from(["auto", "English", "klingon"]),
    "instruct": TEXTS,
    "sampling": st.dictionaries(
        st.sampled_from(["temperature", "top_k", "top_p", "predictor_top_k", "seed", "repetition_penalty", "heat"]),
        ANYTHING,
        max_size=3,
    ),
    "seed": st.integers(-1, 2**64),
    "layout": st.sampled_from(["auto", "upfront", "interleaved"]),
    "max_frames": st.integers(0, 41),
    "max_new_tokens": st.integers(0, 41),
    "max_ahead_s": st.floats(),
    "format": st.sampled_from(["s16le", "f32le", "mp3"]),
    "return_codes": st.booleans(),
}
KINDS = ["open", "text", "finish", "cancel", "start", "speak", "stop"]


@st.composite
def messages(draw: st.DrawFn, kinds: list[str], fields: list[str]) -> str | bytes:
    """Mostly ones that are nearly right."""
    shape = draw(st.integers(0, 9))
    if shape == 0:
        return draw(st.text(max_size=30) | st.binary(max_size=30))
    if shape == 1:
        return json.dumps(draw(ANYTHING))
    message = {"type": draw(st.sampled_from(kinds if shape > 2 else KINDS))}
    for field in draw(st.lists(st.sampled_from(fields), max_size=3, unique=True)):
        message[field] = draw(PLAUSIBLE[field] if shape > 3 else ANYTHING)
    return json.dumps(message)


@pytest.fixture(scope="module")
def served(tiny_custom_voice: Checkpoint) -> Iterator[Served]:
    with serving(tiny_custom_voice, max_frames=40) as served:
        yield served


def events(served: Served, path: str, sent: list[str | bytes], probe: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the answers to these messages, up to the answer to ``probe``, which quotes it."""
    heard: list[dict[str, Any]] = []
    with served.talk(path).socket as connection:
        with suppress(ConnectionClosed):
            for message in (*sent, json.dumps(probe)):
                connection.send(message)
        with suppress(ConnectionClosedOK):  # a client may ask for the end
            while not heard or "probing" not in json.dumps(heard[-1]):
                message = connection.recv(HANG_S)
                heard += [json.loads(message)] if isinstance(message, str) else []
    return heard


SPEAK = messages(
    ["open", "open", "open", "text", "finish", "cancel"],
    [name for name in PLAUSIBLE if name not in ("speaker", "max_new_tokens")],
)
PLAIN = messages(
    ["start", "start", "speak", "speak", "cancel", "stop"],
    ["id", "text", "speaker", "language", "max_new_tokens", "seed", "layout"],
)


@pytest.mark.slow
@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(sent=st.lists(SPEAK, min_size=1, max_size=8))
def test_the_socket_for_text_that_is_being_written(
    served: Served, caplog: pytest.LogCaptureFixture, sent: list[str | bytes]
) -> None:
    heard = events(served, "/v1/speak", sent, {"type": "probing"})
    assert "InternalError" not in json.dumps(heard)
    assert "an utterance failed" not in caplog.text


@pytest.mark.slow
@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(sent=st.lists(PLAIN, min_size=1, max_size=8))
def test_the_plain_socket(served: Served, caplog: pytest.LogCaptureFixture, sent: list[str | bytes]) -> None:
    begun: list[str | bytes] = ['{"type": "start"}']
    heard = events(served, "/api/v1/speak", begun + sent, {"type": "probing"})
    assert heard[0]["type"] == "ready"
    assert "INTERNAL_ERROR" not in json.dumps(heard)
    assert "an utterance failed" not in caplog.text
