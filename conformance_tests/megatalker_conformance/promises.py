"""Promises of backends in the words of the contract, and the report of a broken one."""

from dataclasses import dataclass
from typing import NoReturn

import pytest


@dataclass(frozen=True)
class Promise:
    """One promise."""

    text: str
    """The promise as a sentence."""
    module: str
    """Module that contains the promise, such as ``megatalker.interfaces``."""
    name: str
    """The class or field there; empty: the module's own docstring."""
    quote: str
    """Its words."""

    @property
    def where(self) -> str:
        """The line of the contract."""
        file = f"{self.module.replace('.', '/')}.py"
        return f'{file}, {self.name or "first lines"}: "{self.quote}"'


PARITY = Promise(
    "codes are those of the official modules",
    "megatalker.sampling.sampler",
    "",
    "the same logits and the same seed give the same code on every backend",
)
INDEPENDENCE = Promise(
    "a stream says the same whoever else is there, whatever they do and whoever was there before",
    "megatalker.interfaces",
    "TalkerDecoder",
    "A stream's codes depend on its own request and steps only, never on its neighbours in a batch.",
)
CONTINUATION = Promise(
    "a stream that goes on from emitted frames says what it would have said anyway",
    "megatalker.interfaces",
    "StreamRequest",
    "the next frame has index ``len(history)``, so the sampling noise is the same.",
)
ISOLATION = Promise(
    "instances of a backend share nothing",
    "megatalker.interfaces",
    "",
    "Instances share nothing: several may be loaded, and used by turns.",
)
WARMUP = Promise(
    "warming up changes no result",
    "megatalker.interfaces",
    "TalkerDecoder",
    "Results are the same without it.",
)
BATCH_INVARIANCE = Promise(
    "width, place and neighbours change no bit of a stream",
    "megatalker.interfaces",
    "TalkerCapabilities",
    "The bits of a stream's logits and codes do not depend on how many streams its calls name, on its place among them "
    "or on the others.",
)
BOUNDED_MEMORY = Promise(
    "a released stream leaves no memory in use",
    "megatalker.interfaces",
    "TalkerDecoder",
    "Free the stream's rows at once, at any moment of its life.",
)

EXACTNESS = Promise(
    "a codec's samples are those of the official decoder, whatever the calls and whoever else is in them",
    "megatalker.interfaces",
    "Codec",
    "the concatenated chunks of one state equal one full forward of the official decoder over all codes within 1e-4",
)
INVARIANCE = Promise(
    "a state's samples are the same to the last bit, whatever the calls and whoever else is in them",
    "megatalker.interfaces",
    "CodecCapabilities",
    "A state's samples are bit-equal for any chunking of its codes and any other states in the same calls.",
)
SMALL_STATES = Promise(
    "a codec's state does not grow with what was said",
    "megatalker.interfaces",
    "CodecState",
    "The state of one stream that a codec carries from one call to the next: explicit, small, copyable.",
)
STATES_END = Promise(
    "states that are gone leave no memory in use, and make room for others",
    "megatalker.interfaces",
    "Codec",
    "A state at the start of speech. Once nobody holds it, nothing of it stays.",
)
ENCODING = Promise(
    "codes of audio are those of the official encoder",
    "megatalker.interfaces",
    "Codec",
    "Encode mono PCM at 24 kHz to codes, for cloning.",
)


@dataclass(frozen=True)
class Mismatch:
    """The first fault of a schedule."""

    action: int
    """Index in the schedule."""
    expected: str
    found: str


def broken(promise: Promise, *, shown_by: str, expected: object, found: object) -> NoReturn:
    """Fail the test with what a stranger needs to know.

    Args:
        promise: the one that is broken.
        shown_by: the shortest input or schedule that shows it; may have several lines.
        expected: codes, figures or an error.
        found: the same.
    """
    pytest.fail(
        f"broken promise: {promise.text}\n"
        f"shown by: {_indented(shown_by)}\n"
        f"expected: {_indented(str(expected))}\n"
        f"found:    {_indented(str(found))}\n"
        f"contract: {promise.where}",
        pytrace=False,
    )


def _indented(text: str) -> str:
    first, *rest = text.splitlines() or [""]
    return "\n".join([first, *(f"          {line}" for line in rest)])
