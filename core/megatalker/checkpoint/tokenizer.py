"""Loads a checkpoint's text tokenizer with the ``tokenizers`` library alone.

The ids equal those of ``transformers.Qwen2TokenizerFast``, which the official package loads; importing transformers for
it would take longer than everything else at the start of a process.
"""

import json
from pathlib import Path
from typing import Any

from packaging.version import Version
from tokenizers import (  # type: ignore[import-untyped]
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
)

QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The word splitter of Qwen2 tokenizers."""
_MISTRAL_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The word splitter of newer Mistral tokenizers, which the official processor puts into some checkpoints' place."""
_SMALLEST_CORRECTED = 100_000
_SPECIAL = {"bos_token": None, "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
"""Tokens that the configuration may name, and what they are where it does not."""


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a folder in the official layout: ``tokenizer.json`` where there is one, else made from
    ``vocab.json`` and ``merges.txt``; control tokens from ``tokenizer_config.json``.

    Raises:
        Exception: a file is missing or damaged; the library raises nothing more precise.
    """
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    complete = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(complete)) if complete.is_file() else _from_vocabulary(folder)
    if tokenizer.get_vocab_size(with_added_tokens=False) > _SMALLEST_CORRECTED and _is_corrected(folder):
        tokenizer.pre_tokenizer[0] = pre_tokenizers.Split(Regex(_MISTRAL_WORDS), "isolated")
    tokenizer.add_tokens(_added_tokens(config))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _from_vocabulary(folder: Path) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    tokenizer.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(Regex(QWEN2_WORDS), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _is_corrected(folder: Path) -> bool:
    """Whether the official processor, which passes ``fix_mistral_regex``, replaces the word splitter.

    transformers takes a checkpoint for a Mistral one by the version that wrote it.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    written_by = config.get("transformers_version")
    if not written_by:
        return True
    version = Version(written_by)
    known = version <= Version("4.57.2") and config.get("model_type") is not None
    return not known and version < Version("5.0.0")


def _added_tokens(config: dict[str, Any]) -> list[AddedToken]:
    """The control tokens, by id, and any others that the configuration names."""
    listed = sorted(config.get("added_tokens_decoder", {}).items(), key=lambda item: int(item[0]))
    tokens = [AddedToken(**fields) for _, fields in listed]
    known = {token.content for token in tokens}
    named = [config.get(name, default) for name, default in _SPECIAL.items()]
    for value in (*named, *config.get("additional_special_tokens", ())):
        if isinstance(value, str) and value not in known:
            tokens.append(AddedToken(value, normalized=False, special=True))
            known.add(value)
    return tokens
