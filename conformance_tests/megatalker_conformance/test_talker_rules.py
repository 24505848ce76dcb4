"""The sampling contract, rule by rule, in any arithmetic: on a model whose logits the test chooses, each rule alone
decides a code.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from megatalker.interfaces import DecodeStep, StreamHandle, StreamRequest
from megatalker.plugins.checked import CheckedTalker
from megatalker.sampling import CodeVocabulary, SamplingParams
from megatalker.testing.recipe import TINY
from megatalker.testing.special import OpenModel
from megatalker_conformance import rules
from megatalker_conformance.checks import require
from megatalker_conformance.choices import WRONG, Choice
from megatalker_conformance.rules import Rule
from megatalker_conformance.special import OPEN, Loader, SpecialCheckpoints
from megatalker_conformance.streams import Codes

EXACT, ROUNDED = 1e-4, 2**-8
"""Relative error of a logit that is a single product, in float32 and in 16-bit arithmetic."""
SEEDS = 400
CONTRACT = "megatalker/sampling/sampler.py, at the top: the rules of a choice"


@dataclass
class OpenStream:
    """A stream on the open model: what it was told, and what it said."""

    params: SamplingParams
    handle: StreamHandle
    row: np.ndarray
    """The text row that the pending logits depend on, with ``said``."""
    given: int
    history: list[int]
    said: Codes | None = None


class OpenTalker:
    """The decoder under test on the open model, and what the contract says that it must choose.

    Args:
        decoder: loaded on the open model.
        model: its closed form.
        vocabulary: of its code 0.
        error: relative error of its logits.
    """

    def __init__(self, decoder: CheckedTalker, model: OpenModel, vocabulary: CodeVocabulary, error: float) -> None:
        self.decoder, self.model, self.vocabulary, self.error = decoder, model, vocabulary, error
        self.groups = TINY.num_code_groups

    def start(self, *parts: tuple[SamplingParams, Sequence[int], np.ndarray]) -> list[OpenStream]:
        """Prefill: for each stream its sampling, history and the prompt's last row, all rows before it being others."""
        other = self.model.row({11: 9.0})
        requests = [
            StreamRequest(torch.from_numpy(np.stack([*[other] * (len(given) + 1), row])), params, tuple(given))
            for params, given, row in parts
        ]
        handles = self.decoder.prefill(requests)
        return [
            OpenStream(params, handle, row, len(given), list(given))
            for handle, (params, given, row) in zip(handles, parts, strict=True)
        ]

    def advance(
        self,
        streams: Sequence[OpenStream],
        rows: Sequence[np.ndarray],
        forced: Codes | None = None,
        with_logits: bool = False,
    ) -> list[tuple[list[Choice], Codes | None]]:
        """One frame of each stream: its choices as they presented themselves, and its codes."""
        steps = [
            DecodeStep(stream.handle, torch.from_numpy(row), forced) for stream, row in zip(streams, rows, strict=True)
        ]
        frames = self.decoder.decode(steps, return_logits=with_logits)()
        answers = []
        for stream, row, frame in zip(streams, rows, frames, strict=True):
            answers.append((self.choices(stream, frame.codes), frame.codes))
            if frame.codes is not None:
                stream.history.append(frame.codes[0])
                stream.row, stream.said = row, frame.codes
        return answers

    def choices(self, stream: OpenStream, codes: Codes | None) -> list[Choice]:
        """The choices of its next frame, each after the ``codes`` before it in the frame; one if it ended."""
        first = Choice(
            self.model.talker_logits(stream.row, stream.said),
            stream.params,
            0,
            len(stream.history),
            tuple(stream.history),
            self.vocabulary,
            stream.given,
        )
        return [
            first,
            *(self.later(first, codebook, code) for codebook, code in enumerate((codes or ())[:-1], start=1)),
        ]

    def later(self, first: Choice, codebook: int, previous: int) -> Choice:
        """A choice of the predictor."""
        return replace(first, logits=self.model.predictor_logits(codebook, previous), codebook=codebook)

    def release(self, streams: Sequence[OpenStream]) -> None:
        for stream in streams:
            self.decoder.release(stream.handle)


Decided = dict[int, list[tuple[SamplingParams, Mapping[int, float]]]]


@pytest.fixture(scope="session")
def decided() -> Decided:
    """Return the evidence for each rule, by the rule's identity; it is found once for all backends of the run."""
    return {}


@pytest.fixture(scope="module")
def open_talker(load_special: Loader, special_checkpoints: SpecialCheckpoints, dtype: torch.dtype) -> OpenTalker:
    checkpoint = special_checkpoints.checkpoint(OPEN)
    model = OpenModel(lambda name: checkpoint.tensor(name).numpy())
    decoder = load_special(OPEN)
    error = EXACT if dtype == torch.float32 and decoder.capabilities.weight_bits is None else ROUNDED
    return OpenTalker(decoder, model, CodeVocabulary.from_config(checkpoint.config), error)


@pytest.mark.parametrize(
    "rule",
    [pytest.param(rule, id=f"{kind}: {rule.name}") for kind, group in rules.ALL.items() for rule in group],
)
def test_each_rule_of_the_sampling_contract_decides_a_code(
    open_talker: OpenTalker, decided: Decided, rule: Rule
) -> None:
    decoder = open_talker.decoder
    if rule.how == "forced":
        require(decoder.capabilities, "forced_codes")
    if rule.params.do_sample or rule.params.predictor_do_sample:
        require(decoder.capabilities, "seeded_sampling")
    if decoder.max_positions < len(rule.given) + len(rule.before) + 3:
        pytest.skip(f"the backend has {decoder.max_positions} positions, too few for this rule")
    if id(rule) not in decided:
        decided[id(rule)] = _decisive(open_talker, rule)
    for turn, (params, logits) in enumerate(decided[id(rule)]):
        asks = decoder.capabilities.forced_codes and (turn + len(rule.name)) % 2 == 1  # must make no difference
        choices, codes = _say(open_talker, rule, params, logits, asks)
        _check(open_talker, f"{rule.name} (history {choices[0].history[:5]}, {params})", choices, codes)


def _say(
    talker: OpenTalker, rule: Rule, params: SamplingParams, logits: Mapping[int, float], with_logits: bool
) -> tuple[list[Choice], Codes | None]:
    """The frame of a rule."""
    last = talker.model.row(logits, others=rule.others, special=rule.special)
    rows = [talker.model.row({code: 25.0}) for code in rule.before]
    (stream,) = talker.start((params, rule.given, rows[0] if rows else last))
    try:
        for code, row in zip(rule.before, [*rows[1:], last], strict=False):
            forced = (code, *[0] * (talker.groups - 1)) if rule.how == "forced" else None
            _, said = talker.advance([stream], [row], forced)[0]
            assert said is not None, f"{rule.name}: ended early"
            assert said[0] == code, f"{rule.name}: said {said[0]} for {code}, whose logit is 55 above all others"
        return talker.advance([stream], [last], with_logits=with_logits)[0]
    finally:
        talker.release([stream])


def _decisive(talker: OpenTalker, rule: Rule) -> list[tuple[SamplingParams, Mapping[int, float]]]:
    """Seeds, and for the predictor's codes logits of code 0, with which the wrong samplers choose other codes than the
    contract does; one that shows them all where there is one.
    """
    found: dict[str, tuple[SamplingParams, Mapping[int, float]]] = {}
    for seed in range(SEEDS) if rule.seed is None else [rule.seed]:
        params, logits = replace(rule.params, seed=seed), rule.logits
        if rule.codebooks[0] and rule.seed is None:
            logits = {OpenModel.SINGLE[seed % len(OpenModel.SINGLE)]: 20.0}
        shown = _shown(talker, rule, _chain(talker, rule, params, logits))
        if shown == set(rule.wrong):
            return [(params, logits)]
        found |= dict.fromkeys(shown - found.keys(), (params, logits))
        if seed > 50 and len(found) == len(rule.wrong):
            break
    for wrong in rule.wrong:
        assert wrong in found, f"{rule.name}: nothing shows a sampler that {wrong}"
    return list(found.values())


def _shown(talker: OpenTalker, rule: Rule, chain: Sequence[Choice]) -> set[str]:
    """Return the wrong rules that the codes of one frame exclude, as far as its logits are known exactly."""
    shown: set[str] = set()
    sure = 0
    for place, choice in enumerate(chain):
        if place not in rule.codebooks:
            continue
        new = {wrong for wrong in rule.wrong if wrong not in shown and WRONG[wrong](choice) != choice.code()}
        while new and sure <= place and len(chain[sure].codes_within(talker.error)) == 1:
            sure += 1
        if sure > place:
            shown |= new
    return shown


def _chain(talker: OpenTalker, rule: Rule, params: SamplingParams, logits: Mapping[int, float]) -> list[Choice]:
    """Return the contract's choices for the rule's frame, up to the last one that the rule needs."""
    row = talker.model.row(logits, others=rule.others, special=rule.special)
    stream = OpenStream(params, StreamHandle(0), row, len(rule.given), [*rule.given, *rule.before])
    chain = talker.choices(stream, None)
    for codebook in range(1, max(rule.codebooks) + 1):
        previous = chain[-1].code()
        if codebook == 1 and previous == talker.vocabulary.eos_id:
            break
        chain.append(talker.later(chain[0], codebook, previous))
    return chain


def _check(talker: OpenTalker, where: str, choices: Sequence[Choice], codes: Codes | None) -> None:
    for choice, code in zip(choices, codes or [talker.vocabulary.eos_id], strict=True):
        expected = choice.code()
        if code == expected or code in choice.codes_within(talker.error):
            continue
        alike = [wrong for wrong, rule in WRONG.items() if rule(choice) == code]
        raise AssertionError(
            f"{where}: code {choice.codebook} of frame {choice.frame} is {code}, the contract chooses {expected}. "
            f"The same chooses a sampler that {'; or '.join(alike) or 'makes no known mistake'}. See {CONTRACT}"
        )


STREAMS, FRAMES = 6, 8


def test_random_rules_together_choose_the_codes_of_the_contract(open_talker: OpenTalker) -> None:
    """Any values, any history, any logits with many ties; several streams in each call."""
    require(open_talker.decoder.capabilities, "seeded_sampling")
    if open_talker.decoder.max_positions < HISTORY + FRAMES + 2:
        pytest.skip(f"the backend has {open_talker.decoder.max_positions} positions, too few for this test")
    draw = np.random.default_rng(1)
    count = min(STREAMS, open_talker.decoder.max_streams or STREAMS)
    streams = open_talker.start(
        *[(_any_params(draw), _any_history(draw), _any_row(draw, open_talker)) for _ in range(count)]
    )
    running = streams
    for _ in range(FRAMES):
        answers = open_talker.advance(running, [_any_row(draw, open_talker) for _ in running])
        for stream, (choices, codes) in zip(running, answers, strict=True):
            _check(open_talker, f"stream {streams.index(stream)} ({stream.params})", choices, codes)
        running = [stream for stream, (_, codes) in zip(running, answers, strict=True) if codes is not None]
        if not running:
            break
    open_talker.release(streams)


HISTORY = 100
LATE, LATER = 290, 6
"""Frames until two streams end in one call, and frames of the others after that."""
LEAST = 150
"""Minimum length of a stream whose end of speech is the likeliest choice long before."""
ENDS = (LATE, None, LATE, 97, 41)
"""Frame at which each of five streams ends."""
ASKED = 16
"""All codes of a frame are checked once in this many; code 0 is always."""


def test_streams_end_where_they_should_after_hundreds_of_frames(open_talker: OpenTalker) -> None:
    """Noise, penalty and minimum length far from the start; afterwards all rows are free. Where each stream of a call
    costs a call, the second of two takes part in every fourth.
    """
    decoder = open_talker.decoder
    require(decoder.capabilities, "seeded_sampling")
    if decoder.max_positions < LATE + LATER + GIVEN + 2:
        pytest.skip(f"the backend has {decoder.max_positions} positions, too few for this test")
    level = open_talker.model.row({}, others=2.0)
    ends = ENDS[: min(len(ENDS) if decoder.capabilities.batch else 2, decoder.max_streams or len(ENDS))]
    streams = open_talker.start(*[(_late(place), (9,) * (GIVEN * (place == 2)), level) for place in range(len(ends))])
    running = dict(enumerate(streams))
    for frame in range(LATE + LATER):
        alone = not decoder.capabilities.batch and frame % 4 and frame < LATE
        here = {place: stream for place, stream in running.items() if not (alone and place)}
        rows = [_late_row(open_talker, place, frame + 1) for place in here]
        answers = open_talker.advance(list(here.values()), rows)
        for (place, stream), (choices, codes) in zip(here.items(), answers, strict=True):
            asked = None if frame % ASKED == place else 1
            _check(open_talker, f"stream {place} ({stream.params})", choices[:asked], codes and codes[:asked])
            assert (codes is None) == (frame == ends[place]), (
                f"stream {place} has {'ended' if codes is None else 'not ended'} at frame {frame}. See {CONTRACT}"
            )
            if codes is None:
                del running[place]
    open_talker.release(streams)
    house = decoder.max_streams
    if house is not None and house <= MOST_ROWS:
        open_talker.release(open_talker.start(*[(_late(0), (), level)] * house))


GIVEN = 40
"""Codes that came with the request of the third stream."""
MOST_ROWS = 256


def _late(place: int) -> SamplingParams:
    """Return the sampling of a stream: three sample, one of which never may end; the others are greedy."""
    least = (LEAST, 2**31 - 1, GIVEN + LEAST, 0, 0)[place]
    return SamplingParams(
        do_sample=place < 3,
        temperature=1.0,
        top_k=None,
        repetition_penalty=1.5,
        min_new_tokens=least,
        predictor_do_sample=place != 2,
        seed=2**40 + place,
    )


def _late_row(talker: OpenTalker, place: int, frame: int) -> np.ndarray:
    """Return the row that decides this frame: all codes alike, or end of speech above all."""
    at = ENDS[place]
    barred = frame % 7 == 0 and (at is None or (place in (0, 2) and frame < LEAST))
    return talker.model.row({OpenModel.END: 25.0} if frame == at or barred else {}, others=2.0)


def _any_history(draw: np.random.Generator) -> tuple[int, ...]:
    return tuple(int(code) for code in draw.integers(0, 40, draw.integers(0, HISTORY)))


def _any_row(draw: np.random.Generator, talker: OpenTalker) -> np.ndarray:
    spoken = draw.choice(OpenModel.SINGLE, 20, replace=False)
    logits = {int(code): float(draw.integers(-12, 13)) / 2 for code in spoken}
    if draw.random() < 0.2:
        logits[OpenModel.END] = float(draw.integers(-4, 8))
    floors = draw.choice([OpenModel.FLOOR, -2.0, 1.0], 2, p=[0.5, 0.25, 0.25])
    return talker.model.row(logits, others=float(floors[0]), special=float(floors[1]))


def _any_params(draw: np.random.Generator) -> SamplingParams:
    def stage() -> tuple[bool, float, int | None, float]:
        top_k = None if draw.random() < 0.4 else int(draw.integers(1, 60))
        top_p = 1.0 if draw.random() < 0.4 else float(draw.uniform(0.05, 1))
        return bool(draw.random() < 0.8), float(np.exp(draw.uniform(-1.5, 1.5))), top_k, top_p

    return SamplingParams(
        *stage(),
        float(np.exp(draw.uniform(-0.7, 0.7))),
        int(draw.integers(0, HISTORY + FRAMES)),
        *stage(),
        seed=int(draw.integers(0, 2**64, dtype=np.uint64)),
    )
