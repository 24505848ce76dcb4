"""``megatalker verify`` calls no damaged copy of the package healthy, and no healthy one damaged."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import mistakes
from damage import DAMAGED, Damage, decoding
from damage.catalogue import LATE, MANY, PROMPTS, SHORT
from megatalker.checkpoint import Checkpoint
from megatalker.cli.verify.card import Check
from megatalker.cli.verify.order import Reach, VerifyOptions
from megatalker.plugins import BackendRegistry
from megatalker.settings import Settings
from megatalker.testing.random_checkpoint import write_checkpoint
from megatalker.testing.recipe import TINY
from megatalker_conformance.verify.codec import codec
from megatalker_conformance.verify.forward import OfficialForward
from megatalker_conformance.verify.prompts import cloning, prompts
from megatalker_conformance.verify.sampling import sampling
from megatalker_conformance.verify.subject import VerifySubject
from megatalker_conformance.verify.together import streams
from megatalker_conformance.verify.utterances import utterances

pytestmark = pytest.mark.slow

PARTS: dict[str, Callable[[VerifySubject], Iterator[Check]]] = {
    "streams": streams,
    "utterances": lambda subject: iter([utterances(subject)]),
    "cloned utterances": lambda subject: iter([utterances(subject)]),
    "sampling": sampling,
    "codec": codec,
    "cloning": cloning,
    "prompts": prompts,
}
BASE = ("cloning", "prompts", "cloned utterances")
"""Parts that a ``base`` checkpoint shows."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints, one with four codes a frame and one layer, which decodes in an eighth of the time."""
    root, talker, predictor = tmp_path_factory.mktemp("few"), replace(TINY.talker, layers=1), TINY.predictor
    few = replace(TINY, num_code_groups=4, talker=talker, predictor=replace(predictor, layers=1))
    made = {"custom_voice": few, "base": replace(TINY, variant="base")}
    return {name: write_checkpoint(root / name, recipe) for name, recipe in made.items()}


@pytest.fixture(scope="module")
def forwards(folders: dict[str, Path]) -> dict[str, OfficialForward]:
    """The official modules, which nothing here damages: loaded once."""
    return {"custom_voice": OfficialForward(Checkpoint.open(folders["custom_voice"]), torch.device("cpu"))}


@pytest.fixture
def subject(
    folders: dict[str, Path], forwards: dict[str, OfficialForward], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str, str, Reach], VerifySubject]]:
    """Make the subject of one part, on a backend that may be damaged."""
    installed, opened = BackendRegistry.installed, list[VerifySubject]()

    def with_mistakes() -> BackendRegistry:
        registry = installed()
        registry.register(mistakes, "mistakes")
        registry.register(decoding, "damage")
        return registry

    def make(part: str, backend: str, reach: Reach) -> VerifySubject:
        monkeypatch.setattr(BackendRegistry, "installed", with_mistakes)
        kind = "base" if part in BASE else "custom_voice"
        talker, sound = ("auto", backend) if part == "codec" else (backend, "auto")
        own = {"compiled": {"compile": "off"}}
        settings = Settings.read(device="cpu", backend=talker, codec=sound, backends=own)
        found = VerifySubject.open(Checkpoint.open(folders[kind]), settings, VerifyOptions(reach=reach))
        if kind in forwards:
            found.__dict__["forward"] = forwards[kind]
        opened.append(found)
        return found

    yield make
    for each in opened:
        each.close()


@pytest.mark.parametrize("damage", DAMAGED, ids=str)
def test_each_damage_fails_the_check_meant_for_it(
    damage: Damage, subject: Callable[[str, str, Reach], VerifySubject], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever comes after the first check that fails is not run."""
    damage.spoil(monkeypatch)
    checks = PARTS[damage.part](subject(damage.part, damage.backend, damage.reach))
    failed = next((check for check in checks if check.outcome == "failed"), None)
    assert failed is not None, f"{damage.name}: called healthy"
    assert failed.name.startswith(damage.check), f"{failed.name}: {failed.found}"


@pytest.mark.parametrize(
    ("part", "backend", "reach"),
    [
        ("streams", "healthy", replace(LATE, long_prompts=PROMPTS.long_prompts)),
        ("sampling", "compiled", MANY),
        ("codec", "healthy_quick", LATE),
        ("cloning", "compiled", SHORT),
        ("cloned utterances", "healthy", SHORT),
        ("prompts", "compiled", SHORT),
    ],
)
def test_nothing_is_wrong_without_a_damage(
    part: str, backend: str, reach: Reach, subject: Callable[[str, str, Reach], VerifySubject]
) -> None:
    for check in PARTS[part](subject(part, backend, reach)) if part != "cloning" else _until_the_recording(subject):
        assert check.outcome == "passed", f"{check.name}: {check.found}"


def _until_the_recording(subject: Callable[[str, str, Reach], VerifySubject]) -> Iterator[Check]:
    found = cloning(subject("cloning", "compiled", SHORT))
    for _ in range(7):
        yield next(found)


def test_thirty_damages_and_more_are_known() -> None:
    assert len({damage.name for damage in DAMAGED}) == len(DAMAGED) >= 30
