"""The speaker encoder of ``base`` checkpoints, loaded without the talker."""

import importlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.checkpoint.fields import Table
from megatalker.checkpoint.official import load_qwen_tts
from megatalker.errors import CheckpointError

MEL_HOP = 256
"""Samples from one row of :func:`speaker_mel` to the next."""
_PREFIX = "speaker_encoder."
_LARGEST = 2**14
_LISTS = ("enc_channels", "enc_kernel_sizes", "enc_dilations")
_INTEGERS = {
    "mel_dim": _LARGEST,
    "enc_dim": _LARGEST,
    "enc_attention_channels": _LARGEST,
    "enc_res2net_scale": 64,
    "enc_se_channels": _LARGEST,
}


class SpeakerEncoder:
    """The official speaker encoder, fed by the official mel spectrogram.

    Raises:
        CheckpointError: the checkpoint has no speaker encoder, or one that does not match its configuration.
    """

    def __init__(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> None:
        sizes = _sizes(checkpoint.folder / "config.json")
        self._module: nn.Module = _loaded(sizes, checkpoint)
        self._module.to(device=device, dtype=dtype).eval()
        self._device, self._dtype = device, dtype

    @torch.no_grad()
    def __call__(self, samples: npt.NDArray[np.float32]) -> Tensor:
        """``[samples]`` float32 at 24 kHz -> ``[talker hidden size]`` on the CPU."""
        mel = speaker_mel(torch.from_numpy(samples).unsqueeze(0))
        embedded: Tensor = self._module(mel.to(device=self._device, dtype=self._dtype))[0]
        return embedded.cpu()


def speaker_mel(samples: Tensor) -> Tensor:
    """``[batch, samples]`` float32 at 24 kHz -> ``[batch, samples / 256, 128]``: the official log mel spectrogram."""
    mel = _without_prints(_official("modeling_qwen3_tts").mel_spectrogram)(
        samples,
        n_fft=1024,
        num_mels=128,
        sampling_rate=SAMPLE_RATE,
        hop_size=MEL_HOP,
        win_size=1024,
        fmin=0,
        fmax=SAMPLE_RATE // 2,
    )
    return mel.transpose(1, 2)


def speaker_encoder_module(sizes: Mapping[str, Any]) -> nn.Module:
    """The official module, freshly made; ``sizes`` as in ``speaker_encoder_config``."""
    config = _official("configuration_qwen3_tts").Qwen3TTSSpeakerEncoderConfig(**sizes)
    module: nn.Module = _official("modeling_qwen3_tts").Qwen3TTSSpeakerEncoder(config)
    return module


def _official(module: str) -> Any:
    return importlib.import_module(f"{load_qwen_tts().__name__}.core.models.{module}")


def _sizes(file: Path) -> dict[str, Any]:
    """Return the content of ``speaker_encoder_config``; the official class has a default for all that is missing."""
    whole = Table(file, json.loads(file.read_text(encoding="utf-8")))
    if not whole.has("speaker_encoder_config"):
        return {}
    table = whole.table("speaker_encoder_config")
    table.demand("sample_rate", SAMPLE_RATE)
    lists = {key: list(table.integers(key, 1, _LARGEST)) for key in _LISTS if table.has(key)}
    sizes = lists | {key: table.integer(key, 1, most) for key, most in _INTEGERS.items() if table.has(key)}
    unknown = table.unread()
    if unknown:
        raise CheckpointError(
            f"{file}: {', '.join(unknown)}: the official speaker encoder knows no such key; "
            "correct that file, or take it from an official 12 Hz checkpoint"
        )
    return sizes


def _without_prints(function: Any) -> Callable[..., Tensor]:
    """The same function; the official one prints a warning of every sample beyond full scale, and goes on."""
    quiet = function.__globals__ | {"print": lambda *_: None}
    return FunctionType(function.__code__, quiet, function.__name__, function.__defaults__)


def _loaded(sizes: Mapping[str, Any], checkpoint: Checkpoint) -> nn.Module:
    names = [name for name in checkpoint.tensor_names() if name.startswith(_PREFIX)]
    state = {name.removeprefix(_PREFIX): checkpoint.tensor(name) for name in names}
    try:
        with torch.device("meta"):
            module = speaker_encoder_module(sizes)
        # assigned, not copied: the last bits of a convolution can depend on where its weights lie in memory
        module.load_state_dict(state, assign=True)
    except (RuntimeError, ValueError, IndexError) as error:
        raise CheckpointError(f"checkpoint {checkpoint.name!r} has no matching speaker encoder: {error}") from error
    return module
