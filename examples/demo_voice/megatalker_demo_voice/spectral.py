"""How different two waveforms sound, measured on their spectra at five resolutions."""

import torch
from librosa.filters import mel
from torch import Tensor, nn

from megatalker.checkpoint.config import SAMPLE_RATE

_SIZES = ((256, 20), (512, 40), (1024, 80), (2048, 120), (4096, 120))
"""Window length in samples, and number of mel bands."""
_FLOOR = 1e-4
"""Amplitudes below -80 dB of full scale count as silence."""
_LINEAR = 3.0
"""Plain spectra are where harmonics stand out: with less of them a codec learns to whisper."""


class SpectralLoss(nn.Module):
    """Mean absolute difference of log spectra, log mel spectra and, for the loud parts, plain spectra."""

    def __init__(self) -> None:
        super().__init__()
        for size, bands in _SIZES:
            filters = torch.from_numpy(mel(sr=SAMPLE_RATE, n_fft=size, n_mels=bands, norm=None))
            self.register_buffer(f"mel_{size}", filters / filters.sum(1, keepdim=True))
            self.register_buffer(f"window_{size}", torch.hann_window(size))

    def forward(self, made: Tensor, wanted: Tensor) -> Tensor:
        """``[batch, samples]`` each; a scalar, averaged over everything."""
        total = made.new_zeros(())
        for size, _ in _SIZES:
            ours, theirs = self._amplitudes(made, size), self._amplitudes(wanted, size)
            filters = self.get_buffer(f"mel_{size}")
            total = total + _log_distance(ours, theirs) + _log_distance(filters @ ours, filters @ theirs)
            total = total + _LINEAR * (ours - theirs).abs().mean() / theirs.mean().clamp(min=_FLOOR)
        return total / len(_SIZES)

    def _amplitudes(self, wave: Tensor, size: int) -> Tensor:
        window = self.get_buffer(f"window_{size}")
        spectrum = torch.stft(wave, size, size // 4, window=window, return_complex=True)
        power = spectrum.real.pow(2) + spectrum.imag.pow(2)
        return power.clamp(min=1e-14).sqrt() * (2 / window.sum())


def _log_distance(ours: Tensor, theirs: Tensor) -> Tensor:
    return (ours.clamp(min=_FLOOR).log() - theirs.clamp(min=_FLOOR).log()).abs().mean()
