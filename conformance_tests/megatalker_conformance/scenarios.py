"""A fixed pool of scenarios: what single streams do, and what the oracle says they must say.

Any number of schedules draws from the pool, so that the oracle's time does not grow with them.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from megatalker.checkpoint import Checkpoint
from megatalker.interfaces import DecodeStep, StreamHandle, StreamRequest
from megatalker.plugins.checked import CheckedTalker
from megatalker.sampling import CodeVocabulary, SamplingParams
from megatalker.sampling.numpy_sampler import choose
from megatalker_conformance.cases import Cases
from megatalker_conformance.oracle import Followed, Oracle
from megatalker_conformance.streams import GREEDY, Codes, StreamCase

ENDLESS = 10_000
LENGTHS = (2, 3, 9, 16, 16, 16, 17, 31, 33, 33, 47, 61, 63, 64, 64, 65, 96, 128, 129, 160, 200, 257, 330, 420)
"""Prompt rows: close together and far apart, around the sizes that kernels and caches are cut into, some equal."""
STEPS = 14
ALIKE_STEPS = 4
MIXES = ("free", "some forced", "forced first", "forced last")
NOISE = SamplingParams(
    temperature=1e6, top_k=None, repetition_penalty=1.0, predictor_temperature=1e6, predictor_top_k=None
)
"""Sampling so hot that the noise alone decides: in any arithmetic, and on any checkpoint."""
SAMPLED = (
    SamplingParams(min_new_tokens=ENDLESS),
    replace(GREEDY, min_new_tokens=ENDLESS, repetition_penalty=1.3),
    SamplingParams(min_new_tokens=ENDLESS, temperature=3.0, top_k=None, top_p=0.9),
    SamplingParams(min_new_tokens=ENDLESS, repetition_penalty=0.3, predictor_top_k=5),
    SamplingParams(min_new_tokens=ENDLESS, do_sample=False, repetition_penalty=0.2, predictor_top_p=0.8),
)
"""Penalties below 1 make an emitted code likely to come again: a backend that forgets one gives other codes."""


@dataclass(frozen=True, eq=False)
class Scenario:
    """The steps of one stream, which do not depend on the other streams of a call."""

    case: StreamCase
    steps: tuple[Codes | None, ...]
    """Forced codes of each step of the whole case, ``None`` where they are chosen."""
    begins: int = 0
    """Frames emitted elsewhere before: the stream continues after them."""

    def __str__(self) -> str:
        said = self.steps[self.begins :]
        forced = "".join("." if codes is None else "F" for codes in said)
        past = f", continues after {self.begins} frames" if self.begins else ""
        return f"{len(self.case.embeds)} prompt rows{past}, steps {forced} (F: forced), {_short(self.case)}"


def _short(case: StreamCase) -> str:
    plain = SamplingParams()
    values = {name: getattr(case.sampling, name) for name in SamplingParams.__slots__}
    return ", ".join(f"{name}={value}" for name, value in values.items() if value != getattr(plain, name))


class ScenarioPool:
    """The scenarios that a loaded decoder can play, by number, and what is expected of each.

    Args:
        cases: prompts of the checkpoint.
        checkpoint: under test.
        oracle: of that checkpoint.
        decoder: its capabilities and limits decide: without ``forced_codes`` all steps are free, without
            ``seeded_sampling`` they are greedy; in a 16-bit type free steps are left to the noise, which alone can be
            compared exactly, and without ``seeded_sampling`` there are none.
        dtype: that the decoder computes in.
    """

    def __init__(
        self, cases: Cases, checkpoint: Checkpoint, oracle: Oracle, decoder: CheckedTalker, dtype: torch.dtype
    ) -> None:
        self._cases = cases
        self._config = checkpoint.config
        self._oracle = oracle
        self._limit = decoder.max_positions
        self._forced_codes = decoder.capabilities.forced_codes
        self._seeded = decoder.capabilities.seeded_sampling
        self._silence: Codes = (0,) * self._config.num_code_groups
        self.dtype = dtype
        going, alike = tuple(self._going()), tuple(self._alike())
        self.alike = range(len(going), len(going) + len(alike))
        """Scenarios of which each differs from the first one in one thing only."""
        self.scenarios: tuple[Scenario, ...] = (*going, *alike, *self._ending())

    @cached_property
    def going(self) -> list[int]:
        """Scenarios that never end by themselves."""
        return [number for number in range(len(self.scenarios)) if number not in self.ending]

    @cached_property
    def ending(self) -> list[int]:
        """Scenarios whose last step ends the stream."""
        return [number for number, scenario in enumerate(self.scenarios) if self.followed(number).codes[-1] is None]

    @cached_property
    def continued(self) -> list[int]:
        """Scenarios that begin as a continuation."""
        return [number for number, scenario in enumerate(self.scenarios) if scenario.begins]

    def as_long_as(self, number: int) -> list[int]:
        """Scenarios of equally many prompt rows, this one included."""
        return [other for other in range(len(self.scenarios)) if self.rows(other) == self.rows(number)]

    def rows(self, number: int) -> int:
        """Rows that its stream starts with."""
        scenario = self.scenarios[number]
        return len(scenario.case.embeds) + scenario.begins

    def followed(self, number: int) -> Followed:
        """Return the results of ``reference`` in float32, from the first frame on."""
        scenario = self.scenarios[number]
        return self._oracle.follow(scenario.case, scenario.steps)

    def rounded(self, number: int) -> Followed:
        """Return the results of ``reference`` along the same codes, in the type under test."""
        codes = [frame for frame in self.followed(number).codes if frame is not None]
        codes = codes or [self._silence]  # the first logits come before any code
        return self._oracle.follow(self.scenarios[number].case, codes, self.dtype)

    def length(self, number: int) -> int:
        """Steps that a stream takes, the one that ends it included."""
        return len(self.followed(number).codes) - self.scenarios[number].begins

    def request(self, number: int) -> StreamRequest:
        """Return the request that starts its stream."""
        scenario = self.scenarios[number]
        case = scenario.case
        if not scenario.begins:
            return StreamRequest(case.embeds, case.sampling)
        emitted = [codes for codes in self.followed(number).codes[: scenario.begins] if codes is not None]
        embeds = torch.cat((case.embeds, self._cases.emitted_rows(case, emitted)))
        return StreamRequest(embeds, case.sampling, tuple(codes[0] for codes in emitted))

    def step(self, number: int, step: int, stream: StreamHandle) -> DecodeStep:
        """Its step of that number, counted from the stream's own start."""
        scenario = self.scenarios[number]
        index = scenario.begins + step
        return DecodeStep(stream, scenario.case.text(index), scenario.steps[index])

    def _going(self) -> Iterator[Scenario]:
        chance = random.Random(1)
        for number, rows in enumerate(LENGTHS):
            begins = (0, 0, 1, 0, 6, 0, 0, 13)[number % 8]
            sampling = replace(SAMPLED[number % len(SAMPLED)], seed=number + 2**33 * (number % 3))
            forced = [self._frame(chance) for _ in range(begins + STEPS)]
            steps = _mix(MIXES[(number + number // 8) % len(MIXES)], forced)
            yield self._scenario(rows, number, sampling, steps, begins)

    def _alike(self) -> Iterator[Scenario]:
        """Yield scenarios that differ in one thing: later text, seed, temperature, first row, last row, or history."""
        hot = replace(SAMPLED[2], seed=7)
        first = self._scenario(24, 40, hot, [None] * ALIKE_STEPS, 0)
        yield first
        text = torch.cat((first.case.trailing[:2], first.case.trailing[2:].flip(0)))
        yield replace(first, case=replace(first.case, name=f"{first.case.name}, other text later", trailing=text))
        for sampling in (replace(hot, seed=8), replace(hot, temperature=2.0)):
            yield self._scenario(24, 40, sampling, [None] * ALIKE_STEPS, 0)
        for row in (0, -1):
            embeds = first.case.embeds.clone()
            embeds[row] = embeds[row].flip(0)
            yield replace(first, case=replace(first.case, name=f"{first.case.name}, row {row}", embeds=embeds))
        yield replace(first, begins=1)

    def _ending(self) -> Iterator[Scenario]:
        """Scenarios about the end of speech."""
        chance = random.Random(2)
        end = (self._config.codec_eos_id, *[0] * (self._config.num_code_groups - 1))
        if self._forced_codes:
            for number, (rows, step, begins) in enumerate(((5, 1, 0), (70, 3, 0), (18, 5, 2), (140, 2, 1), (40, 0, 0))):
                frames = [self._frame(chance) if index % 2 else None for index in range(step)]
                yield self._scenario(rows, 50 + number, replace(SAMPLED[0], seed=number), [*frames, end], begins)
        if self._seeded:
            vocabulary = CodeVocabulary.from_config(self._config)
            # frame that ends, min_new_tokens, frames emitted before: a minimum that is just reached, and one that a
            # continuation has behind it and would meet again if frames were counted anew.
            for number, (rows, frame, least, begins) in enumerate(
                ((6, 2, 2, 0), (33, 4, 0, 0), (72, 6, 6, 4), (12, 5, 4, 3), (150, 3, 3, 0), (25, 1, 0, 0))
            ):
                noise = replace(NOISE, min_new_tokens=least)
                seed = seed_that_ends_at(frame, noise, vocabulary, start=1000 * number)
                yield self._scenario(rows, 60 + number, replace(noise, seed=seed), [None] * (frame + 1), begins)
            for number, begins in enumerate((0, 2)):  # the noise asks for an end that the minimum does not allow
                seed = seed_that_ends_at(4, replace(NOISE, min_new_tokens=0), vocabulary, start=9000 * (number + 1))
                yield self._scenario(
                    20, 70 + number, replace(NOISE, seed=seed, min_new_tokens=ENDLESS), [None] * 8, begins
                )

    def _scenario(
        self, rows: int, number: int, sampling: SamplingParams, steps: Sequence[Codes | None], begins: int
    ) -> Scenario:
        if not self._forced_codes:
            steps = [None] * len(steps)
        elif self.dtype != torch.float32 and not self._seeded:
            steps = [codes or self._silence for codes in steps]
        if not self._seeded:
            sampling = replace(sampling, do_sample=False, predictor_do_sample=False)
        elif self.dtype != torch.float32:
            sampling = replace(NOISE, seed=sampling.seed, min_new_tokens=sampling.min_new_tokens)
        elif sampling.temperature == NOISE.temperature:
            sampling = replace(sampling, predictor_temperature=0.9)
        steps = tuple(steps[: self._limit - 2])
        rows = max(2, min(rows, self._limit - len(steps)))
        prompt = self._cases.rows(rows, sampling)
        text = self._cases.rows(STEPS + 20, sampling).embeds
        own = text[torch.randperm(len(text), generator=torch.Generator().manual_seed(number))]
        embeds = prompt.embeds
        if number % 2:  # exact in 16 bits, as which they may be passed
            embeds, own = embeds.bfloat16().float(), own.bfloat16().float()
        case = replace(prompt, name=f"scenario {number}", embeds=embeds, trailing=own)
        return Scenario(case, steps, min(begins, len(steps) - 1))

    def _frame(self, chance: random.Random) -> Codes:
        config = self._config
        rest = [chance.randrange(config.predictor.vocab_size) for _ in range(config.num_code_groups - 1)]
        return (chance.randrange(config.first_suppressed_id), *rest)


def _mix(mix: str, forced: Sequence[Codes]) -> list[Codes | None]:
    half = len(forced) // 2
    chosen = {
        "free": [False] * len(forced),
        "some forced": [index % 3 == 1 for index in range(len(forced))],
        "forced first": [index < half for index in range(len(forced))],
        "forced last": [index >= half for index in range(len(forced))],
    }[mix]
    return [codes if use else None for codes, use in zip(forced, chosen, strict=True)]


def seed_that_ends_at(frame: int, sampling: SamplingParams, vocabulary: CodeVocabulary, start: int = 0) -> int:
    """A seed whose noise chooses end-of-speech at ``frame`` and at none before, from equal logits."""
    logits = np.zeros(vocabulary.size, dtype=np.float32)

    def ends(seed: int, frame: int) -> bool:
        params = replace(sampling, seed=seed)
        return choose(logits, params, codebook=0, frame=frame, history=(), vocabulary=vocabulary) == vocabulary.eos_id

    for seed in range(start, start + 200_000):
        if ends(seed, frame) and not any(ends(seed, earlier) for earlier in range(frame)):
            return seed
    raise AssertionError("no seed found: the noise of the sampling contract is not uniform")
