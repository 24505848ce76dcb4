"""The figures of a stream as they are sent: without what events of their own tell."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated

from pydantic import PlainSerializer, PlainValidator, TypeAdapter

from megatalker.engine.speech.outputs import StreamFacts

__all__ = ["ServerFacts"]

_FACTS = TypeAdapter(StreamFacts)
_TOLD_APART = {"finish_reason": None, "switches": ()}
"""Facts that events of their own tell."""


def _read_facts(value: object) -> StreamFacts:
    if isinstance(value, StreamFacts):
        return value
    if not isinstance(value, Mapping):
        raise ValueError("expected an object")
    return _FACTS.validate_python({**_TOLD_APART, **value})


def _write_facts(facts: StreamFacts) -> dict[str, object]:
    return {name: value for name, value in asdict(facts).items() if name not in _TOLD_APART}


ServerFacts = Annotated[StreamFacts, PlainValidator(_read_facts), PlainSerializer(_write_facts)]
"""Figures of the stream, measured in the server."""
