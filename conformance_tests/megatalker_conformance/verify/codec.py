"""The streaming codec, held to itself and to one full forward of the official decoder."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle

import torch
from torch import Tensor

from megatalker.cli.verify.card import Check
from megatalker.interfaces import CodecState
from megatalker.plugins.checked import CheckedCodec, load_codec
from megatalker_conformance.codes import CodeSource, OfficialCodec
from megatalker_conformance.loading import load_context
from megatalker_conformance.verify.subject import VerifySubject

CHUNKS = (1, 1, 1, 2, 3, 5, 8, 13, 21, 34, 11)
"""Frames of each call: together more than the 72 that the codec's transformer looks back."""
FAR_CHUNKS = (1, 1, 2, 1, 3, 1, 5, 1, 8, 1, 13, 1, 21, 1, 34)
"""Frames of each call of a long stream: single ones in between, as speech has them."""
LEAST_FRAMES = 300
"""Frames of the longest stream even where time is short."""
COMPANIONS = ((150, 130), (40, 400))
"""Streams in the calls of the longest one: frames, and frames of the longest before they join."""


def codec(subject: VerifySubject) -> Iterator[Check]:
    """Chunks equal the whole, the codec's own first and then the official one."""
    spec = subject.codec_backend
    decoder = load_codec(spec, subject.checkpoint, load_context(spec, subject.device, torch.float32, subject.settings))
    try:
        decoder.warmup()
        whole = CodeSource(subject.checkpoint).random(sum(CHUNKS), seed=0)
        chunks = _streamed(decoder, torch.split(whole, list(CHUNKS)))
        if decoder.capabilities.product_bits is not None:  # its limit is the official one's own error
            subject.require_official()
        official = subject.official_codec
        limit = official.limit(decoder.capabilities)
        yield _compared("chunks against one call", chunks, _streamed(decoder, [whole]), limit)
        subject.require_official()
        yield _compared("chunks against one forward of the official decoder", chunks, official.decode(whole), limit)
        yield _far(subject, decoder, official, limit)
    finally:
        decoder.close()


@dataclass(eq=False)
class CodecStream:
    """A stream of codes, and the sound of its frames so far."""

    codes: Tensor
    joins: int
    """Frames of the longest stream before it begins."""
    state: CodecState
    chunks: list[Tensor] = field(default_factory=list)
    done: int = 0

    def error(self, official: OfficialCodec) -> float:
        """The largest difference from one forward of the official decoder."""
        if not self.done:
            return 0.0
        return _error(torch.cat(self.chunks), official.decode(self.codes[: self.done]))


def _far(subject: VerifySubject, decoder: CheckedCodec, official: OfficialCodec, limit: float) -> Check:
    """A long stream in short chunks, and others that join its calls, each held to one official forward."""
    source, reach = CodeSource(subject.checkpoint), subject.order.reach
    plans = [(reach.codec_frames, 0), *COMPANIONS][: decoder.max_streams]
    held = [
        CodecStream(source.random(frames, seed), joins, decoder.open())
        for seed, (frames, joins) in enumerate(plans, start=1)
    ]
    if len(held) > 1:
        repeated = held[-1].codes
        repeated[len(repeated) // 2 :] = repeated[0]
    longest, began, sizes = held[0], time.monotonic(), cycle(FAR_CHUNKS)
    while longest.done < len(longest.codes):
        if longest.done >= LEAST_FRAMES and time.monotonic() - began > reach.budget_s / 2:
            break
        size = next(sizes)
        taking = [each for each in held if each.joins <= longest.done and each.done < len(each.codes)]
        fresh = [each.codes[each.done : each.done + size] for each in taking]
        sound = decoder.decode([each.state for each in taking], fresh)
        for each, chunk, part in zip(taking, sound, fresh, strict=True):
            each.chunks.append(chunk.float().cpu())
            each.done += len(part)
    subject.reached("codec frames", longest.done)
    worst, others = max(each.error(official) for each in held), sum(bool(each.done) for each in held[1:])
    text = f"samples differ by {worst:.2g} at most, over {longest.done} frames in chunks of 1 to {max(FAR_CHUNKS)}, "
    text += f"with {others} other streams in the same calls (allowed: {limit:.2g})"
    figures = {"value": worst, "limit": limit, "frames": float(longest.done)}
    return Check("codec", "a long stream in company", "passed" if worst <= limit else "failed", text, figures)


def _error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max()) if found.shape == expected.shape else float("inf")


def _streamed(decoder: CheckedCodec, chunks: Sequence[Tensor]) -> Tensor:
    state = decoder.open()
    return torch.cat([decoder.decode([state], [chunk])[0].float().cpu() for chunk in chunks])


def _compared(name: str, found: Tensor, expected: Tensor, limit: float) -> Check:
    error = _error(found, expected)
    text = f"samples differ by {error:.2g} at most, over {sum(CHUNKS)} frames (allowed: {limit:.2g})"
    return Check("codec", name, "passed" if error <= limit else "failed", text, {"value": error, "limit": limit})
