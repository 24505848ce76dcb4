"""Trains the tokenizers of the checkpoints that the project makes.

The tokenizer of checkpoints with random weights lies under ``tokenizer_files``, with its corpus. After a change of the
corpus run::

    python -c "from megatalker.testing.tokenizer import *; build_tokenizer(TOKENIZER_FOLDER)"
"""

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import (  # type: ignore[import-untyped]
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from megatalker.checkpoint.tokenizer import QWEN2_WORDS

__all__ = ["SPECIAL_TOKENS", "TOKENIZER_FILES", "TOKENIZER_FOLDER", "VOCAB_SIZE", "build_tokenizer"]

TOKENIZER_FOLDER = Path(__file__).parent / "tokenizer_files"
TOKENIZER_FILES = ("vocab.json", "merges.txt", "tokenizer_config.json")
VOCAB_SIZE = 1024
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<tts_text_bos_single>",
    "<|audio_pad|>",
)
"""The last ids of the vocabulary, in this order; named as in the published tokenizers."""

_ROLE_WEIGHT = 20_000
"""The words that open a turn must be one token each: the official code cuts prompts at fixed offsets."""


def build_tokenizer(folder: Path, lines: Sequence[str] | None = None) -> None:
    """Train a byte-level BPE and write :data:`TOKENIZER_FILES` to ``folder``. Deterministic.

    Args:
        folder: an existing one.
        lines: text to train on; ``None`` for ``corpus.txt``.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    if lines is None:
        lines = (TOKENIZER_FOLDER / "corpus.txt").read_text(encoding="utf-8").splitlines()
    tokenizer.train_from_iterator([*lines, *["assistant"] * _ROLE_WEIGHT, *["user"] * _ROLE_WEIGHT], trainer)
    tokenizer.model.save(str(folder))
    config = json.dumps(_tokenizer_config(), indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(config + "\n", encoding="utf-8")


def _tokenizer_config() -> dict[str, object]:
    first = VOCAB_SIZE - len(SPECIAL_TOKENS)
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {str(first + i): {"content": t, **flags} for i, t in enumerate(SPECIAL_TOKENS)},
        "additional_special_tokens": list(SPECIAL_TOKENS[1:]),
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 131072,
        "pad_token": "<|endoftext|>",
        "processor_class": "Qwen3TTSProcessor",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
