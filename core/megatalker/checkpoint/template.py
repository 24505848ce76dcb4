"""Token ids of the official chat template, cut where the official package cuts them."""

from typing import Any

from megatalker.errors import InvalidRequestError

_ROLE = "<|im_start|>assistant\n"
_END = "<|im_end|>\n"


def text_ids(tokenizer: Any, text: str) -> list[int]:
    """Ids of the text to speak, tokenised inside the full template so that they equal the official ones.

    Args:
        tokenizer: :attr:`megatalker.checkpoint.Checkpoint.tokenizer`.
        text: cleaned text (:func:`megatalker.prompt.text.prepare_text`), without surrounding line breaks.

    Raises:
        InvalidRequestError: the text is empty, or begins with a line break that would merge into the template.
    """
    return _inside(tokenizer, text, f"{_ROLE}{text}{_END}{_ROLE}", tail=5, what="text")


def reference_ids(tokenizer: Any, text: str) -> list[int]:
    """Ids of the transcript of a reference recording, as :func:`text_ids`."""
    return _inside(tokenizer, text, f"{_ROLE}{text}{_END}", tail=2, what="reference text")


def role_ids(tokenizer: Any) -> list[int]:
    """The three ids that open the assistant's turn, before the text."""
    return _encode(tokenizer, _ROLE)


def instruct_ids(tokenizer: Any, instruct: str) -> list[int]:
    """Ids of the whole user turn that carries a style instruction or a voice description."""
    return _encode(tokenizer, f"<|im_start|>user\n{instruct}{_END}")


def _inside(tokenizer: Any, text: str, templated: str, *, tail: int, what: str) -> list[int]:
    if not text.strip():
        raise InvalidRequestError(f"the {what} is empty; expected at least one word")
    role, ids = role_ids(tokenizer), _encode(tokenizer, templated)
    if ids[: len(role)] != role:
        raise InvalidRequestError(
            f"the {what} begins with a line break ({text[:20]!r}); strip surrounding whitespace first"
        )
    return ids[len(role) : -tail]


def _encode(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text).ids
    return ids
