"""How many streams a backend holds: as many as its engine runs, unless its own settings say otherwise."""

from dataclasses import fields
from typing import Any

import pytest

from megatalker import BackendRegistry, Engine, Settings
from megatalker.checkpoint import Checkpoint
from megatalker.interfaces import LoadContext

MOST = {"reference": 3000, "compiled": 256, "megakernel": 2048}
SMALL: dict[str, dict[str, Any]] = {
    "reference": {},
    "compiled": {"max_positions": 128},
    "megakernel": {"max_positions": 128, "interpret": True},
}


def held(name: str, checkpoint: Checkpoint, streams: int, **own: Any) -> int | None:
    dtype = "bfloat16" if name == "megakernel" else "float32"
    common = {"backend": name, "fallbacks": (), "device": "cpu", "dtype": dtype}
    settings = Settings.read(**common, max_streams=streams, backends={name: SMALL[name] | own})
    with (
        Engine.open(settings, checkpoint=checkpoint, registry=BackendRegistry.installed()) as engine,
        engine.borrow_backends() as (talker, _),
    ):
        return talker.max_streams


@pytest.mark.parametrize("name", MOST)
def test_as_many_as_the_engine_runs_where_its_own_settings_say_nothing(tiny_1b7: Checkpoint, name: str) -> None:
    assert held(name, tiny_1b7, 12) == 12
    assert held(name, tiny_1b7, 12, max_streams=3) == 3
    assert held(name, tiny_1b7, 3, max_streams=12) == 12


def test_a_backend_loaded_without_an_engine_has_an_engine_s_defaults() -> None:
    (held_alone,) = (part.default for part in fields(LoadContext) if part.name == "max_streams")
    assert held_alone == Settings.model_fields["max_streams"].default


@pytest.mark.parametrize("name", MOST)
def test_no_more_than_it_can(tiny_1b7: Checkpoint, name: str) -> None:
    assert held(name, tiny_1b7, 3000) == MOST[name]
