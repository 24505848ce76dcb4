"""The speaker encoder of ``base`` checkpoints, loaded without the talker."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.shapes import speaker_encoder_shapes
from megatalker.plugins.precision import exact_products
from megatalker.voices.ecapa_tdnn import EcapaTdnn
from megatalker.voices.mel import log_mel

_PREFIX = "speaker_encoder."


class SpeakerEncoder:
    """Recordings to speaker embeddings, in float32: equal to the official encoder's within 1e-5.

    Raises:
        CheckpointError: the checkpoint has no speaker encoder, or one that does not match its configuration.
    """

    def __init__(self, checkpoint: Checkpoint, device: torch.device) -> None:
        config = checkpoint.speaker_encoder_config
        # not copied: the last bits of a small convolution can depend on where its weights lie in memory
        tensors = {
            name.removeprefix(_PREFIX): checkpoint.tensor(name).to(device, torch.float32)
            for name in speaker_encoder_shapes(config)
        }
        self._module = EcapaTdnn.from_tensors(config, tensors)
        self._device = device

    def __call__(self, samples: npt.NDArray[np.float32]) -> Tensor:
        """``[samples]`` float32 at 24 kHz, at least one frame -> ``[talker hidden size]`` on the CPU."""
        with torch.inference_mode(), exact_products(self._device):
            mel = log_mel(torch.from_numpy(samples)[None])
            embedded: Tensor = self._module(mel.to(self._device))[0].cpu()
        return embedded.clone()  # outside, so that it is an ordinary tensor
