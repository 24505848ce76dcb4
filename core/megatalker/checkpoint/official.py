"""The one place that imports the official ``qwen-tts`` package: quietly, and on CPU builds of torch too."""

import contextlib
import importlib
import importlib.util
import io
import logging
import os
import shutil
import sys
import threading
import warnings
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from megatalker.checkpoint.tensors import refuse_nonfinite
from megatalker.errors import CheckpointError, UnsupportedError

if TYPE_CHECKING:
    from megatalker.checkpoint import Checkpoint

INSTALL = "pip install 'megatalker[official]'"
_import_lock = threading.Lock()


def why_no_official() -> str | None:
    """Say what is missing where the official package is not installed, and how to get it; ``None``: it is installed."""
    if importlib.util.find_spec("qwen_tts") is not None:
        return None
    return f"the official package qwen-tts is not installed; {INSTALL}"


def refuse_telemetry() -> None:
    """Switch off the telemetry of onnxruntime, which it has from version 1.29 on. Call this before its first import. A
    value of ``ORT_DISABLE_TELEMETRY`` that is set already is kept.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def load_qwen_tts() -> ModuleType:
    """Import the official package, once, without its banners.

    Only its 25 Hz tokenizer, which megatalker does not use, needs torchaudio and the sox program; where they do not
    work, stand-ins take their place during this import and are removed afterwards.

    Raises:
        UnsupportedError: the extra ``official`` is not installed, or not whole.
    """
    with _import_lock:
        if "qwen_tts" in sys.modules:
            return sys.modules["qwen_tts"]
        missing = why_no_official()
        if missing is not None:
            raise UnsupportedError(missing)
        refuse_telemetry()
        try:
            with _stand_ins(), quiet(), contextlib.redirect_stdout(io.StringIO()):
                return importlib.import_module("qwen_tts")
        except ImportError as error:
            raise UnsupportedError(f"the official package qwen-tts cannot be imported: {error}; {INSTALL}") from error


def load_official_model(checkpoint: "Checkpoint", device: torch.device, dtype: torch.dtype) -> Any:
    """The official ``Qwen3TTSModel`` of a checkpoint, in evaluation mode, with scaled-dot-product attention.

    Raises:
        CheckpointError: the official package cannot load the folder, or a weight is NaN or infinite.
        UnsupportedError: as :func:`load_qwen_tts`.
    """
    model_class = load_qwen_tts().Qwen3TTSModel
    wrapper = _from_pretrained(model_class, checkpoint, "", device, dtype, attn_implementation="sdpa")
    wrapper.model.eval()
    # generate() otherwise announces on every call that it pads with the end-of-speech id
    wrapper.model.talker.generation_config.pad_token_id = checkpoint.config.codec_eos_id
    return wrapper


def load_official_codec(checkpoint: "Checkpoint", device: torch.device, dtype: torch.dtype) -> Any:
    """The official ``Qwen3TTSTokenizer`` of a checkpoint's ``speech_tokenizer`` folder, in evaluation mode.

    Raises:
        CheckpointError: the official package cannot load the folder, or a weight is NaN or infinite.
        UnsupportedError: as :func:`load_qwen_tts`.
    """
    tokenizer_class = load_qwen_tts().Qwen3TTSTokenizer
    wrapper = _from_pretrained(tokenizer_class, checkpoint, "speech_tokenizer", device, dtype)
    wrapper.model.eval()
    return wrapper


def _from_pretrained(
    wrapper: Any, checkpoint: "Checkpoint", subfolder: str, device: torch.device, dtype: torch.dtype, **options: Any
) -> Any:
    folder = checkpoint.folder / subfolder
    try:
        with quiet():
            loaded = wrapper.from_pretrained(str(folder), device_map=str(device), dtype=dtype, **options)
    except Exception as error:  # it may stumble over any value of the configuration, in any way
        raise CheckpointError(
            f"the official qwen-tts package cannot load {str(folder)!r}: {type(error).__name__}: {error}. "
            "Expected a folder in the layout of the published checkpoints."
        ) from error
    for name, tensor in loaded.model.state_dict().items():
        if tensor.is_floating_point():
            refuse_nonfinite(tensor, name, folder)
    return loaded


@contextlib.contextmanager
def _stand_ins() -> Iterator[None]:
    """Put empty modules in the place of those optional imports that would fail or print."""
    missing = [] if _imports("torchaudio") else ["torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi"]
    if shutil.which("sox") is None and "sox" not in sys.modules:
        missing.append("sox")
    for name in missing:
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, loader=None, is_package=True)
        module.__path__ = []
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
    try:
        yield
    finally:
        for name in missing:
            del sys.modules[name]


def _imports(name: str) -> bool:
    before = set(sys.modules)
    try:
        with quiet():
            importlib.import_module(name)
    except (ImportError, OSError, RuntimeError):  # a binary for libraries that are not there, or for another CUDA
        for partial in [module for module in sys.modules if module.split(".")[0] == name and module not in before]:
            del sys.modules[partial]
        return False
    return True


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No warnings, log lines or progress bars from transformers and its friends; errors still surface as exceptions."""
    from transformers.utils import logging as transformers_logging

    verbosity, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    disabled = logging.root.manager.disable
    logging.disable(max(disabled, logging.WARNING))
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
