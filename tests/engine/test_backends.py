"""The engine on the real backends: text bit by bit, and a backend that dies in the middle of an utterance."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import megatalker.plugins
from megatalker.checkpoint import Checkpoint
from megatalker.engine import Engine, SpeechStream
from megatalker.interfaces import (
    CodecBackend,
    DecodeStep,
    Frame,
    StreamHandle,
    StreamRequest,
    TalkerBackend,
    TalkerCapabilities,
    TalkerDecoder,
)
from megatalker.plugins import BackendRegistry
from megatalker.settings import Settings
from megatalker_backends import plugin as builtin
from waiting import HANG_S

pytestmark = pytest.mark.slow

TEXT = "Hello there, this is a sentence of a few words, spoken while it is written."
FRAMES = 40
PLAIN = {"compiled": {"compile": "off"}}
"""Settings of backends: the same arithmetic, without minutes of compilation."""

Opener = Callable[..., Engine]


class Fragile(TalkerDecoder):
    """A real decoder whose twentieth decode call goes wrong."""

    def __init__(self, inner: TalkerDecoder, fail: Callable[[], None]) -> None:
        self.inner, self.fail, self.calls = inner, fail, 0

    @property
    def capabilities(self) -> TalkerCapabilities:
        return self.inner.capabilities

    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        return self.inner.prefill(requests)

    def decode(
        self, steps: Sequence[DecodeStep], *, return_logits: bool = False
    ) -> list[Frame] | Callable[[], list[Frame]]:
        self.calls += 1
        if self.calls == 20:
            self.fail()
        return self.inner.decode(steps, return_logits=return_logits)

    def release(self, stream: StreamHandle) -> None:
        self.inner.release(stream)

    def warmup(self) -> None:
        self.inner.warmup()

    def close(self) -> None:
        self.inner.close()


def fragile(name: str, fail: Callable[[], None]) -> object:
    """A plug-in with the backend ``name`` as ``fragile``."""

    class Plugin:
        @staticmethod
        @megatalker.plugins.hookimpl
        def megatalker_backends() -> list[TalkerBackend | CodecBackend]:
            spec = BackendRegistry([("builtin", builtin)]).talker(name)
            load = spec.load
            return [replace(spec, name="fragile", load=lambda *place: Fragile(load(*place), fail))]

    return Plugin


@pytest.fixture
def open_engine(tiny_custom_voice: Checkpoint) -> Iterator[Opener]:
    with ExitStack() as stack:

        def opener(*plugins: object, **settings: Any) -> Engine:
            registry = BackendRegistry([("builtin", builtin), *((f"extra{i}", p) for i, p in enumerate(plugins))])
            settings = {"device": "cpu", "codec": "streaming", "max_frames": FRAMES, "backends": PLAIN} | settings
            return stack.enter_context(
                Engine.open(Settings(**settings), checkpoint=tiny_custom_voice, registry=registry)
            )

        yield opener


def outcome(stream: SpeechStream) -> tuple[np.ndarray, np.ndarray]:
    chunks = list(stream)
    return np.concatenate([chunk.codes for chunk in chunks]), np.concatenate([chunk.pcm for chunk in chunks])


def feed_words(stream: SpeechStream) -> SpeechStream:
    for word in TEXT.split(" "):
        stream.feed(word + " ")
    stream.finish()
    return stream


@pytest.mark.parametrize("backend", ["reference", "compiled"])
def test_text_word_by_word_gives_the_codes_of_the_text_at_once(open_engine: Opener, backend: str) -> None:
    engine = open_engine(backend=backend)
    for seed in range(2):
        whole, _ = outcome(engine.speak(TEXT, seed=seed, layout="interleaved", return_codes=True))
        words, _ = outcome(feed_words(engine.speak(None, seed=seed, return_codes=True)))
        np.testing.assert_array_equal(words, whole)


@pytest.mark.parametrize(
    ("dying", "heir", "layout", "hangs"),
    [
        ("reference", "compiled", "upfront", False),
        ("compiled", "reference", "interleaved", False),
        ("compiled", "reference", "upfront", True),
    ],
)
@pytest.mark.usefixtures("unrehearsed")  # else one stream may wait for the other on a busy machine
def test_streams_of_a_dying_backend_continue_exactly(
    open_engine: Opener, dying: str, heir: str, layout: str, hangs: bool
) -> None:
    late = threading.Event()

    def die() -> None:
        if hangs:
            late.wait(HANG_S)
        raise RuntimeError("device lost")

    def speak(engine: Engine) -> list[SpeechStream]:
        sampled = replace(engine.checkpoint.sampling, min_new_tokens=FRAMES, seed=1)
        greedy = replace(sampled, do_sample=False, predictor_do_sample=False)
        with engine.borrow_backends():
            return [
                engine.speak(TEXT, sampling=sampling, layout=layout, return_codes=True)
                for sampling in (sampled, greedy)
            ]

    expected = [outcome(stream) for stream in speak(open_engine(backend=heir))]
    backends = PLAIN | {"fragile": PLAIN.get(dying, {})}
    engine = open_engine(
        fragile(dying, die), backend="fragile", fallbacks=(heir,), step_deadline_s=3.0, backends=backends
    )
    engine.warmup()
    streams = speak(engine)
    for stream, (codes, pcm) in zip(streams, expected, strict=True):
        found_codes, found_pcm = outcome(stream)
        np.testing.assert_array_equal(found_codes, codes)
        np.testing.assert_allclose(found_pcm, pcm, atol=1e-4)
        assert [(switch.origin, switch.target) for switch in stream.switches] == [("fragile", heir)]
        assert stream.switches[0].frame > 0
    late.set()


def test_the_streaming_codec_hands_over_to_the_reference_codec(open_engine: Opener) -> None:
    _, expected = outcome(open_engine(backend="reference").speak(TEXT, seed=1, return_codes=True))
    engine = open_engine(backend="reference")
    with engine.borrow_backends() as (_, codec):
        decode, calls = codec.decode, []

        def dying(*arguments: Any) -> Any:
            calls.append(arguments)
            if len(calls) == 4:
                raise RuntimeError("device lost")
            return decode(*arguments)

        codec.decode = dying  # type: ignore[method-assign]
    stream = engine.speak(TEXT, seed=1, return_codes=True)
    _, pcm = outcome(stream)
    np.testing.assert_allclose(pcm, expected, atol=1e-4)
    assert [(switch.kind, switch.target) for switch in stream.switches] == [("codec", "reference")]
