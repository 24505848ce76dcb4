"""Random weights that make every part of the network matter, equal bit for bit on every platform.

A plain small-variance initialisation would hide mistakes: text would not matter, norms would all be 1, logits would be
flat and greedy choices near-ties. Here each tensor keeps its signal at unit size, attention is sharp enough that a
wrong position changes the codes, and the logits have clear winners.
"""

import hashlib
import re
from math import log2, prod, sqrt

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

_CHUNK = 1 << 22

# What is not a plain matrix: the first pattern found in the name gives (centre, standard deviation).
_VECTORS: tuple[tuple[str, float, float], ...] = (
    (r"\.[qk]_norm\.weight$", 1.6, 0.3),
    (r"norm\.weight$", 1.0, 0.2),
    (r"norm\.bias$", 0.0, 0.1),
    (r"layer_scale\.scale$", 0.4, 0.1),
    (r"\.gamma$", 0.4, 0.1),
    (r"\.(alpha|beta)$", 0.0, 0.2),
    (r"codebook\.initialized$", 1.0, 0.0),
    (r"talker\.model\.codec_embedding\.weight$", 0.0, 0.7),
    (r"talker\.code_predictor\.model\.codec_embedding\.\d+\.weight$", 0.0, 0.18),
    (r"talker\.model\.text_embedding\.weight$", 0.0, 1.0),
    (r"text_projection\.linear_fc\d\.bias$", 0.0, 0.3),
    (r"^decoder\.decoder\.6\.conv\.bias$", 0.0, 0.0),
    (r"^(encoder|decoder|speaker_encoder)\..*\.bias$", 0.0, 0.05),
    (r"\.bias$", 0.0, 0.1),
)
# Gains of matrices: the factor on 1/sqrt(inputs), which keeps the size of a signal. The first pattern found counts.
_GAINS: tuple[tuple[str, float], ...] = (
    (r"talker\.codec_head\.weight$", 2.3),
    (r"code_predictor\.lm_head\.\d+\.weight$", 2.3),
    (r"text_projection\.linear_fc2\.weight$", 1.8),
    (r"\.mlp\.down_proj\.weight$", 1.5),
    (r"^encoder\..*\.(q|k)_proj\.weight$", 1.5),
    (r"^decoder\.quantizer\.rvq_first\.output_proj\.weight$", 0.7),
    (r"^decoder\.quantizer\.rvq_rest\.output_proj\.weight$", 0.6),
    (r"^decoder\.pre_transformer\.input_proj\.weight$", 0.4),  # small sums of squares, so that an epsilon counts
    (r"^decoder\.upsample\.\d\.1\.dwconv\.conv\.weight$", 0.15),  # as above
    (r"^decoder\.decoder\.\d\.block\.\d\.conv2\.conv\.weight$", 0.5),
    (r"^decoder\.decoder\.6\.conv\.weight$", 0.01),
    (r"^encoder\.encoder\.layers\.0\.conv\.weight$", 8.0),
    (r"^encoder\.encoder\.", 1.3),
    (r"^speaker_encoder\.blocks\.0\.conv\.weight$", 0.2),
    (r"^speaker_encoder\.fc\.weight$", 0.4),
    (r"^speaker_encoder\.", 1.3),
    (r"", 1.0),
)
_UPSAMPLED = re.compile(r"^decoder\.(decoder\.\d\.block\.1|upsample\.\d\.0)\.conv\.weight$")
_LEAST_USAGE = np.float32(1e-5)
_CODEBOOK = re.compile(r"(.*codebook)\.(embedding_sum|embed_sum|cluster_usage)$")

# End-of-speech leans on one residual channel, which a bias holds high and which the layers hardly touch. Its logit is
# therefore nearly constant: sampled streams end after some dozens of frames, greedy ones go on.
_STEADY_CHANNEL_BIAS = 4.0
_STEADY_NORM = 0.72
_STEADY_GAIN = 0.2
_STEADY_ROW = re.compile(r"talker\.(model\..*\.(o_proj|down_proj)|text_projection\.linear_fc2)\.weight$")
_STEADY_COLUMN = re.compile(r"^talker\..*codec_embedding.*weight$")
_END_WEIGHT = 3.7
_END_WEIGHT_PER_OCTAVE = 0.7
"""The more codes compete, the higher end-of-speech must stand to win as often."""
_END_GAIN = 0.1


def random_tensor(name: str, shape: tuple[int, ...], seed: int, end_id: int) -> Array:
    """The weights of one tensor of a checkpoint, by its official name.

    Args:
        name: official name, which selects the distribution and, with ``seed``, the random numbers.
        shape: official shape.
        seed: of the checkpoint.
        end_id: code of end-of-speech, whose row in the head is set apart.
    """
    if book := _CODEBOOK.match(name):
        return _codebook(book[1], book[2], shape, seed)
    for pattern, centre, spread in _VECTORS:
        if re.search(pattern, name):
            values = _noise(name, shape, seed) * np.float32(spread) + np.float32(centre)
            break
    else:
        gain = next(gain for pattern, gain in _GAINS if re.search(pattern, name))
        values = _noise(name, shape, seed)
        values *= np.float32(gain / sqrt(_inputs(name, shape)))
    if name == "decoder.decoder.6.conv.weight":  # differences of neighbours: filters that pass no constant
        values -= np.roll(values, 1, axis=2)
    _set_end_of_speech(name, values, end_id)
    return values


def _set_end_of_speech(name: str, values: Array, end_id: int) -> None:
    if _STEADY_ROW.match(name):
        values[0] *= np.float32(_STEADY_GAIN)
    elif _STEADY_COLUMN.match(name):
        values[:, 0] *= np.float32(_STEADY_GAIN)
    elif name == "talker.text_projection.linear_fc2.bias":
        values[0] = _STEADY_CHANNEL_BIAS
    elif name == "talker.model.norm.weight":
        values[0] = _STEADY_NORM
    elif name == "talker.codec_head.weight":
        values[end_id] *= np.float32(_END_GAIN)
        octaves = log2((len(values) - 1024) / 256)
        values[end_id, 0] = _END_WEIGHT + _END_WEIGHT_PER_OCTAVE * octaves


def _inputs(name: str, shape: tuple[int, ...]) -> float:
    """Number of products summed into one output."""
    if _UPSAMPLED.match(name):
        stride = shape[2] // 2 if ".block." in name else shape[2]
        return shape[0] * shape[2] / stride
    return prod(shape[1:])


def _codebook(book: str, part: str, shape: tuple[int, ...], seed: int) -> Array:
    """Sums and usages of one codebook; an entry is their quotient. The usage of the last code is zero, which the
    official modules raise to 1e-5.
    """
    octaves = np.rint(_noise(f"{book}.cluster_usage", shape[:1], seed) * 2).astype(np.int32)
    usage = np.ldexp(np.float32(1.5), octaves)
    usage[-1] = 0
    if part == "cluster_usage":
        return usage
    level = re.search(r"(?:rest|acoustic_residual_vector_quantizer)\D*\.(\d+)\.", book)
    size = 1.0 if level is None else 0.8 * 0.85 ** int(level[1])
    return _noise(f"{book}.entries", shape, seed) * np.float32(size) * np.maximum(usage, _LEAST_USAGE)[:, None]


def _noise(name: str, shape: tuple[int, ...], seed: int) -> Array:
    """Independent uniform numbers with mean 0 and standard deviation 1.

    Made from the raw bits of a counter-based generator with exact integer steps and one rounding: the distributions of
    numpy's ``Generator`` may change between versions and lean on the platform's mathematics library.
    """
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    bits = np.random.Philox(key=int.from_bytes(digest[:16], "little"))
    out = np.empty(prod(shape), dtype=np.float32)
    scale = np.float32(sqrt(12) / 65536)
    for start in range(0, out.size, _CHUNK):
        count = min(_CHUNK, out.size - start)
        raw = bits.random_raw((count + 3) // 4).astype("<u8", copy=False).view("<u2")[:count]
        out[start : start + count] = (raw.astype(np.float32) - np.float32(32767.5)) * scale
    return out.reshape(shape)
