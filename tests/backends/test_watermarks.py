"""Perth and AudioSeal as streams: the samples that the published programs make of the whole recording."""

import importlib
import sys
import types
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from megatalker.errors import UnsupportedError
from megatalker.plugins.watermark import WatermarkModel, WatermarkPlugin
from megatalker_backends.watermarks import audioseal, perth

Samples = np.ndarray[Any, np.dtype[np.float32]]
SECONDS = 3.2


@pytest.fixture(scope="module")
def speech() -> Samples:
    """Voiced sound: harmonics of a pitch that moves, under a slow envelope."""
    time = np.arange(round(SECONDS * 24_000)) / 24_000
    phase = 2 * np.pi * np.cumsum(120 + 20 * np.sin(2 * np.pi * 0.7 * time)) / 24_000
    sound = sum(np.sin(harmonic * phase) / harmonic for harmonic in range(1, 40))
    return (0.2 * sound * (0.55 + 0.45 * np.sin(2 * np.pi * 3 * time))).astype(np.float32)


def marked(model: WatermarkModel, speech: Samples) -> Samples:
    stream = model.open()
    parts = [stream.mark(frame) for frame in speech.reshape(-1, 1920)]
    return np.concatenate([*parts, stream.finish()])


@pytest.fixture(scope="module")
def perth_model() -> perth.PerthModel:
    if find_spec("perth") is None:
        pytest.skip("needs resemble-perth")
    return perth.load()


@pytest.fixture(scope="module")
def published(perth_model: perth.PerthModel) -> Any:
    """The published networks, whose package cannot be imported: it wants pkg_resources and torchaudio."""
    spec = find_spec("perth")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "perth_net"
    before = dict(sys.modules)
    for name in ("perth_net", "perth_net.perth_net_implicit"):
        module = types.ModuleType(name)
        module.__path__ = [str(folder.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = module
    try:
        models = importlib.import_module("perth_net.perth_net_implicit.model")
        encoder, decoder = (importlib.import_module(f"{models.__name__}.{name}") for name in ("encoder", "decoder"))
        state = torch.load(spec.origin.replace("__init__.py", str(perth.WEIGHTS)), "cpu", weights_only=True)["model"]
        networks = torch.nn.ModuleDict(
            {"encoder": encoder.Encoder(perth.HIDDEN, perth.BINS), "decoder": decoder.Decoder(perth.HIDDEN, perth.BINS)}
        )
        networks.load_state_dict({name: value for name, value in state.items() if not name.startswith("ap.")})
        return networks.eval()
    finally:
        for name in set(sys.modules) - set(before):
            if name.startswith("perth_net"):
                del sys.modules[name]


def spectrum_of(model: perth.PerthModel, speech: Samples) -> torch.Tensor:
    padded = F.pad(torch.from_numpy(speech), [perth.WINDOW // 2] * 2)
    return torch.stft(padded, perth.WINDOW, perth.HOP, window=model.window, center=False, return_complex=True)


@torch.inference_mode()
def test_perth_streams_what_the_published_network_makes_of_the_whole(
    perth_model: perth.PerthModel, published: Any, speech: Samples
) -> None:
    spectrum = spectrum_of(perth_model, speech)
    changed, _ = published["encoder"](perth.levels(spectrum)[None])
    magnitudes = 10 ** ((changed[0] * perth.RANGE_DB + perth.FLOOR_DB) / 20) / perth.LEVEL
    whole = torch.istft(
        torch.polar(magnitudes, spectrum.angle()),
        perth.WINDOW,
        perth.HOP,
        window=perth_model.window,
        length=len(speech),
    )
    streamed = marked(perth_model, speech)
    assert streamed.shape == speech.shape
    inside = slice(7200, -7200)  # around the recording the one hears silence, the other nothing
    assert np.abs(streamed - whole.numpy())[inside].max() < 1e-5
    assert 5 < 10 * np.log10(np.square(speech).sum() / np.square(streamed - speech).sum()) < 40


@torch.inference_mode()
def test_perth_listens_as_the_published_network(perth_model: perth.PerthModel, published: Any, speech: Samples) -> None:
    for samples in (speech, marked(perth_model, speech)):
        magnitudes = perth.levels(spectrum_of(perth_model, samples))
        expected = float(published["decoder"](magnitudes[None])[0].clip(0, 1))
        assert perth_model.confidence(magnitudes) == pytest.approx(expected, abs=1e-5)


def test_perth_finds_its_mark_alone(perth_model: perth.PerthModel, speech: Samples) -> None:
    threshold = perth.PERTH.threshold
    assert perth_model.detect(marked(perth_model, speech)) > threshold > perth_model.detect(speech)


@pytest.mark.parametrize("frames", [0, 1, 2, 3, 4, 9])
def test_perth_keeps_the_length(perth_model: perth.PerthModel, speech: Samples, frames: int) -> None:
    part = marked(perth_model, speech[: 1920 * frames])
    assert len(part) == 1920 * frames
    assert part.dtype == np.float32


def test_perth_leaves_silence_silent_and_counts_its_delay(perth_model: perth.PerthModel, speech: Samples) -> None:
    assert np.abs(marked(perth_model, np.zeros(19_200, np.float32))).max() < 1e-6
    stream = perth_model.open()
    ready = [len(stream.mark(frame)) // 1920 for frame in speech.reshape(-1, 1920)[:6]]
    assert ready == [0] * perth.PERTH.delay_frames + [1] * (6 - perth.PERTH.delay_frames)


@pytest.fixture(scope="module")
def audioseal_model() -> audioseal.AudioSealModel:
    """The package's causal networks with random weights: the published ones come from a hub."""
    pytest.importorskip("audioseal")
    from audioseal.builder import AudioSealDetectorConfig, AudioSealWMConfig, create_detector, create_generator
    from audioseal.loader import AudioSeal, load_local_model_config
    from omegaconf import OmegaConf

    def config(card: str, kind: type[Any]) -> Any:
        values = OmegaConf.to_container(load_local_model_config(card))
        assert isinstance(values, dict)
        del values["checkpoint"]
        return AudioSeal.parse_config(values, config_type=kind)

    torch.manual_seed(0)
    return audioseal.AudioSealModel(
        create_generator(config(audioseal.GENERATOR, AudioSealWMConfig)),
        create_detector(config(audioseal.DETECTOR, AudioSealDetectorConfig)),
    )


@pytest.mark.slow
def test_audioseal_streams_what_it_makes_of_the_whole(
    audioseal_model: audioseal.AudioSealModel, speech: Samples
) -> None:
    from audioseal.libs.moshi.utils.compile import no_compile

    part = speech[: 1920 * 8]
    with torch.inference_mode(), no_compile():
        whole = audioseal_model.generator(torch.from_numpy(part)[None, None], message=audioseal_model.message)[0, 0]
    one, other = audioseal_model.open(), audioseal_model.open()
    streamed = []
    for frame in part.reshape(-1, 1920):  # two streams at a time do not hear each other
        streamed.append(one.mark(frame))
        other.mark(-frame)
    assert np.abs(np.concatenate([*streamed, one.finish()]) - whole.numpy()).max() < 1e-5
    assert np.abs(whole.numpy() - part).max() > 1e-3
    assert 0 <= audioseal_model.detect(part) <= 1


@pytest.mark.parametrize("plugin", [perth.PERTH, audioseal.AUDIOSEAL], ids=lambda plugin: plugin.name)
def test_a_missing_package_names_its_extra(plugin: WatermarkPlugin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "audioseal", None)
    with pytest.raises(UnsupportedError, match=r"install the extra: pip install 'megatalker\["):
        plugin.load()


def test_weights_that_cannot_be_had_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    package = pytest.importorskip("audioseal")

    def refuse(card: str) -> None:
        raise OSError("no network")

    monkeypatch.setattr(package.AudioSeal, "load_generator", refuse)
    with pytest.raises(UnsupportedError, match=r"cannot be had from Hugging Face.*no network"):
        audioseal.AUDIOSEAL.load()


def test_weights_that_are_not_in_the_cache_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The package itself says where it looks for them."""
    package = pytest.importorskip("audioseal")
    monkeypatch.setenv("AUDIOSEAL_CACHE_DIR", str(tmp_path))
    asked: list[str] = []

    def load_from_url(url: str, model_dir: Path, file_name: str, **_: Any) -> Any:
        asked.append(url)
        (model_dir / file_name).write_text("weights")
        return {}

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", load_from_url)
    named = audioseal.AUDIOSEAL.would_download()
    for card in (audioseal.GENERATOR, audioseal.DETECTOR):
        config = package.loader.load_local_model_config(card)
        package.loader.load_model_checkpoint(config.checkpoint)
    assert named == " and ".join(asked)
    assert audioseal.AUDIOSEAL.would_download() is None
    assert perth.PERTH.would_download() is None
