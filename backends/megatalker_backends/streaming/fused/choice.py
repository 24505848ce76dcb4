"""Whether the kernels can run a checkpoint's codec on a device, and the runner that does so."""

import logging

import torch

from megatalker.checkpoint.config import CodecConfig
from megatalker.errors import BackendUnavailableError, SettingsError
from megatalker.plugins.graphs import GraphCapture, run_directly
from megatalker_backends.streaming.fused.decoder import FusedDecoder
from megatalker_backends.streaming.fused.runner import FusedRunner
from megatalker_backends.streaming.fused.trial import largest_difference, why_not_float16
from megatalker_backends.streaming.fused.weights import FusedWeights
from megatalker_backends.streaming.model import StreamingDecoder
from megatalker_backends.streaming.settings import StreamingSettings
from megatalker_kernels.codec.launcher import CodecKernels
from megatalker_kernels.codec.numbers import Numbers
from megatalker_kernels.errors import ToolchainError
from megatalker_kernels.module import capability
from megatalker_kernels.nvrtc import why_not_compile

logger = logging.getLogger(__name__)

OLDEST = 80
"""Compute capability: the first with asynchronous copies and TensorFloat-32."""
WIDEST_HEAD = 256


def wants_kernels(config: CodecConfig, settings: StreamingSettings, device: torch.device) -> bool:
    """Resolve the ``kernels`` setting; logs when ``auto`` finds something in the way.

    Raises:
        SettingsError: ``on``, and the kernels cannot run here.
    """
    if settings.kernels == "off" or (device.type != "cuda" and settings.kernels == "auto"):
        return False
    reason = why_not(config, device)
    if reason is None:
        return True
    if settings.kernels == "on":
        raise SettingsError(f"codecs.streaming.kernels is 'on', but {reason}; or set it to 'auto' or 'off'")
    logger.warning("streaming: %s; the codec runs as torch operations, several times slower", reason)
    return False


def why_not(config: CodecConfig, device: torch.device) -> str | None:
    """Say why the kernels cannot run and what would help; ``None`` if they can."""
    if device.type != "cuda":
        return f"the kernels need a CUDA device, not {device.type}"
    missing = why_not_compile()
    if missing is not None:
        return missing
    if capability(device) < OLDEST:
        return f"the kernels need compute capability 8.0 or later, this device has {capability(device) / 10}"
    widths = (config.codebook_dim, config.latent_dim, config.hidden_size, config.intermediate_size, config.head_dim)
    odd = [width for width in widths if width % 8]
    if odd or config.head_dim > WIDEST_HEAD:
        return f"the kernels need widths that are multiples of 8 and heads of at most {WIDEST_HEAD}, found {odd}"
    return None


def fused_runner(
    decoder: StreamingDecoder, config: CodecConfig, settings: StreamingSettings, device: torch.device
) -> FusedRunner:
    """The runner for a ``decoder`` that lies on the CPU.

    Raises:
        BackendUnavailableError: the kernels cannot be compiled or loaded.
        SettingsError: ``precision`` is ``fast``, and float16 cannot hold the decoder's numbers.
    """
    return FusedRunner(
        _fitting(decoder, config, settings, device),
        device,
        groups=config.num_quantizers,
        max_streams=settings.max_batch,
        max_frames=settings.max_frames,
        prepare=GraphCapture(device) if settings.cuda_graphs else run_directly,
    )


@torch.inference_mode()
def _fitting(
    decoder: StreamingDecoder, config: CodecConfig, settings: StreamingSettings, device: torch.device
) -> FusedDecoder:
    """Return a decoder whose numbers are as precise as the settings say and hold what it computes."""
    halves = _decoder(decoder, config, device, Numbers.HALVES)
    reason = why_not_float16(halves, config, device)
    if settings.precision == "fast":
        if reason is not None:
            raise SettingsError(f"codecs.streaming.precision is 'fast', but {reason}; set it to 'exact'")
        fast = _decoder(decoder, config, device, Numbers.HALF)
        error = largest_difference(fast, halves, config, device)
        logger.warning("streaming: precision is 'fast': samples of random codes are off by up to %.1g", error)
        return fast
    if reason is None:
        return halves
    logger.warning("streaming: %s; products are made of TensorFloat-32 numbers instead, half as fast", reason)
    return _decoder(decoder, config, device, Numbers.TENSORFLOATS)


def _decoder(decoder: StreamingDecoder, config: CodecConfig, device: torch.device, numbers: Numbers) -> FusedDecoder:
    try:
        kernels = CodecKernels(device, numbers)
    except ToolchainError as error:
        advice = "set codecs.streaming.kernels to 'off' to run torch operations instead, several times slower"
        raise BackendUnavailableError(f"the streaming codec's kernels cannot run here: {error}; {advice}") from error
    weights = FusedWeights(decoder, device, numbers, warpgroups=kernels.has_warpgroups)
    return FusedDecoder(weights, config, kernels)
