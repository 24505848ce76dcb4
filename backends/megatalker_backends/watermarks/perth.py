"""Perth, the watermark of Resemble AI, as a stream.

A network reads the magnitudes below 2 kHz of a Fourier transform with a step of 10 ms and changes them by a few
decibels. The published program transforms whole recordings at 32 kHz. Here the same weights are used at 24 kHz, whose
transform has the same bins with a window of the same 64 ms, and convolutions carry their left context from frame to
frame. The speech is ready three frames late: half a window on each side, and 15 steps to the right in five
convolutions.

The package is not imported, since it needs ``pkg_resources`` and torchaudio; only its weights are read.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from megatalker.checkpoint.config import FRAME_SAMPLES
from megatalker.errors import UnsupportedError
from megatalker.plugins.watermark import MarkingStream, WatermarkModel, WatermarkPlugin

Samples = NDArray[np.float32]

DELAY_FRAMES = 3
WINDOW, HOP = 1536, 240
"""64 ms and 10 ms at 24 kHz."""
STEPS = FRAME_SAMPLES // HOP
BINS = 128
"""Bins that are marked: those below 2 kHz."""
LEVEL = 2048 / WINDOW
"""The published transform's window at 32 kHz is this many times longer, and so are its magnitudes larger."""
FLOOR, FLOOR_DB, RANGE_DB = 1e-9, -180.0, 195.0
LAYERS, KERNEL, HIDDEN = 5, 7, 256
LOOK_AHEAD = LAYERS * (KERNEL // 2)
"""Steps of 10 ms that the network looks into the future."""
KEPT = WINDOW // 2 + 3 * HOP
"""Samples before a frame that its transforms need: see :meth:`PerthStream.mark`."""
SILENT_SHARE = 0.05
"""Steps whose magnitudes are below this share of the loudest step's are not listened to."""
WEIGHTS = Path("perth_net", "pretrained", "implicit", "perth_net_250000.pth.tar")
EXTRA = "install the extra: pip install 'megatalker[watermark]'"


class ConvolutionStack:
    """A published network: convolutions of width 1, five of width 7, and of width 1.

    Args:
        layers: weight ``[outputs, inputs, width]`` and bias ``[outputs]`` of each.
    """

    def __init__(self, layers: Sequence[tuple[Tensor, Tensor]]) -> None:
        self._layers = layers

    def whole(self, magnitudes: Tensor) -> Tensor:
        """``[batch, 128, steps]`` to ``[batch, outputs, steps]``, with zeros around each layer's input."""
        for weight, bias in self._layers:
            magnitudes = self._activated(F.conv1d(magnitudes, weight, bias, padding=weight.shape[2] // 2), weight)
        return magnitudes

    def step(self, magnitudes: Tensor, tails: list[Tensor]) -> Tensor:
        """Compute the same piece by piece: ``tails`` hold the last six columns of each wide layer's input."""
        wide = 0
        for weight, bias in self._layers:
            if weight.shape[2] > 1:
                magnitudes = torch.cat((tails[wide], magnitudes), 2)
                tails[wide] = magnitudes[:, :, 1 - KERNEL :].clone()
                wide += 1
            magnitudes = self._activated(F.conv1d(magnitudes, weight, bias), weight)
        return magnitudes

    def _activated(self, made: Tensor, weight: Tensor) -> Tensor:
        return made if weight is self._layers[-1][0] else F.leaky_relu(made)


class PerthModel(WatermarkModel):
    """The published networks: one that marks, and three that listen at different speeds.

    Args:
        weights: the published state, names and tensors.
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self.encoder = _network(weights, "encoder.layers")
        self.listeners = [_network(weights, f"decoder.{name}_layers") for name in ("slow", "normal", "fast")]
        self.window = torch.hann_window(WINDOW)
        """The window of the transform and its inverse, ``[1536]``."""
        self.scale = self.window / _overlapped(self.window)
        """Window of the inverse over the sum of squared windows, ``[1536]``."""

    def open(self) -> "PerthStream":
        return PerthStream(self)

    def transform(self, samples: Tensor) -> Tensor:
        """Windows of ``[n]`` that begin every 240 samples, to ``[769, steps]`` complex."""
        spectrum: Tensor = torch.fft.rfft(samples.unfold(0, WINDOW, HOP) * self.window)
        return spectrum.T

    @torch.inference_mode()
    def detect(self, samples: Samples) -> float:
        """Weigh the means of the listeners over all steps that are not silent by their own trust."""
        padded = F.pad(torch.from_numpy(samples)[None], [WINDOW // 2] * 2, mode="reflect")[0]
        return self.confidence(levels(self.transform(padded)))

    def confidence(self, magnitudes: Tensor) -> float:
        """``[769, steps]`` of :func:`levels` to the confidence from 0 to 1."""
        sums = magnitudes.sum(0)
        mask = (sums > SILENT_SHARE * sums.max()).float()
        steps, low = len(sums), magnitudes[None, :BINS]
        trusts, marks = [], []
        for speed, listener in zip((1.25, 1.0, 0.75), self.listeners, strict=True):
            size = int(steps * speed)
            heard = low if size == steps else F.interpolate(low, size=size, mode="linear", align_corners=True)
            there = F.interpolate(mask[None, None], size=size, mode="nearest")[0, 0]
            trust, mark = (listener.whole(heard)[0] * there).sum(1) / there.sum()
            trusts.append(trust)
            marks.append(mark)
        share = torch.softmax(torch.stack(trusts), 0)
        return float((torch.stack(marks) * share).sum().clamp(0.0, 1.0))


class PerthStream(MarkingStream):
    """Marks one utterance; its state is 40 kB."""

    def __init__(self, model: PerthModel) -> None:
        self._model = model
        self._before = torch.zeros(KEPT)
        self._spectrum = torch.zeros(BINS, LOOK_AHEAD, dtype=torch.complex64)
        self._tails = [torch.zeros(1, HIDDEN, KERNEL - 1) for _ in range(LAYERS)]
        self._sum = torch.zeros(2 * FRAME_SAMPLES + 48)
        self._speech: list[Samples] = []
        self._frames = 0

    @torch.inference_mode()
    def mark(self, frame: Samples) -> Samples:
        """Return the frame that came three frames earlier, marked.

        With frame ``k`` come the samples before ``1920 (k + 1)``, and so the transforms whose middle is at the steps
        ``8 k - 3`` to ``8 k + 4``. The network is then certain of the 8 steps that are 15 earlier, which complete all
        samples before ``1920 k - 3168``.
        """
        model = self._model
        samples = torch.cat((self._before, torch.from_numpy(frame)))
        self._before = samples[-KEPT:].clone()
        spectrum = model.transform(samples[: WINDOW + (STEPS - 1) * HOP])
        change = model.encoder.step(levels(spectrum)[None, :BINS], self._tails)[0]
        known = torch.cat((self._spectrum, spectrum[:BINS]), 1)
        self._spectrum = known[:, STEPS:].clone()
        difference = known[:, :STEPS] * (10.0 ** (change * (RANGE_DB / 20)) - 1.0)
        pieces = torch.fft.irfft(difference.T, WINDOW) * model.scale
        total = F.pad(self._sum, (0, FRAME_SAMPLES))
        for step, piece in enumerate(pieces):
            begin = 672 + HOP * step
            total[begin : begin + WINDOW] += piece
        self._sum = total[FRAME_SAMPLES:].clone()
        self._speech.append(frame)
        self._frames += 1
        if self._frames <= DELAY_FRAMES:
            return np.empty(0, np.float32)
        marked: Samples = self._speech.pop(0) + total[:FRAME_SAMPLES].numpy()
        return marked

    def finish(self) -> Samples:
        silence, rest = np.zeros(FRAME_SAMPLES, np.float32), min(self._frames, DELAY_FRAMES)
        ready = [self.mark(silence) for _ in range(DELAY_FRAMES)]
        return np.concatenate(ready)[-rest * FRAME_SAMPLES :] if rest else np.empty(0, np.float32)


def levels(spectrum: Tensor) -> Tensor:
    """Magnitudes of a complex transform in the published unit: 0 at -180 dB, 1 at 15 dB."""
    decibels = 20 * torch.log10((spectrum.abs() * LEVEL).clamp(min=FLOOR))
    return (decibels - FLOOR_DB) / RANGE_DB


def _overlapped(window: Tensor) -> Tensor:
    """The sum of all squared windows that overlap at each sample of one, ``[1536]``."""
    around = torch.zeros(3 * WINDOW)
    for begin in range(WINDOW % HOP, 2 * WINDOW + 1, HOP):
        around[begin : begin + WINDOW] += window.square()
    first = WINDOW % HOP + HOP * ((WINDOW - WINDOW % HOP) // HOP)
    return around[first : first + WINDOW]


def _network(weights: Mapping[str, Tensor], name: str) -> ConvolutionStack:
    convolutions = [f"{name}.{layer}.conv" for layer in range(LAYERS + 2)]
    return ConvolutionStack([(weights[f"{one}.weight"], weights[f"{one}.bias"]) for one in convolutions])


def load() -> PerthModel:
    """Read the published weights out of the installed package.

    Raises:
        UnsupportedError: it is not installed, or another version.
    """
    found = importlib.util.find_spec("perth")
    if found is None or found.origin is None:
        raise UnsupportedError(f"the watermark 'perth' needs the package resemble-perth; {EXTRA}")
    weights = Path(found.origin).parent / WEIGHTS
    if not weights.is_file():
        raise UnsupportedError(f"resemble-perth has no weights {WEIGHTS}; {EXTRA}, which brings a version that has")
    return PerthModel(torch.load(weights, map_location="cpu", weights_only=True)["model"])


PERTH = WatermarkPlugin("perth", "Resemble AI's Perth: below 2 kHz, 240 ms late", DELAY_FRAMES, 0.5, load)
