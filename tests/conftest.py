"""Checkpoints that the tests share; each is written once per session."""

import logging
import os
from collections.abc import Iterator
from dataclasses import replace

import hypothesis
import pytest
import torch

from late_audio import SlowDownload
from megatalker.checkpoint import Checkpoint
from megatalker.cli.status import PACKAGES
from megatalker.engine.interpreter import spare_what_is_loaded
from megatalker.engine.rehearsal import Rehearsal
from megatalker.testing.random_checkpoint import write_checkpoint
from megatalker.testing.recipe import TINY, TINY_1B7, CheckpointRecipe

hypothesis.settings.register_profile("no clock", deadline=None)  # other processes share the machine
hypothesis.settings.load_profile("no clock")

# Fake backends and random weights know nothing of their text: how long they speak says nothing.
os.environ.setdefault("MEGATALKER_SHORT_SPEECH", "believe")

torch.set_num_threads(1)  # what a test computes itself adds in the same order as an engine, which uses one thread


FIRST = (
    "test_meta.py",
    "test_readme.py",
    # These wait more than they compute, so they run while others only compute.
    "test_agent_page.py",
    "test_failover.py",
    "test_agent_phone.py",
    "test_server_page.py",
    "test_agent_conversation.py",
    "test_client_errors.py",
    "test_drive.py",
    "test_conversation.py",
    # These compute for long: begun last, they would run on when all other processes have ended.
    "test_third_party.py",
    "test_megakernel_emulated.py",
    "test_compiled_decoder.py",
    "test_streaming_kernels.py",
    "test_reference_decoder.py",
    "test_streaming_codec.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rest = len(FIRST)
    items.sort(key=lambda item: FIRST.index(item.path.name) if item.path.name in FIRST else rest)


def pytest_collection_finish() -> None:
    """Full garbage collections, of which tests ask for many, need not look at all that was imported."""
    spare_what_is_loaded()


@pytest.fixture
def unrehearsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first calls of a backend are the first stream's."""
    monkeypatch.setattr(Rehearsal, "run", lambda rehearsal, max_streams: None)


@pytest.fixture
def short_speech_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the default of the environment, in which short speech is repeated."""
    monkeypatch.setenv("MEGATALKER_SHORT_SPEECH", "repeat")


@pytest.fixture(autouse=True)
def log_levels() -> Iterator[None]:
    """Restore the log levels that a command sets for its process."""
    yield
    for logger in map(logging.getLogger, PACKAGES):
        if logger.level:  # setting it costs a look at every logger there is
            logger.setLevel(logging.NOTSET)


def _written(factory: pytest.TempPathFactory, name: str, recipe: CheckpointRecipe) -> Checkpoint:
    return Checkpoint.open(write_checkpoint(factory.mktemp("checkpoints") / name, recipe))


@pytest.fixture(scope="session")
def tiny_custom_voice(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return _written(tmp_path_factory, "tiny_custom_voice", TINY)


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return _written(tmp_path_factory, "tiny_base", replace(TINY, variant="base"))


@pytest.fixture(scope="session")
def tiny_voice_design(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return _written(tmp_path_factory, "tiny_voice_design", replace(TINY_1B7, variant="voice_design"))


@pytest.fixture(scope="session")
def tiny_1b7(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """CustomVoice at the size that takes an instruction, with a projection in front of the predictor."""
    return _written(tmp_path_factory, "tiny_1b7", TINY_1B7)


@pytest.fixture(params=["audio at once", "audio late"])
def arrival(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines on fake backends, as on a CPU and as on a device that computes by itself."""
    if request.param == "audio late":
        monkeypatch.setattr("megatalker.engine.codec_stage.Download", SlowDownload)


@pytest.fixture(scope="session")
def demo() -> Checkpoint:
    """The voice that comes with the package."""
    return Checkpoint.open("demo")
