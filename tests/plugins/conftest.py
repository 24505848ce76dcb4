"""A scripted talker decoder in its shell."""

import pytest

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import ModelConfig
from megatalker.plugins.checked import CheckedTalker
from scripted_talker import Scripted


@pytest.fixture
def config(tiny_custom_voice: Checkpoint) -> ModelConfig:
    return tiny_custom_voice.config


@pytest.fixture
def inner(config: ModelConfig) -> Scripted:
    return Scripted(config)


@pytest.fixture
def talker(inner: Scripted, config: ModelConfig) -> CheckedTalker:
    return CheckedTalker(inner, config)


@pytest.fixture
def hidden(config: ModelConfig) -> int:
    return config.talker.hidden_size
