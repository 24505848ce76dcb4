"""Memory by arithmetic, held against what is really taken; and engines that refuse instead of running out of it."""

import re
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

from commands import megatalker, one_line, run_program
from megatalker.checkpoint import Checkpoint
from megatalker.cli.fitting import fittings, streams_that_fit
from megatalker.engine import Engine
from megatalker.errors import CapacityError
from megatalker.interfaces import LoadContext
from megatalker.plugins import memory
from megatalker.settings import Settings
from megatalker.testing.random_checkpoint import write_checkpoint
from megatalker.testing.recipe import TINY, CodecSizes, StackSizes
from megatalker_backends.megakernel.memory import memory_need
from megatalker_backends.megakernel.settings import MegakernelSettings, choose_shape
from megatalker_backends.megakernel.weights import pack_checkpoint
from megatalker_kernels.model import packed_bytes
from megatalker_kernels.workspace import GuardedBuffers, Workspace

CPU = torch.device("cpu")
SHARE, ROOM = 0.2, 12e6
"""Real memory may differ from the arithmetic by this share, and by what libraries take for themselves in bytes."""
PROGRAM = """
import gc, sys, torch
torch.set_num_threads(1)
from megatalker.checkpoint import Checkpoint
from megatalker.interfaces import LoadContext
from megatalker.plugins import BackendRegistry

def taken():
    gc.collect()
    lines = open("/proc/self/status").read().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

kind, name, weights, folder = sys.argv[1:]
checkpoint, registry = Checkpoint.open(folder), BackendRegistry.installed()
spec = next(one for one in getattr(registry, kind) if one.name == name)
own = spec.settings() if weights == "-" else spec.settings(weights=weights)
context = LoadContext(torch.device("cpu"), torch.float32, own, max_streams=4)
need = spec.memory(checkpoint, context)
if weights in ("int8", "int4"):
    import onnxruntime
before = taken()
loaded = spec.load(checkpoint, context)
print("taken", taken() - before, "need", need.load_bytes)
"""


@pytest.fixture(scope="module")
def medium(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Large enough that what libraries take for themselves is small beside it: 100 MB in float32, and a codec of 60."""
    stack = StackSizes(hidden=512, intermediate=1536, layers=6, heads=8, kv_heads=4, head_dim=64)
    recipe = replace(
        TINY,
        talker=stack,
        predictor=replace(stack, layers=2),
        codec=CodecSizes(
            decoder_dim=768,
            latent_dim=512,
            codebook_dim=256,
            transformer=TINY.codec.transformer,
            encoder=TINY.codec.encoder,
            encoder_filters=4,
        ),
        dtype="bfloat16",
    )
    return Checkpoint.open(write_checkpoint(tmp_path_factory.mktemp("medium") / "checkpoint", recipe))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name", "weights"),
    [
        ("talkers", "compiled", "-"),
        ("talkers", "compiled", "bfloat16"),
        ("talkers", "compiled", "int8"),
        ("talkers", "compiled", "int4"),
        ("codecs", "streaming", "-"),
    ],
)
def test_what_loading_takes_is_what_was_said(
    medium: Checkpoint, tmp_path: Path, kind: str, name: str, weights: str
) -> None:
    arguments, cache = ("-c", kind, name, weights, str(medium.folder)), str(tmp_path)
    for _ in range(2 if weights in ("int8", "int4") else 1):  # the first one rounds, which takes more for a moment
        done = run_program(PROGRAM, *arguments, cwd=tmp_path, XDG_CACHE_HOME=cache)
        assert done.returncode == 0, done.stderr
    taken, need = map(int, re.findall(r"\d+", done.stdout))
    assert need > 15e6
    assert abs(taken - need) < SHARE * need + ROOM, f"took {taken / 1e6:.1f} MB, said {need / 1e6:.1f} MB"


@pytest.mark.parametrize("which", ["tiny_custom_voice", "tiny_1b7", "demo"])
def test_the_kernels_take_what_their_layouts_say(which: str, request: pytest.FixtureRequest) -> None:
    checkpoint: Checkpoint = request.getfixturevalue(which)
    settings = MegakernelSettings(interpret=True, max_positions=256)
    shape = choose_shape(checkpoint.config, settings, CPU)
    model = pack_checkpoint(checkpoint, shape, CPU)
    assert model.device_bytes == packed_bytes(shape)
    real, planned = Workspace(shape, 5, 3, CPU), Workspace(shape, 5, 3, torch.device("meta"))
    assert planned.device_bytes == real.device_bytes - _host_bytes(planned)
    one, two = (memory_need(checkpoint, LoadContext(CPU, torch.bfloat16, settings, max_streams=n)) for n in (1, 9))
    assert one is not None
    assert two is not None
    assert model.device_bytes < one.load_bytes < two.load_bytes


def _host_bytes(space: GuardedBuffers) -> int:
    """Bytes of buffers that lie in host memory, beside a GPU."""
    own = sum(raw.numel() for raw in space._raw.values() if raw.device == CPU)
    return own + sum(_host_bytes(one) for one in vars(space).values() if isinstance(one, GuardedBuffers))


def test_a_stream_takes_memory_when_it_speaks_and_not_before(tiny_custom_voice: Checkpoint) -> None:
    from megatalker_backends.compiled.stack import empty_cache

    shape = replace(tiny_custom_voice.config.talker, num_layers=1)
    (cache,) = empty_cache(shape, 64, 100_000, CPU, torch.bfloat16)  # 0.8 GB each, were they written
    assert cache.keys.is_contiguous()
    assert not cache.keys[63, :, 99_999].any()
    before = psutil.Process().memory_info().rss
    cache.values[:, :, 5] = 1.0
    assert psutil.Process().memory_info().rss - before < 10e6, "with pages of 2 MB it would be 128 MB"
    assert float(cache.values[3, :, :9].sum()) == shape.num_kv_heads * shape.head_dim


def test_an_engine_that_cannot_fit_is_refused_with_the_bytes_that_are_missing(
    demo: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda device: 10_000_000)
    settings = Settings(device="cpu", dtype="float32", backend="compiled", codec="streaming")
    with pytest.raises(CapacityError) as refused:
        Engine.open(settings, checkpoint=demo)
    assert re.search(r"takes [\d,]+ bytes for 'demo', this machine has 10,000,000 left", str(refused.value))
    assert re.search(r"[\d,]{10} bytes are missing; free memory, lower max_streams", str(refused.value))


def test_what_a_machine_has_left_is_known_here() -> None:
    left = memory.available_bytes(CPU)
    assert left is not None
    assert 1e7 < left < 1e14
    assert memory.available_bytes(torch.device("mps")) is None


def test_more_memory_holds_more_streams_and_too_little_none(demo: Checkpoint) -> None:
    settings = Settings(device="cpu")
    small, large = (dict(_streams(demo, settings, size)) for size in (2_000_000_000, 4_000_000_000))
    assert small.keys() == large.keys() == {"megakernel", "compiled"}
    assert all(0 < small[name] < large[name] or small[name] == large[name] == 2048 for name in small)
    for _, _, streams, missing in streams_that_fit(demo, settings, 1_000_000_000):
        assert (streams, missing > 500_000_000) == (0, True)
    for one in fittings(demo, torch.device("cuda", 0), torch.bfloat16, settings, small["megakernel"]):
        if one.talker == "megakernel":
            assert one.need.load_bytes + small["megakernel"] * one.need.stream_bytes <= 2_000_000_000


def _streams(checkpoint: Checkpoint, settings: Settings, size: int) -> list[tuple[str, int]]:
    return [(name, streams) for name, _, streams, _ in streams_that_fit(checkpoint, settings, size)]


@pytest.mark.slow
def test_inspect_tells_what_fits_and_how_fast_it_is(tmp_path: Path) -> None:
    done = megatalker(
        *("inspect", "demo", "--device", "cpu", "--gpu-memory", "1", "--measure", "--streams", "4"), cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    said = one_line(done.stdout)
    for word in ("float32", "bfloat16", "int8", "int4", "4 streams", "on a GPU of 1 GB", "bytes are"):
        assert word in said, word
    assert re.search(r"measured: (real time|slower than real time), RTF \d+\.\d\d with compiled", said)
