"""Apple's GPUs, of which none is here: what is chosen there, and that no operation asks for what they do not have."""

from collections.abc import Iterator

import pytest
import torch

from apple import MPS, apple_gpu
from megatalker.checkpoint import Checkpoint
from megatalker.errors import BackendUnavailableError, SettingsError
from megatalker.interfaces import LoadContext
from megatalker.plugins import BackendRegistry, probe
from megatalker.sampling import CodeVocabulary, SamplerRows, SamplingParams
from megatalker.settings import Settings
from megatalker_backends import plugin
from megatalker_backends.compiled.compilation import wants_compile
from megatalker_backends.compiled.model import PLAIN, Model
from megatalker_backends.streaming.codec import StreamingCodec
from megatalker_backends.streaming.settings import StreamingSettings

REGISTRY = BackendRegistry([("builtin", plugin)])
SETTINGS = Settings()


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch see an Apple GPU."""
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)


@pytest.fixture
def faked(tiny_1b7: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[Checkpoint]:
    """Tensors of the checkpoint, and all that are made of them, have no numbers."""
    weights = {name: tiny_1b7.tensor(name) for name in tiny_1b7.tensor_names()}
    codec = {name: tiny_1b7.codec_tensor(name) for name in tiny_1b7.codec_tensor_names()}
    with apple_gpu() as fake:
        monkeypatch.setattr(Checkpoint, "tensor", lambda _, name: fake.from_tensor(weights[name]))
        monkeypatch.setattr(Checkpoint, "codec_tensor", lambda _, name: fake.from_tensor(codec[name]))
        yield tiny_1b7


def test_backends_are_chosen_by_capability(seen: None, tiny_1b7: Checkpoint) -> None:
    place = tiny_1b7, MPS, SETTINGS
    assert REGISTRY.choose_talker("auto", *place).name == "compiled"
    assert REGISTRY.choose_codec("auto", *place).name == "streaming"
    able = {spec.name: probe(spec, *place).reason for spec in REGISTRY.talkers}
    assert able == {"megakernel": "runs on cpu, cuda, not on mps", "compiled": None, "reference": None}
    assert [probe(spec, *place).reason for spec in REGISTRY.codecs] == [None, None]


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="there is an Apple GPU")
def test_without_the_device_nothing_is_available(tiny_1b7: Checkpoint) -> None:
    with pytest.raises(BackendUnavailableError, match="compiled: this torch sees no Apple GPU"):
        REGISTRY.choose_talker("auto", tiny_1b7, MPS, SETTINGS)


def test_nothing_is_compiled_there(caplog: pytest.LogCaptureFixture) -> None:
    assert not wants_compile("auto", MPS)
    assert "torch.compile has not been tried on Apple's GPUs; steps run as plain torch operations" in caplog.text
    with pytest.raises(SettingsError, match=r"is 'on', but torch\.compile has not been tried"):
        wants_compile("on", MPS)


def test_the_fake_device_has_no_double_precision() -> None:
    with apple_gpu(), pytest.raises(TypeError, match="float64, which mps does not have"):
        torch.ones(2, device=MPS).double()


def test_codes_come_back_to_the_device_that_the_logits_came_from() -> None:
    with apple_gpu():
        sampler = SamplerRows(2, CodeVocabulary(64, 60, 50), MPS)
        sampler.assign(1, SamplingParams(seed=3), history=[5])
        rows, logits = torch.tensor([1], device=MPS), torch.zeros(1, 64, device=MPS)
        first = sampler.choose_first(rows, logits)
        noise = sampler.rest_noise(rows, 2, 64)
        rest = [sampler.choose_rest(rows, logits, 1), sampler.choose_rest(rows, logits, 2, noise[:, 1])]
        sampler.advance(rows, first)
    assert {code.device for code in (first, *rest)} == {MPS}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_frame_of_the_compiled_backend(faked: Checkpoint, dtype: torch.dtype) -> None:
    config = faked.config
    model = Model(faked, max_streams=2, max_positions=64, device=MPS, dtype=dtype)
    model.sampler.assign(1, SamplingParams(seed=3))
    row, last = torch.tensor([1], device=MPS), torch.tensor([6], device=MPS)
    model.prefill(row, torch.zeros(7, config.talker.hidden_size, device=MPS), last)
    free = torch.full((1, config.num_code_groups), -1, device=MPS)
    frame = model.predict(PLAIN, row, free)
    model.talk(PLAIN, row, last + 1, frame.codes, torch.zeros(1, config.talker.hidden_size, device=MPS), 64)
    assert frame.codes.shape == free.shape
    assert {frame.codes.device, frame.first_logits.device, frame.rest_logits.device} == {MPS}


def test_a_chunk_of_the_streaming_codec(faked: Checkpoint) -> None:
    codec = StreamingCodec(faked, LoadContext(MPS, torch.float32, StreamingSettings()))
    runner = codec._runner
    codes = torch.zeros(1, 3, faked.codec_config.num_quantizers, dtype=torch.int64)
    samples, _ = runner.run(codes, [runner.open()])
    assert (samples.device, samples.shape) == (MPS, (1, 3 * 1920))
