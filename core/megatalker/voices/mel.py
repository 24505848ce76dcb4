"""Log mel spectra: the front end of the speaker encoder."""

from functools import cache
from math import log

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.checkpoint.encoder_config import MEL_BANDS

MEL_HOP = 256
"""Samples from one row of :func:`log_mel` to the next."""
_WINDOW = 1024
_PADDING = (_WINDOW - MEL_HOP) // 2
_LEAST_POWER = 1e-9
_LEAST_MEL = 1e-5
# Slaney's scale: linear below 1000 Hz, logarithmic above.
_HZ_PER_MEL = 200 / 3
_BREAK_HZ = 1000.0
_BREAK_MEL = _BREAK_HZ / _HZ_PER_MEL
_LOG_STEP = log(6.4) / 27


def log_mel(samples: Tensor) -> Tensor:
    """``[batch, samples]`` float32 at 24 kHz, at least 385 -> ``[batch, samples // 256, 128]``: the log mel spectrogram
    that the official speaker encoder is fed.
    """
    padded = F.pad(samples[:, None], (_PADDING, _PADDING), mode="reflect")[:, 0]
    window = torch.hann_window(_WINDOW, device=samples.device)
    spectrum = torch.stft(padded, _WINDOW, MEL_HOP, window=window, center=False, return_complex=True)
    magnitude = torch.sqrt(torch.view_as_real(spectrum).square().sum(dim=-1) + _LEAST_POWER)
    bands = torch.from_numpy(mel_filters()).to(samples.device) @ magnitude
    return bands.clamp(min=_LEAST_MEL).log().transpose(1, 2)


@cache
def mel_filters() -> NDArray[np.float32]:
    """``[128, 513]``: triangles on Slaney's mel scale from 0 to 12 kHz, each of unit area."""
    bins = np.fft.rfftfreq(_WINDOW, 1 / SAMPLE_RATE)
    top = _BREAK_MEL + log(SAMPLE_RATE / 2 / _BREAK_HZ) / _LOG_STEP
    mels = np.linspace(0.0, top, MEL_BANDS + 2)
    edges = np.where(mels < _BREAK_MEL, mels * _HZ_PER_MEL, _BREAK_HZ * np.exp(_LOG_STEP * (mels - _BREAK_MEL)))
    low, peak, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    triangles = np.maximum(0, np.minimum((bins - low) / (peak - low), (high - bins) / (high - peak)))
    filters: NDArray[np.float32] = (triangles.astype(np.float32) * (2 / (high - low))).astype(np.float32)
    return filters
