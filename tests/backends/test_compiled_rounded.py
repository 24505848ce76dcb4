"""The ``compiled`` decoder with weights of 8 and 4 bits: rounding, layers, files and the choice of a format."""

import importlib.util
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.engine import openmp
from megatalker.errors import SettingsError
from megatalker.interfaces import DecodeStep, LoadContext, StreamRequest
from megatalker.plugins.checked import CheckedTalker
from megatalker.sampling import SamplingParams
from megatalker_backends.compiled import rounding, weights
from megatalker_backends.compiled.decoder import CompiledDecoder
from megatalker_backends.compiled.model import Model
from megatalker_backends.compiled.quantised import files, runner, stack
from megatalker_backends.compiled.quantised.files import kept_folder
from megatalker_backends.compiled.quantised.groups import GROUPS, group_weights, ungroup_weights
from megatalker_backends.compiled.quantised.runner import EXACT_LAYERS
from megatalker_backends.compiled.runner import DirectRunner
from megatalker_backends.compiled.settings import CompiledSettings

CPU = torch.device("cpu")
FORMATS = ("int8", "int4")
ACTIVATIONS = 0.05
"""Relative error of logits that rounding activations to 8 bits may make in the tiny model."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "megatalker" / "quantised"


@pytest.fixture
def load(tiny_custom_voice: Checkpoint) -> Iterator[Callable[..., CheckedTalker]]:
    loaded: list[CheckedTalker] = []

    def load(device: str = "cpu", checkpoint: Checkpoint = tiny_custom_voice, **settings: Any) -> CheckedTalker:
        own = CompiledSettings(**{"compile": "off", "max_positions": 700, "max_streams": 2, **settings})
        context = LoadContext(torch.device(device), torch.float32, own)
        loaded.append(CheckedTalker(CompiledDecoder(checkpoint, context), checkpoint.config))
        return loaded[-1]

    yield load
    for decoder in loaded:
        decoder.close()


def rows(checkpoint: Checkpoint, count: int) -> Tensor:
    return torch.randn(count, checkpoint.config.talker.hidden_size, generator=torch.Generator().manual_seed(1))


def logits(decoder: CheckedTalker, checkpoint: Checkpoint, prompt: int, codes: list[tuple[int, ...]]) -> list[Tensor]:
    """All logits of each frame, in one row."""
    (handle,) = decoder.prefill([StreamRequest(rows(checkpoint, prompt), SamplingParams())])
    text, found = rows(checkpoint, 1)[0], []
    for forced in codes:
        (frame,) = decoder.decode([DecodeStep(handle, text, forced)], return_logits=True)()
        assert frame.logits is not None
        found.append(torch.cat((frame.logits.talker, frame.logits.predictor.flatten())))
    decoder.release(handle)
    return found


@pytest.mark.parametrize("bits", [8, 4])
def test_a_weight_is_off_by_half_a_step_at_most(bits: int) -> None:
    matrix = (
        torch.randn(6, 3 * GROUPS[bits], generator=torch.Generator().manual_seed(0)) * torch.logspace(-3, 3, 6)[:, None]
    )
    grouped = group_weights(matrix, bits)
    error = (ungroup_weights(grouped, bits, matrix.shape[1]) - matrix).abs().view(6, 3, -1)
    steps = grouped.scales.abs().unsqueeze(-1)
    beyond = error > 0.5001 * steps
    if bits == 4:  # the numbers are -8 to 7: what lies opposite of the largest weight may be half a step further off
        beyond &= error > 1.0001 * steps
    assert not beyond.any()


@pytest.mark.parametrize("bits", [8, 4])
def test_zeros_stay_zeros_and_an_odd_number_of_columns_is_padded_with_them(bits: int) -> None:
    matrix = torch.zeros(2, GROUPS[bits] + 5)
    matrix[1, -1] = 3.0
    grouped = group_weights(matrix, bits)
    assert torch.equal(ungroup_weights(grouped, bits, matrix.shape[1]), matrix)
    assert grouped.quanta.shape == (2, 2, GROUPS[bits] * bits // 8)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("prompt", [5, 250])
def test_layers_compute_what_torch_does_with_the_rounded_weights(
    tiny_custom_voice: Checkpoint,
    load: Callable[..., CheckedTalker],
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    prompt: int,
) -> None:
    """With 250 rows, the cache grows while the stream is under way."""
    groups = tiny_custom_voice.config.num_code_groups
    codes = [tuple((7 * frame + 3 * group) % 100 for group in range(groups)) for frame in range(12)]
    found = logits(load(weights=form), tiny_custom_voice, prompt, codes)
    layer = weights._Reader.layer

    def rounded(self: Any, name: str) -> Any:
        bits = 8 if int(name.rpartition(".")[2]) < EXACT_LAYERS else rounding.BITS[form]
        parts = layer(self, name)._asdict()
        for part in ("qkv", "output", "gate_up", "down"):
            parts[part] = ungroup_weights(group_weights(parts[part], bits), bits, parts[part].shape[1])
        return weights.LayerWeights(**parts)

    monkeypatch.setattr(weights._Reader, "layer", rounded)
    expected = logits(load(), tiny_custom_voice, prompt, codes)
    for ours, theirs in zip(found, expected, strict=True):
        assert float((ours - theirs).square().mean().sqrt() / theirs.square().mean().sqrt()) < ACTIVATIONS


def test_a_cache_doubles_and_a_new_prompt_begins_small(tiny_custom_voice: Checkpoint) -> None:
    model = runner.QuantisedModel(tiny_custom_voice, "int8", max_streams=1, max_positions=700)
    room = lambda: model._talker._rows[0].cache.shape[3]  # noqa: E731
    model.prefill(0, rows(tiny_custom_voice, 4))
    assert room() == stack.FEWEST_POSITIONS
    model._talker.run(0, stack.FEWEST_POSITIONS, rows(tiny_custom_voice, 1))
    assert room() == 2 * stack.FEWEST_POSITIONS
    model._talker.run(0, 2 * stack.FEWEST_POSITIONS, rows(tiny_custom_voice, 1))
    assert room() == 700
    model.prefill(0, rows(tiny_custom_voice, 4))
    assert room() == stack.FEWEST_POSITIONS


@pytest.mark.parametrize("form", FORMATS)
def test_layers_are_rounded_once_and_kept(
    tiny_custom_voice: Checkpoint,
    load: Callable[..., CheckedTalker],
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
) -> None:
    codes = [(3,) * tiny_custom_voice.config.num_code_groups] * 2
    first = logits(load(weights=form), tiny_custom_voice, 5, codes)
    assert [path.name.partition("-")[0] for path in cache.iterdir()] == [form]
    monkeypatch.setattr(runner, "write_stack", None)
    again = logits(load(weights=form), tiny_custom_voice, 5, codes)
    assert all(torch.equal(*pair) for pair in zip(first, again, strict=True))


def test_other_weights_have_another_folder(tiny_custom_voice: Checkpoint, tiny_1b7: Checkpoint) -> None:
    folders = {kept_folder(checkpoint, form) for checkpoint in (tiny_custom_voice, tiny_1b7) for form in FORMATS}
    assert len(folders) == 4
    path = next(tiny_custom_voice.folder.glob("*.safetensors"))
    before = path.stat()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1000))
    try:
        assert kept_folder(tiny_custom_voice, "int8") not in folders
    finally:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_failed_rounding_leaves_nothing(tiny_custom_voice: Checkpoint, cache: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("")
        raise RuntimeError("no space left")

    with pytest.raises(RuntimeError, match="no space left"), files.rounded_layers(tiny_custom_voice, "int8", fail):
        pass
    assert not list(cache.iterdir())


def test_without_a_cache_folder_weights_are_rounded_at_each_start(
    tiny_custom_voice: Checkpoint,
    load: Callable[..., CheckedTalker],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    decoder = load(weights="int8")
    assert "cannot be kept" in caplog.text
    assert logits(decoder, tiny_custom_voice, 5, [(3,) * tiny_custom_voice.config.num_code_groups])


def test_capabilities_say_how_many_bits_a_weight_has(load: Callable[..., CheckedTalker]) -> None:
    found = {form: load(weights=form).capabilities for form in (None, "bfloat16", "int8", "int4")}
    assert {form: each.weight_bits for form, each in found.items()} == {
        None: None,
        "bfloat16": 16,
        "int8": 8,
        "int4": 4,
    }
    assert found["int8"].batch_invariant
    assert not found["int8"].batch


@pytest.mark.parametrize(
    ("threads", "environment", "warned"),
    [(2, {}, True), (1, {}, False), (2, {"GOMP_SPINCOUNT": "0"}, False), (2, {"OMP_WAIT_POLICY": "passive"}, False)],
)
def test_threads_of_torch_that_keep_cores_are_warned_of(
    load: Callable[..., CheckedTalker],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    threads: int,
    environment: dict[str, str],
    warned: bool,
) -> None:
    for name in openmp.WAITS:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(rounding.sys, "platform", "linux")
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    load(weights="int8")
    assert ("set GOMP_SPINCOUNT=1000 before Python starts" in caplog.text) == warned


def test_a_warm_up_needs_no_compiler(load: Callable[..., CheckedTalker], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    load(weights="int8", compile="on").warmup()


def test_a_warm_up_leaves_streams_as_they_are(
    load: Callable[..., CheckedTalker], tiny_custom_voice: Checkpoint
) -> None:
    decoder, text = load(weights="int8"), rows(tiny_custom_voice, 1)[0]
    forced = [(code,) * tiny_custom_voice.config.num_code_groups for code in range(3)]
    (handle,) = decoder.prefill([StreamRequest(rows(tiny_custom_voice, 5), SamplingParams())])
    decoder.warmup()
    frames = [decoder.decode([DecodeStep(handle, text, codes)], return_logits=True)()[0].logits for codes in forced]
    decoder.release(handle)
    expected = logits(load(weights="int8"), tiny_custom_voice, 5, forced)
    for found, alone in zip(frames, expected, strict=True):
        assert found is not None
        assert torch.equal(torch.cat((found.talker, found.predictor.flatten())), alone)


def test_weights_without_a_processor_or_their_packages_are_refused(
    tiny_custom_voice: Checkpoint, load: Callable[..., CheckedTalker], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SettingsError, match=r"'int8', which is for processors, and the device is cuda"):
        rounding.resolve_weights("int8", tiny_custom_voice, torch.device("cuda"), torch.float32)
    assert rounding.resolve_weights("auto", tiny_custom_voice, torch.device("cuda"), torch.float32) is None
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnx" else find(name))
    with pytest.raises(SettingsError, match=r"'int4', which needs onnx; pip install 'megatalker\[quantised\]'"):
        load(weights="int4")


@pytest.mark.parametrize(
    ("in_time", "chosen"), [(4.0, "float32"), (3.9, "bfloat16"), (1.0, "int8"), (0.9, "int4"), (0.1, "int4")]
)
def test_the_most_exact_format_that_is_in_time_is_chosen(in_time: float, chosen: str) -> None:
    """``in_time``: nanoseconds that a weight may take."""
    nanoseconds = {"float32": 4.0, "bfloat16": 2.0, "int8": 1.0, "int4": 0.5}
    count = int(rounding.BUDGET_S / (in_time * 1e-9))
    assert rounding.choose_weights(count, {name: each * 1e-9 for name, each in nanoseconds.items()}) == chosen


def test_auto_measures_and_says_what_it_chose(
    tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert rounding.resolve_weights("auto", tiny_custom_voice, CPU, torch.float32) is None
    assert "weights stay float32" in caplog.text
    measured = iter((9e-10, 8e-10, 7e-10, 6e-10))
    monkeypatch.setattr(rounding, "EXACT_BYTES", 0)
    monkeypatch.setattr(rounding, "_seconds_per_weight", lambda products: (products(), next(measured))[1])
    monkeypatch.setattr(rounding, "weights_per_frame", lambda config: round(rounding.BUDGET_S / 7.5e-10))
    assert rounding.resolve_weights("auto", tiny_custom_voice, CPU, torch.float32) == "int8"
    assert (
        "weights are int8; products of a frame (80 ms) here: float32 60 ms, bfloat16 53 ms, int8 47 ms" in caplog.text
    )


def test_published_shapes_read_as_many_weights_as_they_should(tiny_custom_voice: Checkpoint) -> None:
    """0.44 billion of the talker once, and 0.08 billion of the predictor fifteen times."""
    talker = replace(
        tiny_custom_voice.config.talker,
        hidden_size=1024,
        intermediate_size=3072,
        num_layers=28,
        num_heads=16,
        num_kv_heads=8,
        head_dim=128,
    )
    config = replace(
        tiny_custom_voice.config, talker=talker, predictor=replace(talker, num_layers=5), num_code_groups=16
    )
    assert rounding.weights_per_frame(config) == 440_401_920 + 15 * 78_643_200


def test_bfloat16_weights_are_those_of_the_type(
    tiny_custom_voice: Checkpoint, load: Callable[..., CheckedTalker]
) -> None:
    codes = [(3,) * tiny_custom_voice.config.num_code_groups] * 3
    found = logits(load(weights="bfloat16"), tiny_custom_voice, 5, codes)
    own = CompiledSettings(compile="off", max_positions=700, max_streams=2)
    same = CheckedTalker(
        CompiledDecoder(tiny_custom_voice, LoadContext(CPU, torch.bfloat16, own)), tiny_custom_voice.config
    )
    assert all(torch.equal(*pair) for pair in zip(found, logits(same, tiny_custom_voice, 5, codes), strict=True))
    assert isinstance(same.decoder._runner, DirectRunner)
    assert isinstance(same.decoder._model, Model)
    same.close()
