"""Names of OpenAI's voices, which clients send without knowing the voices of a server."""

from collections.abc import Sequence

OPENAI_VOICES = (
    "alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx", "sage", "shimmer", "verse",
)  # fmt: skip


def openai_voices(known: Sequence[str], first: str | None) -> dict[str, str | None]:
    """Return what each of OpenAI's voices means: they go round the ``known`` ones, the ``first`` one first.

    ``None`` is the voice of a request that names none.
    """
    order = [first, *(name for name in known if name != first)] if first in known else list(known)
    return {alias: order[index % len(order)] if order else None for index, alias in enumerate(OPENAI_VOICES)}
