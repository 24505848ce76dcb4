"""The result of a trial: figures, verdicts and the worst prompts, as a table, a sentence and JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from megatalker_conformance.quality.statistics import PairedComparison, Verdict, overall

FORMAT = "megatalker-quality-1"
"""Version of the JSON."""
_COLOURS: Mapping[Verdict, str] = {"not worse": "green", "worse": "bold red", "cannot tell": "yellow"}


@dataclass(frozen=True, slots=True)
class Faults:
    """Takes of one side that need no judge to be called bad."""

    takes: int
    runaway: int
    silent: int
    clipped: int
    leading_ms: float
    """Median silence before speech."""
    gaps: int | None
    """Times that a listener would have heard nothing since the next chunk was late, while as many streams as the
    engine takes were spoken at once; ``None`` for a side that does not stream.
    """


@dataclass(frozen=True, slots=True)
class SideResult:
    """One of our forms against the official package."""

    name: str
    comparisons: Sequence[PairedComparison]
    """Those that decide."""
    opinion: PairedComparison | None
    """For information."""

    @property
    def verdict(self) -> Verdict:
        return overall(self.comparisons)

    def sentence(self, prompts: int, seeds: int) -> str:
        """The verdict, its reasons, and the power of the trial, in words."""
        begun = {
            "not worse": f"{self.name} is not worse than the official package",
            "worse": f"{self.name} is worse than the official package",
            "cannot tell": f"This size cannot tell whether {self.name} is worse than the official package",
        }[self.verdict]
        told = [_in_words(each) for each in self.comparisons]
        power = min(each.power for each in self.comparisons)
        needed = max(each.prompts_needed for each in self.comparisons)
        size = f"{prompts} prompts with {seeds} seed{'s' if seeds > 1 else ''} each"
        if self.verdict == "worse":
            return f"{begun}: {size}, {', '.join(told)}."
        told.append(f"equal sides are called not worse at this size with a chance of {power:.0%}")
        if power < 0.8:
            told.append(f"about {needed} prompts would give 80%")
        return f"{begun}: {size}, {', '.join(told)}."


@dataclass(frozen=True, slots=True)
class QualityResult:
    """The whole trial."""

    command: str
    environment: Mapping[str, str]
    judges: Mapping[str, str]
    """Versions by kind."""
    source: str
    licence: str
    digest: str
    language: str
    prompts: int
    seeds: int
    sides: Sequence[SideResult]
    faults: Mapping[str, Faults]
    """By side, the official package's among them."""
    worst: Sequence[Mapping[str, Any]]
    """All prompts, those first in which ours does worst against the official package."""

    @property
    def passed(self) -> bool:
        """No side is worse."""
        return all(side.verdict != "worse" for side in self.sides)

    @property
    def sentence(self) -> str:
        """One for each side."""
        return " ".join(side.sentence(self.prompts, self.seeds) for side in self.sides)

    def rows(self) -> list[list[str]]:
        """Cells of the table, the head first."""
        head = ["form", "figure", "official", "form's", "loss (95%)", "margin", "verdict", "power", "called worse from"]
        rows = [head]
        for side in self.sides:
            rows += [[side.name, *_cells(each), each.verdict, *_size(each)] for each in side.comparisons]
            if side.opinion is not None:
                rows.append([side.name, *_cells(side.opinion), "for information", "", ""])
        return rows

    def fault_rows(self) -> list[list[str]]:
        """Cells of the table of faults, the head first."""
        rows = [["side", "takes", "runaways", "silent", "clipped", "silence before speech (ms)", "gaps at load"]]
        for name, each in self.faults.items():
            counts = (each.takes, each.runaway, each.silent, each.clipped)
            gaps = "-" if each.gaps is None else str(each.gaps)
            rows.append([name, *map(str, counts), f"{each.leading_ms:.0f}", gaps])
        return rows

    def table(self) -> Table:
        """Return the figures as a table for a terminal."""
        head, *rows = self.rows()
        shown = Table(*head)
        for row in rows:
            shown.add_row(*(Text(cell, style=_COLOURS.get(cell, ""), overflow="fold") for cell in row))  # type: ignore[call-overload]
        return shown

    def fault_table(self) -> Table:
        """Return the faults as a table for a terminal."""
        head, *rows = self.fault_rows()
        shown = Table(*head)
        for row in rows:
            shown.add_row(*row)
        return shown

    def json(self) -> str:
        """All of it, for programs and for tables of many machines."""
        content = asdict(self)
        for side, written in zip(self.sides, content["sides"], strict=True):
            written["verdict"] = side.verdict
            for each, figures in zip(side.comparisons, written["comparisons"], strict=True):
                figures |= _derived(each)
        return json.dumps({"format": FORMAT, "sentence": self.sentence, **content}, indent=1, ensure_ascii=False) + "\n"


def _derived(each: PairedComparison) -> dict[str, Any]:
    needed = each.prompts_needed
    return {"verdict": each.verdict, "power": each.power, "detectable": each.detectable, "prompts_needed": needed}


def _in_words(each: PairedComparison) -> str:
    loss = f"{each.low:.2g} to {each.high:.2g}"
    return f"{each.name} {each.ours:.4g} against {each.control:.4g} (loss {loss}, margin {each.margin:g})"


def _cells(each: PairedComparison) -> list[str]:
    loss = f"{each.loss:.3g} ({each.low:.3g} to {each.high:.3g})"
    return [each.name, f"{each.control:.4g}", f"{each.ours:.4g}", loss, f"{each.margin:g}"]


def _size(each: PairedComparison) -> list[str]:
    return [f"{each.power:.0%}", f"{each.detectable:.3g}"]
