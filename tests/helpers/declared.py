"""An interpreter that can import the dependencies we declare, and nothing else of its environment."""

import re
import sys
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def brought(*extras: str) -> set[str]:
    """Return the installed distributions that ``megatalker[extras]`` brings along, by normalised name."""
    found: set[tuple[str, frozenset[str]]] = set()
    waiting = [(PROJECT["name"], frozenset(extras))]
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in found:
            continue
        found.add((name, wanted))
        for line in _asks_for(name, wanted):
            need = Requirement(line)
            if any(need.marker is None or need.marker.evaluate({"extra": extra}) for extra in ("", *wanted)):
                waiting.append((_normal(need.name), frozenset(need.extras)))
    return {name for name, _ in found}


def allow_only(*extras: str) -> None:
    """Forbid all other distributions in this process, in place of an earlier choice."""
    allowed = brought(*extras)
    for module, owners in metadata.packages_distributions().items():
        if not allowed.isdisjoint(map(_normal, owners)):
            if sys.modules.get(module, ...) is None:
                del sys.modules[module]
        else:
            sys.modules[module] = None  # type: ignore[assignment]  # which is how an import is forbidden


def _asks_for(name: str, extras: Iterable[str]) -> list[str]:
    if name == PROJECT["name"]:
        return PROJECT["dependencies"] + [line for extra in extras for line in PROJECT["optional-dependencies"][extra]]
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
