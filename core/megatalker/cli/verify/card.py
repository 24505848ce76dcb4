"""The report card: checks and figures as data, table, JSON and Markdown."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Literal

from rich.table import Table
from rich.text import Text

Outcome = Literal["passed", "failed", "info", "not run"]
_COLOURS: Mapping[Outcome, str] = {"passed": "green", "failed": "bold red", "info": "cyan", "not run": "yellow"}


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the card."""

    part: str
    """Name of the part, one of :data:`megatalker.cli.verify.order.PARTS`."""
    name: str
    outcome: Outcome
    """``info``: a figure or a fact that nothing is required of. ``not run``: ``found`` says why."""
    found: str
    """Result in words."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Results as numbers, by name with its unit."""


@dataclass(frozen=True, slots=True)
class Card:
    """The results for one checkpoint on one machine."""

    command: str
    environment: Mapping[str, str]
    checks: Sequence[Check]

    @property
    def passed(self) -> bool:
        """No check failed, and one at least passed."""
        outcomes = self._outcomes
        return not outcomes["failed"] and bool(outcomes["passed"])

    @property
    def summary(self) -> str:
        """One line."""
        outcomes = self._outcomes
        verdict = "FAILED" if outcomes["failed"] else "NOTHING PASSED"
        if self.passed:
            verdict = "PASSED IN PART" if outcomes["not run"] else "PASSED"
        return f"{verdict}: {', '.join(f'{count} {outcome}' for outcome, count in sorted((+outcomes).items()))}"

    @property
    def _outcomes(self) -> Counter[str]:
        return Counter(check.outcome for check in self.checks)

    def table(self) -> Table:
        """Return the card as a table for a terminal; nothing is cut off."""
        shown = Table("part", "check", "outcome", "found", title=self.summary, title_justify="left")
        for check in self.checks:
            outcome = Text(check.outcome, style=_COLOURS[check.outcome])
            name, found = (Text(text, overflow="fold") for text in (check.name, check.found))
            shown.add_row(check.part, name, outcome, found)
        return shown

    def json(self) -> str:
        """All of it, for programs. A figure that is infinite or no number, which JSON cannot say, is null."""
        content = {"passed": self.passed, **asdict(self)}
        for check in content["checks"]:
            check["figures"] = {name: each if isfinite(each) else None for name, each in check["figures"].items()}
        return json.dumps(content, indent=1) + "\n"

    def markdown(self) -> str:
        """Return the card as Markdown, to paste into an issue."""
        lines = [f"### megatalker verify: {self.environment['checkpoint']}", ""]
        lines += [f"**{self.summary}** by `{self.command}`", ""]
        lines += ["| | |", "|---|---|", *(_row(name, value) for name, value in self.environment.items()), ""]
        lines += ["| part | check | outcome | found |", "|---|---|---|---|"]
        lines += [_row(check.part, check.name, check.outcome, check.found) for check in self.checks]
        return "\n".join(lines) + "\n"


def _row(*cells: str) -> str:
    return f"| {' | '.join(' '.join(cell.replace('|', chr(92) + '|').split()) for cell in cells)} |"
