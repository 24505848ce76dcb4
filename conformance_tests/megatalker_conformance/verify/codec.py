"""The streaming codec, held to itself and to one full forward of the official decoder."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from megatalker.cli.verify.card import Check
from megatalker.plugins.checked import CheckedCodec, load_codec
from megatalker_conformance.codes import EXACT, CodeSource, OfficialCodec
from megatalker_conformance.loading import load_context
from megatalker_conformance.verify.subject import VerifySubject

CHUNKS = (1, 1, 1, 2, 3, 5, 8, 13, 21, 34, 11)
"""Frames of each call: together more than the 72 that the codec's transformer looks back."""


def codec(subject: VerifySubject) -> Iterator[Check]:
    """Chunks equal the whole, the codec's own first and then the official one."""
    spec = subject.codec_backend
    decoder = load_codec(spec, subject.checkpoint, load_context(spec, subject.device, torch.float32, subject.settings))
    try:
        decoder.warmup()
        whole = CodeSource(subject.checkpoint).random(sum(CHUNKS), seed=0)
        chunks = _streamed(decoder, torch.split(whole, list(CHUNKS)))
        yield _compared("chunks against one call", chunks, _streamed(decoder, [whole]))
    finally:
        decoder.close()
    subject.require_official()
    official = OfficialCodec(subject.checkpoint, subject.device).decode(whole)
    yield _compared("chunks against one forward of the official decoder", chunks, official)


def _streamed(decoder: CheckedCodec, chunks: Sequence[Tensor]) -> Tensor:
    state = decoder.open()
    return torch.cat([decoder.decode([state], [chunk])[0].float().cpu() for chunk in chunks])


def _compared(name: str, found: Tensor, expected: Tensor) -> Check:
    error = float((found - expected).abs().max()) if found.shape == expected.shape else float("inf")
    text = f"samples differ by {error:.2g} at most, over {sum(CHUNKS)} frames (allowed: {EXACT:g})"
    return Check("codec", name, "passed" if error <= EXACT else "failed", text, {"value": error, "limit": EXACT})
