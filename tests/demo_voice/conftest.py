"""Fixtures that tests of the recipe share."""

from pathlib import Path

import pytest

from megatalker_demo_voice.tokens import write_tokenizer


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return folder
