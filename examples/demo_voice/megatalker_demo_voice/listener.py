"""The speaker encoder, learning: from what the talker can do with its x-vectors, and from being asked."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from megatalker.checkpoint.encoder_config import SpeakerEncoderConfig
from megatalker.testing.configs import speaker_encoder_config
from megatalker.testing.recipe import CheckpointRecipe
from megatalker.voices.ecapa_tdnn import EcapaTdnn
from megatalker_demo_voice.crowd import traits
from megatalker_demo_voice.references import References
from megatalker_demo_voice.speakers import EspeakSpeaker

_MEAN, _SPREAD = -6.0, 2.5
"""Mean and spread of log mel spectra."""
_ASKED = 0.3
"""Weight of its answers among the losses."""


class SpeakerListener(nn.Module):
    """Encodes references into speakers. It is also asked for pitch and formants, so that it learns sooner."""

    def __init__(self, recipe: CheckpointRecipe, speakers: Sequence[EspeakSpeaker], references: References) -> None:
        super().__init__()
        hidden, device = recipe.talker.hidden, references.mels.device
        self.encoder = _made(recipe)
        self._references = references
        self._traits: Tensor
        self.register_buffer("_traits", torch.tensor([traits(speaker) for speaker in speakers]), persistent=False)
        self.answer = nn.Linear(hidden, self._traits.shape[1])
        self.to(device)

    def forward(self, voices: Tensor) -> tuple[Tensor, Tensor]:
        """``[batch]`` -> ``[batch, hidden]`` x-vectors of references of these voices, and how wrong the answers are."""
        # in full precision: the pooled spread is a small difference of large numbers
        with torch.autocast(voices.device.type, enabled=False):
            x_vectors = self.encoder(self._references.draw(voices))
            return x_vectors, _ASKED * F.mse_loss(self.answer(x_vectors), self._traits[voices])


@torch.no_grad()
def _made(recipe: CheckpointRecipe) -> nn.Module:
    """Return a module whose first weights let log mel spectra through at unit size."""
    sizes = speaker_encoder_config(recipe.speaker_encoder, recipe.talker.hidden)
    encoder = EcapaTdnn(SpeakerEncoderConfig.read(sizes))
    for name, parameter in encoder.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        else:
            gain = 0.7 if name.startswith(("fc", "asp")) else 1.4  # what is rectified loses half of its power
            nn.init.normal_(parameter, std=gain / (parameter.shape[1] * parameter.shape[2]) ** 0.5)
    first = encoder.get_submodule("blocks.0.conv")
    assert isinstance(first, nn.Conv1d)
    assert first.bias is not None
    first.weight.div_(_SPREAD)
    first.bias.copy_(-_MEAN * first.weight.sum((1, 2)))
    return encoder
