"""Opens checkpoints in the official layout: the demo, local folders and hub ids, all through the same code."""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from megatalker.checkpoint.config import CodecConfig, ModelConfig
from megatalker.checkpoint.encoder_config import CodecEncoderConfig, SpeakerEncoderConfig
from megatalker.checkpoint.fields import Table
from megatalker.checkpoint.hub import ProgressCallback
from megatalker.checkpoint.location import locate
from megatalker.checkpoint.shapes import (
    codec_decoder_shapes,
    codec_encoder_shapes,
    codec_unused_shapes,
    speaker_encoder_shapes,
    talker_shapes,
)
from megatalker.checkpoint.tensors import TensorFiles
from megatalker.checkpoint.tokenizer import load_tokenizer
from megatalker.errors import CheckpointError, InvalidRequestError
from megatalker.sampling import SamplingParams

__all__ = ["Checkpoint"]

logger = logging.getLogger(__name__)

_CONFIG, _GENERATION, _CODEC_CONFIG = "config.json", "generation_config.json", "speech_tokenizer/config.json"
_JSON_FILES = (_CONFIG, _GENERATION, _CODEC_CONFIG)
_GENERATION_WITHOUT_EFFECT = ("_from_model_config", "transformers_version")
_SAMPLING_FIELDS = {
    "do_sample": "do_sample",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "repetition_penalty": "repetition_penalty",
    "subtalker_dosample": "predictor_do_sample",
    "subtalker_temperature": "predictor_temperature",
    "subtalker_top_k": "predictor_top_k",
    "subtalker_top_p": "predictor_top_p",
}


class Checkpoint:
    """A checkpoint on disk: configuration, tokenizer, sampling defaults and memory-mapped tensors. See :meth:`open`."""

    def __init__(self, folder: Path, name: str) -> None:
        """Read and check the folder; raises as :meth:`open`."""
        self.folder = folder
        self.name = name
        """``demo``, the hub id, or the folder's own name."""
        raw = _read_json(folder / _CONFIG)
        _refuse_port(folder, raw)
        defaults, codec = (_read_json(folder / file) for file in _JSON_FILES[1:])
        model, codec_table = Table(folder / _CONFIG, raw), Table(folder / _CODEC_CONFIG, codec)
        generation = Table(folder / _GENERATION, defaults)
        self.config: ModelConfig = ModelConfig.read(model)
        self.codec_config: CodecConfig = CodecConfig.read(codec_table)
        self.sampling: SamplingParams = _sampling(generation, defaults)
        self.max_new_tokens = generation.integer("max_new_tokens", 2, default=2048)
        """Most frames of one decoder stream plus one: the end counts as a step, as in the official package."""
        self.unhonoured_keys: tuple[str, ...] = _in_files(Table.unread, model, generation, codec_table)
        """Keys of the JSON files that nothing here reads and that are not known to be without effect, such as
        ``config.json: talker_config.new_idea``: the official package may compute something else."""
        self.idle_keys: tuple[str, ...] = _in_files(Table.ignored, model, generation, codec_table)
        """Keys of the JSON files whose values are known to change nothing: of training, of other libraries."""
        if self.unhonoured_keys:
            logger.warning("checkpoint %r has keys that are not honoured: %s", name, ", ".join(self.unhonoured_keys))
        _check_tokenizer_files(folder)
        _check_ids(folder, self.config, self.codec_config)
        self._encoder_tables = raw.get("speaker_encoder_config"), codec_table
        self._model = TensorFiles(folder)
        self._model.check(talker_shapes(self.config), family="talker.")
        self._codec = TensorFiles(folder / "speech_tokenizer")
        untouched = codec_unused_shapes(self.codec_config)
        self._codec.check(codec_decoder_shapes(self.codec_config), family="decoder.", besides=untouched)

    @classmethod
    def open(cls, name_or_path: str | Path, *, progress: ProgressCallback | None = None) -> "Checkpoint":
        """Open a checkpoint, and download it first where needed (hub ids).

        Args:
            name_or_path: see :func:`megatalker.checkpoint.location.locate`.
            progress: told about the bytes of a download; see :func:`megatalker.checkpoint.hub.download`.

        Raises:
            CheckpointError: it cannot be found or downloaded, a file is missing or damaged, or a tensor that decoding
                needs is missing or has another shape than the configuration says. The message names it and the fix.
        """
        return cls(*locate(name_or_path, progress=progress))

    def tensor(self, name: str) -> Tensor:
        """A tensor of the language model by its official name, such as ``talker.model.norm.weight``.

        Memory-mapped, on the CPU, in its stored type; do not write to it.

        Raises:
            CheckpointError: there is no such tensor, or it holds NaN or infinity (looked at when it is first read).
        """
        return self._model.tensor(name)

    def codec_tensor(self, name: str) -> Tensor:
        """Return a tensor of the speech tokenizer, such as ``decoder.pre_conv.conv.weight``; see :meth:`tensor`."""
        return self._codec.tensor(name)

    def tensor_names(self) -> tuple[str, ...]:
        """Names of all tensors of the language model, sorted."""
        return self._model.names()

    def codec_tensor_names(self) -> tuple[str, ...]:
        """Names of all tensors of the speech tokenizer, sorted."""
        return self._codec.names()

    @cached_property
    def speaker_encoder_config(self) -> SpeakerEncoderConfig:
        """Shapes of the speaker encoder, which ``base`` checkpoints have; read and compared with its tensors on first
        use.

        Raises:
            CheckpointError: there is none, a value of its configuration is not known, or a tensor has another shape.
        """
        raw = self._encoder_tables[0]
        if raw is not None and not isinstance(raw, dict):
            raise Table(self.folder / _CONFIG, {"speaker_encoder_config": raw}).fault(
                "speaker_encoder_config", "an object"
            )
        config = SpeakerEncoderConfig.read(raw, self.folder / _CONFIG)
        self._model.check(speaker_encoder_shapes(config), family="speaker_encoder.")
        return config

    @cached_property
    def codec_encoder_config(self) -> CodecEncoderConfig:
        """Shapes of the speech tokenizer's encoder (waveform to codes); read and compared with its tensors on first
        use.

        Raises:
            CheckpointError: as for :attr:`speaker_encoder_config`.
        """
        whole = self._encoder_tables[1]
        table = whole.table("encoder_config")
        config, groups = CodecEncoderConfig.read(table), self.codec_config.num_quantizers
        if whole.integer("encoder_valid_num_quantizers") != groups or groups > config.num_quantizers:
            raise whole.fault("encoder_valid_num_quantizers", f"decoder_config.num_quantizers, which is {groups}")
        if config.num_semantic_quantizers >= groups:
            raise table.fault("num_semantic_quantizers", f"less than decoder_config.num_quantizers, which is {groups}")
        if config.codebook_size != self.codec_config.codebook_size:
            raise table.fault("codebook_size", f"that of decoder_config, which is {self.codec_config.codebook_size}")
        self._codec.check(codec_encoder_shapes(config), family="encoder.")
        if table.unread():
            logger.warning("checkpoint %r: not honoured: %s", self.name, ", ".join(table.unread()))
        return config

    @cached_property
    def tokenizer(self) -> Any:
        """The text tokenizer (a ``tokenizers.Tokenizer``), loaded on first use; its ids equal the official ones.

        Raises:
            CheckpointError: its files are damaged.
        """
        try:
            return load_tokenizer(self.folder)
        except Exception as error:  # the tokenizers library raises bare Exception for malformed files
            raise CheckpointError(
                f"{self.folder}: the tokenizer files are damaged: {type(error).__name__}: {error}; download them again"
            ) from error

    def release_pages(self) -> None:
        """Let go of the memory that reading tensors took. They stay usable, and are read from the file again."""
        self._model.release_pages()
        self._codec.release_pages()

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that differ between checkpoints with different configuration or weights."""
        digest = hashlib.sha256()
        for name in _JSON_FILES:
            digest.update((self.folder / name).read_bytes())
        digest.update((self._model.fingerprint() + self._codec.fingerprint()).encode())
        return digest.hexdigest()[:16]

    def __repr__(self) -> str:
        return f"Checkpoint({self.name!r}, {self.config.variant}, {self.config.size}, {str(self.folder)!r})"


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        if path.exists() and not path.is_file():
            raise OSError("it is no regular file")  # a pipe would be waited for
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: does not exist, but the official layout has it; copy it here") from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON: {error}; download it again") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: holds a {type(content).__name__}, expected a JSON object; download it again")
    return content


def _refuse_port(folder: Path, raw: Mapping[str, Any]) -> None:
    """Raises:
    CheckpointError: a checkpoint for transformers' own port of the model (its pull request 44517): the codec is
        elsewhere, and tensors of it have other names.
    """
    talker = raw.get("talker_config")
    if isinstance(talker, dict) and "rope_parameters" in talker and "rope_scaling" not in talker:
        raise CheckpointError(
            f"{folder} was converted for transformers' own Qwen3-TTS, expected the layout of the official checkpoints; "
            "use the one that it was made from, such as Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice"
        )


def _in_files(keys: Callable[[Table], list[str]], *tables: Table) -> tuple[str, ...]:
    return tuple(f"{file}: {path}" for file, table in zip(_JSON_FILES, tables, strict=True) for path in keys(table))


def _sampling(table: Table, defaults: Mapping[str, Any]) -> SamplingParams:
    table.skip(*_SAMPLING_FIELDS)
    table.ignore(*_GENERATION_WITHOUT_EFFECT)
    values: dict[str, Any] = {}
    for theirs, ours in _SAMPLING_FIELDS.items():
        if theirs in defaults:
            value = defaults[theirs]
            values[ours] = None if ours.endswith("top_k") and type(value) is int and value == 0 else value
            try:
                SamplingParams(**{ours: values[ours]})
            except InvalidRequestError as error:
                raise table.fault(theirs, str(error).partition(", expected ")[2]) from error
    return SamplingParams(**values)


def _check_tokenizer_files(folder: Path) -> None:
    for name in ("tokenizer_config.json", "vocab.json", "merges.txt"):
        if not (folder / name).is_file():
            raise CheckpointError(
                f"{folder / name}: does not exist; a checkpoint needs its tokenizer files "
                "(tokenizer_config.json, vocab.json, merges.txt). Copy them from the published checkpoint"
            )


def _check_ids(folder: Path, config: ModelConfig, codec: CodecConfig) -> None:
    """Every id that prompts and decoding use must have a row in its table."""
    if codec.num_quantizers != config.num_code_groups:
        raise CheckpointError(
            f"{folder}: the speech tokenizer has {codec.num_quantizers} codebooks, the talker {config.num_code_groups} "
            "code groups; they belong to different checkpoints"
        )
    largest = max(config.first_suppressed_id, config.predictor.vocab_size)
    if codec.codebook_size < largest:
        raise CheckpointError(
            f"{folder}: the speech tokenizer has {codec.codebook_size} codes in a codebook, the talker {largest}; "
            "they belong to different checkpoints"
        )
    codes = {
        "codec_bos_id": config.codec_bos_id,
        "codec_eos_token_id": config.codec_eos_id,
        "codec_pad_id": config.codec_pad_id,
        "codec_think_id": config.codec_think_id,
        "codec_nothink_id": config.codec_nothink_id,
        "codec_think_bos_id": config.codec_think_bos_id,
        "codec_think_eos_id": config.codec_think_eos_id,
        **{f"language {name!r}": value for name, value in config.languages.items()},
        **{f"speaker {name!r}": value for name, value in config.speakers.items()},
    }
    texts = {
        "tts_bos_token_id": config.tts_bos_id,
        "tts_eos_token_id": config.tts_eos_id,
        "tts_pad_token_id": config.tts_pad_id,
    }
    for ids, limit in ((codes, config.talker.vocab_size), (texts, config.text_vocab_size)):
        for what, value in ids.items():
            if not 0 <= value < limit:
                raise CheckpointError(f"{folder / 'config.json'}: {what} is {value}, expected an id below {limit}")
    for speaker, dialect in config.dialects.items():
        if dialect not in config.languages:
            raise CheckpointError(
                f"{folder / 'config.json'}: speaker {speaker!r} has the dialect {dialect!r}, "
                f"expected one of codec_language_id: {', '.join(config.languages)}"
            )
