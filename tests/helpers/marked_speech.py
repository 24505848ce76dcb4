"""Speech of texts with markup, as chunks, and what is the same of all of it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatalker.engine import Chunk, Engine

SEED = 7
OPTIONS: dict[str, Any] = {"seed": SEED, "return_codes": True, "layout": "interleaved"}
Pcm = NDArray[np.float32]


def speak(engine: Engine, text: str, markup: str | None = None, **options: Any) -> list[Chunk]:
    return list(engine.speak(text, markup=markup or markup_of(text), **OPTIONS | options))


def markup_of(text: str) -> str:
    return "ssml" if "<" in text else "tags"


def fed(engine: Engine, text: str, size: int = 1, **options: Any) -> list[Chunk]:
    stream = engine.speak(None, markup=markup_of(text), **OPTIONS | options)
    for at in range(0, len(text), size):
        stream.feed(text[at : at + size])
    stream.finish()
    return list(stream)


def samples(chunks: list[Chunk]) -> Pcm:
    return np.concatenate([chunk.pcm for chunk in chunks])


def codes(chunks: list[Chunk]) -> list[Any]:
    return [row for chunk in chunks if chunk.codes is not None for row in chunk.codes.tolist()]


def require_whole(chunks: list[Chunk]) -> None:
    """Each chunk begins where the one before it ends, has the codes of its frames, and none follows a final one."""
    at = 0
    for index, chunk in enumerate(chunks):
        assert (chunk.index, chunk.sample_offset) == (index, at)
        assert chunk.frames == (0 if chunk.codes is None else len(chunk.codes))
        assert len(chunk.pcm) or chunk.marks or chunk.final
        at += len(chunk.pcm)
    assert not any(chunk.final for chunk in chunks[:-1])
