"""AudioSeal, the watermark of Meta AI, in its causal form, which adds no delay.

The package's own ``streaming()`` reaches the outermost module only, so that its samples depend on the chunks. Here
every module keeps its state, and the samples are those of the whole recording. Its weights come from Hugging Face.
"""

import copy
import hashlib
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import numpy as np
import torch
from numpy.typing import NDArray

from megatalker.errors import UnsupportedError, describe_error
from megatalker.plugins.watermark import MarkingStream, WatermarkModel, WatermarkPlugin

Samples = NDArray[np.float32]

GENERATOR, DETECTOR = "audioseal_wm_streaming", "audioseal_detector_streaming"
MESSAGE_BITS = 16


class AudioSealModel(WatermarkModel):
    """The two networks of the package, and its modules.

    Args:
        generator: an ``AudioSealWM`` of causal layers.
        detector: an ``AudioSealDetector``.
    """

    def __init__(self, generator: Any, detector: Any) -> None:
        self.generator, self.detector = generator.eval(), detector.eval()
        self.message = torch.zeros(1, MESSAGE_BITS, dtype=torch.int64)
        """The same in every utterance: a random one would make samples differ from run to run."""

    def open(self) -> "AudioSealStream":
        return AudioSealStream(self)

    @torch.inference_mode()
    def detect(self, samples: Samples) -> float:
        """Return the share of samples in which the detector sees the mark."""
        from audioseal.libs.moshi.utils.compile import no_compile

        with no_compile():
            found, _ = self.detector.detect_watermark(torch.from_numpy(samples)[None, None])
        return float(found[0])


class AudioSealStream(MarkingStream):
    """Marks one utterance with layers of its own, which share their weights with all others."""

    def __init__(self, model: AudioSealModel) -> None:
        from audioseal.libs.moshi.modules.streaming import StreamingModule

        shared = {id(weight): weight for weight in model.generator.parameters()}
        self._generator, self._message = copy.deepcopy(model.generator, shared), model.message
        for module in self._generator.modules():
            if isinstance(module, StreamingModule):
                module._streaming_state = module._init_streaming_state(1)
                module._streaming_state.init_stream()

    @torch.inference_mode()
    def mark(self, frame: Samples) -> Samples:
        from audioseal.libs.moshi.utils.compile import no_compile

        with no_compile():  # it would compile for minutes at the first frame
            marked: Samples = self._generator(torch.from_numpy(frame)[None, None], message=self._message)[0, 0].numpy()
        return marked

    def finish(self) -> Samples:
        return np.empty(0, np.float32)


def load() -> AudioSealModel:
    """Load the published weights, from the package's cache or from Hugging Face.

    Raises:
        UnsupportedError: the package is missing, or the weights cannot be had.
    """
    try:
        from audioseal import AudioSeal
    except ImportError as error:
        raise UnsupportedError(
            f"the watermark 'audioseal' needs the package {error.name}; install the extra: "
            "pip install 'megatalker[audioseal]'"
        ) from error
    try:
        return AudioSealModel(AudioSeal.load_generator(GENERATOR), AudioSeal.load_detector(DETECTOR))
    except Exception as error:  # of torch.hub, the network or the file
        raise UnsupportedError(
            f"the weights of AudioSeal cannot be had from Hugging Face ({describe_error(error)}); once loaded they "
            "stay in the folder 'audioseal' of AUDIOSEAL_CACHE_DIR, or of XDG_CACHE_HOME"
        ) from error


def would_download() -> str | None:
    """Name the weights that are not in the package's cache yet."""
    try:
        from audioseal.loader import load_local_model_config
    except ImportError:  # which `load` tells
        return None
    cache = Path(os.environ.get("AUDIOSEAL_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cards = [load_local_model_config(card) for card in (GENERATOR, DETECTOR)]
    addresses = [card.checkpoint for card in cards if card is not None]
    missing = [
        address for address in addresses if not (cache / "audioseal" / _stored_name(urlparse(address).path)).is_file()
    ]
    return " and ".join(missing) or None


def _stored_name(path: str) -> str:
    """Return the name under which the package keeps what it loaded from this path of an address."""
    return hashlib.sha1(path.encode(), usedforsecurity=False).hexdigest()[:24]


AUDIOSEAL = WatermarkPlugin("audioseal", "Meta AI's AudioSeal: no delay, a large network", 0, 0.5, load, would_download)
