"""Fixtures of the suite. A third party may override them, ``talker_backend`` and ``codec_backend`` first."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

import pytest
import torch

from megatalker.checkpoint import Checkpoint
from megatalker.engine import Engine
from megatalker.interfaces import CodecBackend, TalkerBackend
from megatalker.plugins import BackendRegistry
from megatalker.plugins.checked import CheckedCodec, CheckedTalker, load_codec, load_talker
from megatalker.settings import Settings
from megatalker_conformance.cases import Cases
from megatalker_conformance.checks import Judge
from megatalker_conformance.codec_harness import CodecHarness
from megatalker_conformance.codec_pool import CodePool
from megatalker_conformance.codes import CodeSource, OfficialCodec
from megatalker_conformance.engine_harness import EngineHarness, OpenEngine
from megatalker_conformance.loading import load_context
from megatalker_conformance.measure import Measure
from megatalker_conformance.official import Official
from megatalker_conformance.oracle import Oracle, OwnOracle
from megatalker_conformance.places import FrameExaminer
from megatalker_conformance.scenarios import ScenarioPool
from megatalker_conformance.selection import SELECTION, Selection
from megatalker_conformance.special import Loader, SpecialCheckpoints
from megatalker_conformance.streams import SuiteStreams
from megatalker_conformance.talker_harness import TalkerHarness


@pytest.fixture(scope="session")
def selection(pytestconfig: pytest.Config) -> Selection:
    """The options of the command line, resolved."""
    return pytestconfig.stash[SELECTION]


@pytest.fixture(scope="session")
def registry(selection: Selection) -> BackendRegistry:
    """The installed backends."""
    return selection.registry


@pytest.fixture(scope="session")
def checkpoint(selection: Selection) -> Checkpoint:
    """The checkpoint that every backend of this run loads."""
    return selection.checkpoint


@pytest.fixture(scope="session")
def device(selection: Selection) -> torch.device:
    """The device that every backend of this run uses."""
    return selection.device


@pytest.fixture(scope="session")
def dtype(selection: Selection) -> torch.dtype:
    """The type that talker decoders compute in."""
    return selection.dtype


@pytest.fixture(scope="session")
def frames(pytestconfig: pytest.Config) -> int:
    """Frames of a parity run."""
    return int(pytestconfig.getoption("--frames"))


@pytest.fixture(scope="session")
def conformance_seed(pytestconfig: pytest.Config) -> int:
    """Seed of everything that a test draws at random."""
    return int(pytestconfig.getoption("--conformance-seed"))


@pytest.fixture(scope="session")
def talker_backend(talker_name: str, registry: BackendRegistry) -> TalkerBackend:
    """The talker backend under test."""
    return registry.talker(talker_name)


@pytest.fixture(scope="session")
def talker(
    talker_backend: TalkerBackend, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype
) -> Iterator[CheckedTalker]:
    """The decoder under test, in the shell that the engine talks to; loaded once and warm."""
    decoder = load_talker(talker_backend, checkpoint, load_context(talker_backend, device, dtype))
    decoder.warmup()
    yield decoder
    decoder.close()


@pytest.fixture
def streams(talker: CheckedTalker) -> Iterator[SuiteStreams]:
    """Streams on the decoder under test; released after each test."""
    streams = SuiteStreams(talker)
    yield streams
    streams.release_all()


@pytest.fixture(scope="session")
def special_checkpoints(
    tmp_path_factory: pytest.TempPathFactory, registry: BackendRegistry, device: torch.device
) -> Iterator[SpecialCheckpoints]:
    """Checkpoints made for one question each, and their oracles, shared by all backends of the run."""
    with closing(SpecialCheckpoints(tmp_path_factory.mktemp("special"), registry, device)) as checkpoints:
        yield checkpoints


@pytest.fixture(scope="session")
def load_special(
    talker_backend: TalkerBackend,
    special_checkpoints: SpecialCheckpoints,
    device: torch.device,
    dtype: torch.dtype,
    selection: Selection,
) -> Iterator[Loader]:
    """Loads the backend under test on one of them."""
    with closing(Loader(talker_backend, special_checkpoints, device, dtype, selection.settings)) as loader:
        yield loader


@pytest.fixture(scope="session")
def cases(checkpoint: Checkpoint) -> Cases:
    """Test cases."""
    return Cases(checkpoint)


@pytest.fixture(scope="session")
def official_oracle(registry: BackendRegistry, checkpoint: Checkpoint, device: torch.device) -> Iterator[Oracle]:
    """``reference`` in float32, shared by all backends of the run."""
    with closing(Oracle(registry, checkpoint, device)) as oracle:
        yield oracle


@pytest.fixture(scope="session")
def oracle(
    talker: CheckedTalker,
    official_oracle: Oracle,
    talker_backend: TalkerBackend,
    checkpoint: Checkpoint,
    device: torch.device,
    dtype: torch.dtype,
) -> Iterator[Oracle]:
    """The codes that the decoder under test must give: those of the official modules, or, where its weights are
    rounded, those that another instance of it gives alone.
    """
    if talker.capabilities.weight_bits is None:
        yield official_oracle
        return
    decoder = load_talker(talker_backend, checkpoint, load_context(talker_backend, device, dtype))
    own = OwnOracle(decoder, official_oracle)
    yield own
    own.close()


@pytest.fixture(scope="session")
def compared_dtype(talker: CheckedTalker, dtype: torch.dtype) -> torch.dtype:
    """The type whose rules of comparison hold: rounded weights are as little exact as 16-bit arithmetic."""
    exact = dtype != torch.float32 or talker.capabilities.weight_bits is None
    return dtype if exact else torch.bfloat16


@pytest.fixture
def exact_weights(talker: CheckedTalker) -> None:
    """The test compares with the official modules, whose weights are not rounded."""
    if talker.capabilities.weight_bits is not None:
        pytest.skip("the backend's weights are rounded; test_talker_rounded.py judges them")


@pytest.fixture(scope="session")
def pool(
    cases: Cases, checkpoint: Checkpoint, oracle: Oracle, talker: CheckedTalker, compared_dtype: torch.dtype
) -> ScenarioPool:
    """Scenarios of streams for schedules, with the codes that they must give."""
    return ScenarioPool(cases, checkpoint, oracle, talker, compared_dtype)


@pytest.fixture
def load_another(
    talker_backend: TalkerBackend, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype
) -> Callable[[], CheckedTalker]:
    """Loads one more instance of the backend under test, cold."""
    return lambda: load_talker(talker_backend, checkpoint, load_context(talker_backend, device, dtype))


@pytest.fixture
def load_early(
    talker_backend: TalkerBackend, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype
) -> Callable[[], CheckedTalker]:
    """Loads one more instance of the backend under test, cold, whose warm-up may leave something for later."""
    context = load_context(talker_backend, device, dtype)
    return lambda: load_talker(talker_backend, checkpoint, replace(context, early=True))


@pytest.fixture
def harness(
    talker: CheckedTalker,
    pool: ScenarioPool,
    device: torch.device,
    dtype: torch.dtype,
    load_another: Callable[[], CheckedTalker],
    conformance_seed: int,
    pytestconfig: pytest.Config,
) -> TalkerHarness:
    """Holds the decoder under test to schedules."""
    capabilities = talker.capabilities
    if dtype != torch.float32 and not (capabilities.forced_codes or capabilities.seeded_sampling):
        pytest.skip(f"in {dtype} nothing can be compared exactly without forced_codes and without seeded_sampling")
    return TalkerHarness(talker, pool, device, load_another, conformance_seed, int(pytestconfig.getoption("--shorten")))


@pytest.fixture(scope="session")
def official(checkpoint: Checkpoint, device: torch.device) -> Official:
    """The official ``generate()``."""
    return Official(checkpoint, device)


@pytest.fixture
def measure(request: pytest.FixtureRequest) -> Measure:
    """Records figures with the test, and checks their bounds."""
    return Measure(request.node)


@pytest.fixture
def judge(oracle: Oracle, talker: CheckedTalker, compared_dtype: torch.dtype, checkpoint: Checkpoint) -> Judge:
    """Decides whether codes are right."""
    return Judge(oracle, compared_dtype, talker.capabilities, checkpoint.config.codec_eos_id)


@pytest.fixture
def examine(
    streams: SuiteStreams, oracle: Oracle, cases: Cases, checkpoint: Checkpoint, compared_dtype: torch.dtype
) -> FrameExaminer:
    """Holds single frames of streams on the decoder under test to the oracle."""
    return _examiner(streams, oracle, cases, checkpoint, compared_dtype)


@pytest.fixture
def examine_special(
    load_special: Loader, special_checkpoints: SpecialCheckpoints, dtype: torch.dtype, exact_weights: None
) -> Iterator[Callable[[str], tuple[FrameExaminer, Cases]]]:
    """Examine frames as ``examine`` does, on a special checkpoint, with cases for it."""
    opened: list[SuiteStreams] = []

    def open_special(name: str) -> tuple[FrameExaminer, Cases]:
        checkpoint = special_checkpoints.checkpoint(name)
        streams, cases = SuiteStreams(load_special(name)), Cases(checkpoint)
        opened.append(streams)
        return _examiner(streams, special_checkpoints.oracle(name), cases, checkpoint, dtype), cases

    yield open_special
    for streams in opened:
        streams.release_all()


def _examiner(
    streams: SuiteStreams, oracle: Oracle, cases: Cases, checkpoint: Checkpoint, dtype: torch.dtype
) -> FrameExaminer:
    if dtype != torch.float32 and not streams.decoder.capabilities.forced_codes:
        pytest.skip("without forced_codes, 16-bit arithmetic cannot be looked into")
    return FrameExaminer(streams, oracle, cases, checkpoint, dtype)


@pytest.fixture
def exact_arithmetic(compared_dtype: torch.dtype) -> None:
    """The test compares codes exactly, which float32 alone allows."""
    if compared_dtype != torch.float32:
        pytest.skip("codes are compared exactly in float32 only; other arithmetic is judged by its logits")


@pytest.fixture
def rounded_arithmetic(dtype: torch.dtype) -> torch.dtype:
    """The test judges 16-bit arithmetic."""
    if dtype == torch.float32:
        pytest.skip("this rule is for 16-bit arithmetic; run with --dtype bfloat16")
    return dtype


@pytest.fixture(scope="session")
def codec_backend(codec_name: str, registry: BackendRegistry) -> CodecBackend:
    """The codec under test."""
    return registry.codec(codec_name)


@pytest.fixture(scope="session")
def codec(codec_backend: CodecBackend, checkpoint: Checkpoint, device: torch.device) -> Iterator[CheckedCodec]:
    """The codec under test, loaded in float32."""
    codec = load_codec(codec_backend, checkpoint, load_context(codec_backend, device, torch.float32))
    codec.warmup()
    yield codec
    codec.close()


@pytest.fixture(scope="session")
def code_source(checkpoint: Checkpoint) -> CodeSource:
    """Codes to decode."""
    return CodeSource(checkpoint)


@pytest.fixture(scope="session")
def official_codec(checkpoint: Checkpoint, device: torch.device) -> OfficialCodec:
    """The official full forward."""
    return OfficialCodec(checkpoint, device)


@pytest.fixture(scope="session")
def code_pool(code_source: CodeSource, official_codec: OfficialCodec, pytestconfig: pytest.Config) -> CodePool:
    """Codes with known samples, for schedules of any kind."""
    return CodePool(code_source, official_codec, int(pytestconfig.getoption("--codec-frames")))


@pytest.fixture
def load_another_codec(codec_backend: CodecBackend, device: torch.device) -> Callable[[Checkpoint], CheckedCodec]:
    """Loads one more instance of the codec under test, cold."""
    return lambda checkpoint: load_codec(codec_backend, checkpoint, load_context(codec_backend, device, torch.float32))


@pytest.fixture
def codec_harness(
    codec: CheckedCodec,
    code_pool: CodePool,
    checkpoint: Checkpoint,
    load_another_codec: Callable[[Checkpoint], CheckedCodec],
    measure: Measure,
    conformance_seed: int,
    pytestconfig: pytest.Config,
) -> CodecHarness:
    """Holds the codec under test to schedules."""
    effort = int(pytestconfig.getoption("--shorten"))
    return CodecHarness(codec, code_pool, lambda: load_another_codec(checkpoint), measure, conformance_seed, effort)


def _open_engine(settings: Settings, checkpoint: Checkpoint, registry: BackendRegistry) -> Engine:
    return Engine.open(settings, checkpoint=checkpoint, registry=registry)


@pytest.fixture(scope="session")
def open_engine() -> OpenEngine:
    """Makes the engine that streaming is judged through."""
    return _open_engine


@pytest.fixture(scope="session")
def partner_codec(
    registry: BackendRegistry, checkpoint: Checkpoint, device: torch.device, selection: Selection
) -> Iterator[CheckedCodec]:
    """The codec that completes an engine when a talker backend is judged: the best available."""
    spec = registry.choose_codec("auto", checkpoint, device, selection.settings)
    codec = load_codec(spec, checkpoint, load_context(spec, device, torch.float32))
    codec.warmup()
    yield codec
    codec.close()


@pytest.fixture(scope="session")
def partner_talker(
    registry: BackendRegistry, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, selection: Selection
) -> Iterator[CheckedTalker]:
    """The talker decoder that completes an engine when a codec is judged: the best available, cold."""
    spec = registry.choose_talker("auto", checkpoint, device, selection.settings)
    decoder = load_talker(spec, checkpoint, load_context(spec, device, dtype))
    yield decoder
    decoder.close()


@pytest.fixture
def engine_harness(
    open_engine: OpenEngine,
    checkpoint: Checkpoint,
    device: torch.device,
    dtype: torch.dtype,
    talker: CheckedTalker,
    partner_codec: CheckedCodec,
) -> EngineHarness:
    """Engines on the talker backend under test."""
    return EngineHarness(open_engine, checkpoint, device, dtype, talker, partner_codec)


@pytest.fixture
def codec_engine_harness(
    open_engine: OpenEngine,
    checkpoint: Checkpoint,
    device: torch.device,
    dtype: torch.dtype,
    partner_talker: CheckedTalker,
    codec: CheckedCodec,
) -> EngineHarness:
    """Engines on the codec under test."""
    return EngineHarness(open_engine, checkpoint, device, dtype, partner_talker, codec)
