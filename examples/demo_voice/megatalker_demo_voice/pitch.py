"""How often speech keeps its pitch on the way through the codec. Without pitch it whispers, and speakers are alike."""

import torch
from torch import Tensor
from torch.nn import functional as F

from megatalker.checkpoint.config import SAMPLE_RATE

WINDOW, STEP = 1536, 768
_LOWEST_HZ, _HIGHEST_HZ = 60, 330
_LOUD = 0.02
"""Root mean square of a window that counts."""
VOICED = 0.6
"""A window is voiced when it repeats itself as well as this, 1 being exactly."""
_AS_GOOD = 0.9
_TOLERANCE = 0.06
"""About a semitone."""


def pitch_kept(made: Tensor, wanted: Tensor) -> tuple[int, int]:
    """Two waveforms ``[samples]`` -> windows in which ``made`` has the pitch of ``wanted``, and how many are voiced."""
    (theirs, clear), (ours, repeats) = pitches(wanted), pitches(made)
    voiced = clear >= VOICED
    kept = voiced & (repeats >= VOICED / 2) & ((ours / theirs).log().abs() < _TOLERANCE)
    return int(kept.sum()), int(voiced.sum())


def pitches(wave: Tensor) -> tuple[Tensor, Tensor]:
    """``[samples]`` -> each window's Hz, and how well it repeats itself after such a period (0 where it is quiet)."""
    windows = wave.unfold(0, WINDOW, STEP)
    windows = windows - windows.mean(1, keepdim=True)
    periods = torch.arange(SAMPLE_RATE // _HIGHEST_HZ, SAMPLE_RATE // _LOWEST_HZ, device=wave.device)
    match = torch.fft.irfft(torch.fft.rfft(windows, 2 * WINDOW).abs().square())
    match = match / match[:, :1].clamp(min=1e-9)
    match = match[:, periods] * (WINDOW / (WINDOW - periods))
    best = match.amax(1)
    # of several equally good periods the first: the others are its multiples
    padded = F.pad(match, (1, 1), value=torch.inf)
    peak = (match >= padded[:, :-2]) & (match >= padded[:, 2:]) & (match >= _AS_GOOD * best[:, None])
    loud = windows.square().mean(1).sqrt() >= _LOUD
    return SAMPLE_RATE / periods[peak.int().argmax(1)], torch.where(loud & peak.any(1), best, 0.0)
