"""Codes that were drawn, judged by the probabilities that transformers' own logits processors give.

How a sampler gets its noise is its own affair: only how often things happen is looked at, each event against the sum of
its probabilities. By Chernoff's bound a count of ``k`` where ``m`` were expected has a chance of at most
``exp(-(k ln(k / m) - k + m))``, however the probabilities are spread and however each depends on the draws before it,
so that a right sampler fails as seldom as :data:`FALSE_ALARM` says.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from megatalker.sampling import SamplingParams
from megatalker_conformance.streams import Codes, TeacherForced
from megatalker_conformance.verify.chances import BarredIds, Chances, first_chances, later_chances

FALSE_ALARM = 1e-6
"""Chance that a tally finds fault with a right sampler, at most."""
BINS = 8
"""Classes of equal probability, from the likely ids to the unlikely ones."""
LONG_AGO = 32
"""Frames after which a code counts as said long ago."""


@dataclass(frozen=True)
class SaidStream:
    """The draws of a stream, and the logits that they came from."""

    codes: Sequence[Codes]
    ended: bool
    """It drew end of speech after them."""
    logits: TeacherForced
    """``talker [frames (+ 1), vocab]`` and ``predictor [frames, code groups - 1, vocab]``."""


@dataclass
class EventCount:
    """Times that something happened, and times that it should have."""

    observed: float = 0.0
    expected: float = 0.0

    def add(self, happened: Tensor, chance: Tensor) -> None:
        """Count draws: whether it happened in each, and how probable that was. The rarer of the event and its opposite
        counts, for which the bound is sharper.
        """
        happened, chance = happened.double(), chance.double().clamp(0, 1)
        rare = chance <= 0.5
        self.observed += float(torch.where(rare, happened, 1 - happened).sum())
        self.expected += float(torch.where(rare, chance, 1 - chance).sum())

    @property
    def strangeness(self) -> float:
        """Negative natural logarithm of Chernoff's bound for this count."""
        seen, due = self.observed, self.expected
        if due <= 0:
            return math.inf if seen > 0 else 0.0
        return due if seen == 0 else seen * math.log(seen / due) - seen + due

    def __str__(self) -> str:
        return f"{self.observed:.0f} times, expected {self.expected:.1f}"


@dataclass
class DrawTally:
    """Counts of everything that tells a wrong sampler, by name."""

    events: dict[str, EventCount] = field(default_factory=dict)
    draws: int = 0
    _coins: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    def faults(self) -> list[str]:
        """Events whose counts chance does not explain, the strangest first."""
        limit = math.log(2 * max(1, len(self.events)) / FALSE_ALARM)
        wrong = [(event.strangeness, f"{name}: {event}") for name, event in self.events.items()]
        return [text for strangeness, text in sorted(wrong, reverse=True) if strangeness > limit]

    def add(self, kind: str, sampling: SamplingParams, said: SaidStream, barred: BarredIds) -> None:
        """Count all draws of one stream.

        Args:
            kind: groups streams that are sampled alike.
            sampling: as it was asked for.
            said: codes and logits.
            barred: ids that code 0 must not be.
        """
        if sampling.do_sample:
            self._first_codes(f"{kind}, code 0", sampling, said, barred)
        if sampling.predictor_do_sample and said.codes and len(said.codes[0]) > 1:
            self._later_codes(f"{kind}, later codes", sampling, said)

    def compare(self, kind: str, sampling: SamplingParams, one: SaidStream, other: SaidStream) -> None:
        """Count codes of the predictor that a stream has in the same places as one with another seed."""
        frames = min(len(one.codes), len(other.codes))
        if frames:
            ours, theirs = (torch.tensor(said.codes[:frames])[:, 1:].flatten() for said in (one, other))
            chances = later_chances(one.logits.predictor[:frames].flatten(0, 1), sampling)
            self._count(f"{kind}: the code that another seed draws there", ours == theirs, chances.of(theirs))

    def _first_codes(self, name: str, sampling: SamplingParams, said: SaidStream, barred: BarredIds) -> None:
        history = [codes[0] for codes in said.codes]
        drawn = torch.tensor([*history, barred.end] if said.ended else history, dtype=torch.int64)
        if not len(drawn):
            return
        chances = first_chances(said.logits.talker[: len(drawn)], sampling, history, barred)
        self._any(name, chances, drawn)
        self._count(f"{name}: end of speech", drawn == barred.end, chances.of_ids[:, barred.end])
        self._again(name, chances, drawn)
        old = _earlier(drawn, chances.of_ids, LONG_AGO)
        self._among(f"{name}: a code of more than {LONG_AGO} frames ago", chances, drawn, old)

    def _later_codes(self, name: str, sampling: SamplingParams, said: SaidStream) -> None:
        codes = torch.tensor(said.codes, dtype=torch.int64)
        frames, groups = codes.shape
        chances = later_chances(said.logits.predictor[:frames].flatten(0, 1), sampling)
        self._any(name, chances, codes[:, 1:].flatten())
        tables = [table.view(frames, groups - 1, -1) for table in (chances.of_ids, chances.edges)]
        for place in range(groups - 1):
            self._again(name, Chances(*(table[:, place] for table in tables)), codes[:, place + 1])
        for apart in (1, 8):
            if groups - 1 > apart:
                before, after = codes[:, 1:-apart].flatten(), codes[:, 1 + apart :].flatten()
                part = Chances(*(table[:, apart:].flatten(0, 1) for table in tables))
                self._count(f"{name}: the code of {apart} codebooks before", after == before, part.of(before))

    def _any(self, name: str, chances: Chances, drawn: Tensor) -> None:
        """Count what any draw shows."""
        self.draws += len(drawn)
        table, taken = chances.of_ids, chances.of(drawn)
        by_rounding = chances.edges.gather(1, drawn[:, None]).squeeze(1)
        self._count(f"{name}: an id that is filtered out", (taken <= 0) & ~by_rounding, torch.zeros_like(taken))
        kept = table > 0
        least = torch.where(kept, table, torch.inf).amin(1)
        rows = kept.sum(1) > 1
        weakest, likeliest = kept & (table <= least[:, None]), table >= table.amax(1, keepdim=True)
        for what, ids in (("the least likely id that is kept", weakest), ("the likeliest id", likeliest)):
            chosen = Chances(table[rows], chances.edges[rows])
            self._among(f"{name}: {what}", chosen, drawn[rows], ids[rows])
        numbers = torch.arange(table.shape[1])
        above = (table > taken[:, None]) | ((table == taken[:, None]) & (numbers < drawn[:, None]))
        coins = torch.rand(len(drawn), generator=self._coins, dtype=torch.float64)
        place = chances.among(above) + coins * taken
        for number in range(BINS):
            inside = (place >= number / BINS) & (place < (number + 1) / BINS)
            self._count(f"{name}: class {number + 1} of {BINS}", inside, torch.full_like(taken, 1 / BINS))

    def _again(self, name: str, chances: Chances, drawn: Tensor) -> None:
        """Count codes that the codebook had before: noise that repeats itself makes more of them."""
        self._among(f"{name}: a code of an earlier frame", chances, drawn, _earlier(drawn, chances.of_ids, 0))
        last = chances.of_ids[1:].gather(1, drawn[:-1, None]).squeeze(1)
        self._count(f"{name}: the code of the frame before", drawn[1:] == drawn[:-1], last)

    def _among(self, name: str, chances: Chances, drawn: Tensor, ids: Tensor) -> None:
        self._count(name, ids.gather(1, drawn[:, None]).squeeze(1), chances.among(ids))

    def _count(self, name: str, happened: Tensor, chance: Tensor) -> None:
        if len(chance):
            self.events.setdefault(name, EventCount()).add(happened, chance)


def _earlier(drawn: Tensor, like: Tensor, apart: int) -> Tensor:
    """Return which ids were drawn before each row, but not in the ``apart`` rows before it: bool, in the shape of
    ``like``.
    """
    found = torch.zeros_like(like, dtype=torch.bool)
    ids = drawn.tolist()
    for row in range(1, len(ids)):
        if row - 1 - apart >= 0:
            found[row:, ids[row - 1 - apart]] = True
    if apart:
        for row in range(1, len(ids)):
            found[row, ids[max(0, row - apart) : row]] = False
    return found
