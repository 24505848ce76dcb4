"""Judges of a trial: how they are chosen, what they are asked, and those that can be run here."""

import importlib.util
import io
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from megatalker import hookimpl
from megatalker.engine import Engine
from megatalker.errors import BackendNotFoundError, BackendUnavailableError, MalformedResultError, PluginError
from megatalker.plugins import BackendRegistry
from megatalker.plugins.judges import JudgeContext, SpeechJudge
from megatalker_conformance.intelligibility import disordered
from megatalker_conformance.quality import plugin
from megatalker_conformance.quality.judges import deepgram
from megatalker_conformance.quality.panel import seat

CONTEXT = JudgeContext("english", torch.device("cpu"), frozenset({"yes", "no"}))
NOISE = (0.1 * np.random.default_rng(0).standard_normal(48_000)).astype(np.float32)
STRANGER = SpeechJudge(
    name="deaf", kind="recogniser", summary="", version=lambda _: "1", probe=lambda _: None, load=lambda _: lambda _: ""
)


class Judges:
    """A plug-in with these judges."""

    def __init__(self, *judges: object) -> None:
        self._judges = judges

    @hookimpl
    def megatalker_judges(self) -> list[object]:
        return list(self._judges)


def registry(*judges: object) -> BackendRegistry:
    return BackendRegistry([("strangers", Judges(*judges))])


def test_judges_that_come_along_are_registered_as_a_strangers_are() -> None:
    found = BackendRegistry([("judges", plugin), ("strangers", Judges(replace(STRANGER, rank=99)))])
    names = [judge.name for judge in found.judges("recogniser")]
    assert names == ["deaf", "whisper", "qwen_asr", "pocketsphinx", "deepgram"]
    assert [judge.name for judge in found.judges("similarity")] == ["wavlm", "speechbrain", "resemblyzer"]
    assert [judge.name for judge in found.judges("opinion")] == ["utmos", "dnsmos"]
    assert found.talkers == []


@pytest.mark.parametrize(
    ("judges", "message"),
    [
        ((STRANGER, STRANGER), "a recogniser judge named 'deaf' already"),
        (("deaf",), "returned str from megatalker_judges"),
        ((replace(STRANGER, judges_version=2),), "version 2 of judges, this megatalker has 1"),
        ((replace(STRANGER, name="none"),), "'none' cannot be"),
        ((replace(STRANGER, kind="tasting"),), "tasting judge 'deaf' cannot be"),
    ],
)
def test_what_cannot_judge_is_refused_with_its_plug_in(judges: tuple[object, ...], message: str) -> None:
    with pytest.raises(PluginError, match=message) as refused:
        registry(*judges)
    assert "'strangers'" in str(refused.value)


def test_the_best_that_can_judge_is_taken_and_reasons_are_kept() -> None:
    def fail(_: JudgeContext) -> Any:
        raise OSError("no network")

    best = replace(STRANGER, name="best", rank=9, load=fail)
    absent = replace(STRANGER, name="absent", rank=8, probe=lambda _: "it is not installed")
    costly = replace(STRANGER, name="costly", rank=-1)
    judges = registry(STRANGER, best, absent, costly)
    found = seat(judges, "recogniser", None, CONTEXT)
    assert found is not None
    assert found.name == "deaf"
    assert seat(judges, "recogniser", "none", CONTEXT) is None
    with pytest.raises(BackendUnavailableError, match="best: OSError: no network"):
        seat(judges, "recogniser", "best", CONTEXT)
    with pytest.raises(BackendNotFoundError, match="recogniser judge 'nobody' is not installed; installed: absent"):
        seat(judges, "recogniser", "nobody", CONTEXT)
    with pytest.raises(BackendUnavailableError, match="best: OSError: no network; absent: it is not installed"):
        seat(registry(best, absent, costly), "recogniser", None, CONTEXT)


def test_a_model_goes_to_the_judge() -> None:
    named = replace(STRANGER, version=lambda context: f"1, {context.model}")
    found = seat(registry(named), "recogniser", "deaf:folder/large", CONTEXT)
    assert found is not None
    assert found.version.startswith("1, folder/large, hears by ")


def answering(answer: object) -> Any:
    found = seat(registry(replace(STRANGER, load=lambda _: lambda _: answer)), "recogniser", "deaf", CONTEXT)
    assert found is not None
    return found


def test_malformed_answers_are_refused() -> None:
    with pytest.raises(MalformedResultError, match="returned int, expected str"):
        answering(1).text(NOISE)
    for nothing in ([], [0.0, 0.0], [np.nan]):
        with pytest.raises(MalformedResultError, match="no finite vector"):
            answering(nothing).embedding(NOISE)
    with pytest.raises(MalformedResultError, match="expected a finite number"):
        answering(np.inf).score(NOISE)
    assert np.linalg.norm(answering([3.0, 4.0]).embedding(NOISE)) == pytest.approx(1)


@dataclass
class AskedDeepgram:
    """A Deepgram of our own."""

    url: str = ""
    paths: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    rates: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    """Status codes of the next answers; then 200."""
    answer: bytes = json.dumps({"results": {"channels": [{"alternatives": [{"transcript": "yes no"}]}]}}).encode()


@contextmanager
def serving(asked: AskedDeepgram) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Nothing."""

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            asked.paths.append(self.path)
            asked.keys.append(self.headers["Authorization"])
            asked.rates.append(soundfile.info(io.BytesIO(content)).samplerate)
            self.send_response(asked.statuses.pop(0) if asked.statuses else 200)
            self.send_header("Content-Length", str(len(asked.answer)))
            self.end_headers()
            self.wfile.write(asked.answer)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    asked.url = f"http://127.0.0.1:{server.server_port}/v1/listen"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_deepgram_is_asked_with_the_key_and_again_after_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(deepgram.KEY, "secret")
    asked = AskedDeepgram(statuses=[429, 503])
    with serving(asked):
        hear = deepgram.load(CONTEXT, url=asked.url, first_wait_s=0.001)
        assert hear(NOISE) == "yes no"
    assert asked.paths == ["/v1/listen?model=nova-3&language=en"] * 3
    assert asked.keys == ["Token secret"] * 3
    assert asked.rates == [24_000] * 3


@pytest.mark.parametrize(
    ("statuses", "answer", "message"),
    [
        ([401], b"bad key", "Deepgram answered 401: bad key"),
        ([500] * 5, b"", "Deepgram answered 500"),
        ([], b"{}", "no transcript"),
    ],
)
def test_deepgrams_refusals_are_told(
    statuses: list[int], answer: bytes, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(deepgram.KEY, "secret")
    asked = AskedDeepgram(statuses=statuses, answer=answer)
    with serving(asked):
        hear = deepgram.load(CONTEXT, url=asked.url, first_wait_s=0.001)
        with pytest.raises(NotImplementedError, match=message):
            hear(NOISE)


def test_deepgram_needs_a_key_and_is_never_chosen_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(deepgram.KEY, raising=False)
    assert deepgram.DEEPGRAM.rank < 0
    assert deepgram.KEY in str(deepgram.DEEPGRAM.probe(CONTEXT))


def module(monkeypatch: pytest.MonkeyPatch, name: str, **content: object) -> None:
    """Put a stand-in in the place of a library."""
    stand_in = ModuleType(name)
    stand_in.__dict__.update(content)
    monkeypatch.setitem(sys.modules, name, stand_in)


def judge(name: str) -> SpeechJudge:
    provided = {judge.name: judge for judge in plugin.megatalker_judges()}
    return provided[name]


def test_whisper_is_asked_as_its_library_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    class WhisperModel:
        def __init__(self, model: str, device: str, device_index: int) -> None:
            assert (model, device, device_index) == ("large-v3", "cuda", 1)

        def transcribe(
            self, audio: np.ndarray, language: str, beam_size: int, condition_on_previous_text: bool
        ) -> tuple[Iterator[Any], None]:
            assert (len(audio), audio.dtype, language, condition_on_previous_text) == (32_000, np.float32, "en", False)
            return iter([SimpleNamespace(text=" Yes."), SimpleNamespace(text=" No.")]), None

    module(monkeypatch, "faster_whisper", WhisperModel=WhisperModel)
    assert judge("whisper").load(replace(CONTEXT, device=torch.device("cuda:1")))(NOISE) == "Yes. No."


def test_qwen_asr_is_asked_as_its_library_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    class Qwen3ASRModel:
        @classmethod
        def from_pretrained(cls, name: str, dtype: torch.dtype, device_map: str) -> "Qwen3ASRModel":
            assert (name, dtype, device_map) == ("Qwen/Qwen3-ASR-1.7B", torch.float32, "cpu")
            return cls()

        def transcribe(self, audio: tuple[np.ndarray, int], language: str) -> list[Any]:
            assert (len(audio[0]), audio[1], language) == (32_000, 16_000, "English")
            return [SimpleNamespace(text="Yes no.")]

    module(monkeypatch, "qwen_asr", Qwen3ASRModel=Qwen3ASRModel)
    assert judge("qwen_asr").load(CONTEXT)(NOISE) == "Yes no."


def test_speechbrain_is_asked_as_its_library_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    class EncoderClassifier:
        @classmethod
        def from_hparams(cls, source: str, run_opts: dict[str, str]) -> "EncoderClassifier":
            assert (source, run_opts) == ("speechbrain/spkrec-ecapa-voxceleb", {"device": "cpu"})
            return cls()

        def encode_batch(self, wavs: torch.Tensor) -> torch.Tensor:
            assert wavs.shape == (1, 32_000)
            return torch.ones(1, 1, 192)

    for name in ("speechbrain", "speechbrain.inference"):
        module(monkeypatch, name)
    module(monkeypatch, "speechbrain.inference.speaker", EncoderClassifier=EncoderClassifier)
    assert judge("speechbrain").load(CONTEXT)(NOISE).shape == (192,)


def test_utmos_is_asked_as_its_program_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    class Predictor:
        def to(self, device: torch.device) -> "Predictor":
            return self

        def __call__(self, wave: torch.Tensor, rate: int) -> torch.Tensor:
            assert (wave.shape, rate) == ((1, 48_000), 24_000)
            return torch.tensor([4.25])

    def load(repository: str, entry: str, trust_repo: bool) -> Predictor:
        assert (repository, entry, trust_repo) == ("tarepan/SpeechMOS:v1.2.0", "utmos22_strong", True)
        return Predictor()

    monkeypatch.setattr(torch.hub, "load", load)
    assert judge("utmos").load(CONTEXT)(NOISE) == 4.25


def test_wavlm_embeds_with_the_library_itself(tmp_path: Any) -> None:
    """Random weights: shape, repetition and that two sounds differ; what published weights say is not shown here."""
    transformers = pytest.importorskip("transformers")
    small = transformers.WavLMConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, conv_dim=(8,) * 7,
        num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=2, tdnn_dim=(8, 8, 8, 8, 16), xvector_output_dim=12,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.WavLMForXVector(small).save_pretrained(tmp_path)
    transformers.Wav2Vec2FeatureExtractor().save_pretrained(tmp_path)
    embed = judge("wavlm").load(replace(CONTEXT, model=str(tmp_path)))
    found = embed(NOISE)
    assert found.shape == (12,)
    assert np.array_equal(found, embed(NOISE))
    assert not np.allclose(found, embed(np.sin(np.arange(48_000, dtype=np.float32) / 9)), atol=0)
    assert embed(NOISE[:100]).shape == (12,)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
def test_packages_that_bring_weights_judge_the_demo_recording() -> None:
    """The demo voices: two takes of one resemble each other more than another does, and disorder sounds worse."""
    for name in ("resemblyzer", "speechmos", "pocketsphinx"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    takes = (("robin", 1), ("robin", 2), ("mina", 1))
    with Engine.open(checkpoint="demo", device="cpu") as engine:
        speech = [
            engine.speak("Yes no hello stop go.", voice=voice, language="english", seed=seed).read_all()
            for voice, seed in takes
        ]
    embed = judge("resemblyzer").load(CONTEXT)
    one, again, other = (embed(pcm) / np.linalg.norm(embed(pcm)) for pcm in speech)
    assert one @ again > 0.9 > one @ other
    rate = judge("dnsmos").load(CONTEXT)
    assert 1 < rate(disordered(speech[0])) < rate(speech[0]) < 5
    hear = judge("pocketsphinx").load(replace(CONTEXT, vocabulary=frozenset({"yes", "no", "hello", "stop", "go"})))
    assert hear(speech[0]) == "yes no hello stop go"
