"""The demo voice's text tokenizer: trained on the kind of text that the voice is trained on."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from megatalker.testing.tokenizer import build_tokenizer
from megatalker_demo_voice.text import TextSource

_LINES = 60_000
_TURN = "<|im_start|>assistant\n{}<|im_end|>\n<|im_start|>assistant\n"
_BEFORE, _AFTER = 3, 5


def write_tokenizer(folder: Path) -> None:
    """Write ``vocab.json``, ``merges.txt`` and ``tokenizer_config.json``; always the same ones."""
    folder.mkdir(parents=True, exist_ok=True)
    source = TextSource("tokenizer")
    build_tokenizer(folder, [source.utterance() for _ in range(_LINES)])


def load_tokenizer(folder: Path) -> Any:
    """A ``transformers.Qwen2TokenizerFast``, loaded as officially done."""
    from transformers import Qwen2TokenizerFast

    return Qwen2TokenizerFast.from_pretrained(str(folder), fix_mistral_regex=True)


def text_ids(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Ids of each text alone, tokenised inside the official template and cut out where the official code cuts."""
    whole = tokenizer([_TURN.format(text.strip()) for text in texts])["input_ids"]
    return [ids[_BEFORE:-_AFTER] for ids in whole]


def role_ids(tokenizer: Any) -> list[int]:
    """The three ids before every text."""
    ids: list[int] = tokenizer(_TURN.format(""))["input_ids"][:_BEFORE]
    return ids
