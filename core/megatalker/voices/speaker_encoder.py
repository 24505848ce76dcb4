"""The speaker encoder of ``base`` checkpoints, loaded without the talker."""

import importlib
import json
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.checkpoint.official import load_qwen_tts
from megatalker.errors import CheckpointError

_PREFIX = "speaker_encoder."


class SpeakerEncoder:
    """The official speaker encoder, fed by the official mel spectrogram.

    Raises:
        CheckpointError: the checkpoint has no speaker encoder, or one that does not match its configuration.
    """

    def __init__(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> None:
        package = load_qwen_tts().__name__
        modelling = importlib.import_module(f"{package}.core.models.modeling_qwen3_tts")
        configuration = importlib.import_module(f"{package}.core.models.configuration_qwen3_tts")
        raw = json.loads((checkpoint.folder / "config.json").read_text(encoding="utf-8"))
        config = configuration.Qwen3TTSSpeakerEncoderConfig(**raw.get("speaker_encoder_config", {}))
        self._mel: Callable[..., Tensor] = modelling.mel_spectrogram
        self._module: nn.Module = modelling.Qwen3TTSSpeakerEncoder(config)
        self._load(checkpoint)
        self._module.to(device=device, dtype=dtype).eval()
        self._device, self._dtype = device, dtype

    def _load(self, checkpoint: Checkpoint) -> None:
        names = [name for name in checkpoint.tensor_names() if name.startswith(_PREFIX)]
        state = {name.removeprefix(_PREFIX): checkpoint.tensor(name) for name in names}
        try:
            # assigned, not copied: the last bits of a convolution can depend on where its weights lie in memory
            self._module.load_state_dict(state, assign=True)
        except RuntimeError as error:
            raise CheckpointError(f"checkpoint {checkpoint.name!r} has no matching speaker encoder: {error}") from error

    @torch.no_grad()
    def __call__(self, samples: npt.NDArray[np.float32]) -> Tensor:
        """``[samples]`` float32 within [-1, 1] at 24 kHz -> ``[talker hidden size]`` on the CPU."""
        mel = self._mel(
            torch.from_numpy(samples).unsqueeze(0),
            n_fft=1024,
            num_mels=128,
            sampling_rate=SAMPLE_RATE,
            hop_size=256,
            win_size=1024,
            fmin=0,
            fmax=SAMPLE_RATE // 2,
        )
        embedded: Tensor = self._module(mel.transpose(1, 2).to(device=self._device, dtype=self._dtype))[0]
        return embedded.cpu()
