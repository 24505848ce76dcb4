"""The demo voice's text tokenizer: trained on the kind of text that the voice is trained on."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from megatalker.checkpoint.template import text_ids
from megatalker.testing.tokenizer import build_tokenizer
from megatalker_demo_voice.text import TextSource

_LINES = 60_000


def write_tokenizer(folder: Path) -> None:
    """Write ``vocab.json``, ``merges.txt`` and ``tokenizer_config.json``; always the same ones."""
    folder.mkdir(parents=True, exist_ok=True)
    source = TextSource("tokenizer")
    build_tokenizer(folder, [source.utterance() for _ in range(_LINES)])


def encode_texts(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Ids of each text alone, as :func:`megatalker.checkpoint.template.text_ids` gives them."""
    return [text_ids(tokenizer, text.strip()) for text in texts]
