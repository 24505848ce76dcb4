"""The rules of the sampling contract, one case for each way to get one wrong. Data; the tests are in
``test_talker_rules``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from megatalker.sampling import SamplingParams
from megatalker.testing.special import OpenModel

END = OpenModel.END
FLOOR = OpenModel.FLOOR
LATER = range(1, 16)
_SLOPE = {code: 3 - 0.25 * code for code in range(30)}
_TIES = {3: 5.0, 7: 5.0, 20: 5.0, 26: 5.0, 30: 4.0, 31: 4.0}
_ALL = {code: -0.25 * place for place, code in enumerate(OpenModel.SINGLE)}
_LEVEL = dict.fromkeys(OpenModel.SINGLE, 0.0)


@dataclass(frozen=True)
class Rule:
    """A frame that one rule alone decides.

    Exactly: for each of ``wrong`` the test finds a seed with which a sampler that does this would choose another code.
    """

    name: str
    wrong: tuple[str, ...]
    """Wrong rules that this one excludes, of :data:`megatalker_conformance.choices.WRONG`."""
    logits: Mapping[int, float]
    """Logits of code 0 of the frame; all other ids have ``others``."""
    params: SamplingParams = field(default_factory=SamplingParams)
    given: tuple[int, ...] = ()
    """Code 0 of frames that came as the history of the request."""
    before: tuple[int, ...] = ()
    """Code 0 of frames that the stream itself emitted before."""
    how: Literal["chosen", "forced"] = "chosen"
    """Whether the stream chose the codes of ``before`` or was forced to emit them."""
    codebooks: Sequence[int] = (0,)
    """The codes, one of which shows it."""
    others: float = FLOOR
    special: float = FLOOR
    seed: int | None = None
    """The one seed that it is about."""


def _greedy(**params: object) -> SamplingParams:
    plain: dict[str, object] = {"do_sample": False, "predictor_do_sample": False, "repetition_penalty": 1.0}
    return SamplingParams(**{**plain, "min_new_tokens": 0, **params})  # type: ignore[arg-type]


def _sampled(**params: object) -> SamplingParams:
    plain: dict[str, object] = {"temperature": 1.0, "top_k": None, "repetition_penalty": 1.0, "min_new_tokens": 0}
    return SamplingParams(**{**plain, "predictor_top_k": None, **params})  # type: ignore[arg-type]


_CONTINUED = "forgets the history of a continuation"
_OLD = ("forgets codes older than 32 frames", "forgets codes older than 64 frames")
_ALL_OLD = (*_OLD, "forgets codes older than 256 frames")

PENALTY = (
    Rule(
        "an id said once", ("skips the repetition penalty",), {5: 8, 7: 6}, _greedy(repetition_penalty=2), before=(5,)
    ),
    Rule("id 0", ("does not penalise id 0",), {0: 8, 7: 6}, _greedy(repetition_penalty=2), before=(0,)),
    Rule("id 0, forced", ("does not penalise id 0",), {0: 8, 7: 6}, _greedy(repetition_penalty=2), (), (0,), "forced"),
    Rule("id 0, given", ("does not penalise id 0",), {0: 8, 7: 6}, _greedy(repetition_penalty=2), given=(0,)),
    Rule(
        "the last code of the codebook",
        ("skips the repetition penalty",),
        {127: 8, 7: 6},
        _greedy(repetition_penalty=2),
        before=(127,),
    ),
    Rule(
        "an id said three times",
        ("penalises an id once for each time it was said",),
        {3: 9, 7: 5},
        _greedy(repetition_penalty=1.5),
        before=(3, 3, 3),
    ),
    Rule(
        "an id given three times",
        ("penalises an id once for each time it was said",),
        {3: 9, 7: 5},
        _greedy(repetition_penalty=1.5),
        given=(3, 3, 3),
    ),
    Rule(
        "an id given, forced and said",
        ("penalises an id once for each time it was said",),
        {3: 9, 7: 5},
        _greedy(repetition_penalty=1.5),
        given=(3,),
        before=(3, 3),
        how="forced",
    ),
    Rule(
        "a negative logit",
        ("divides negative logits by the penalty", "penalises positive logits only", "skips the repetition penalty"),
        {3: -4, 7: -6},
        _greedy(repetition_penalty=2),
        before=(3,),
    ),
    Rule(
        "a positive logit",
        ("multiplies positive logits by the penalty", "penalises negative logits only", "subtracts the penalty"),
        {3: 8, 7: 5},
        _greedy(repetition_penalty=2),
        before=(3,),
    ),
    Rule(
        "a penalty below 1",
        ("takes a penalty below 1 for 1", "skips the repetition penalty"),
        {3: 4, 7: 6},
        _greedy(repetition_penalty=0.5),
        before=(3,),
    ),
    Rule(
        "the largest penalty",
        ("divides negative logits by the penalty", "skips the repetition penalty"),
        {3: -1, 7: -20},
        _greedy(repetition_penalty=1e6),
        before=(3,),
    ),
    Rule(
        "a forced code",
        ("forgets codes that it did not choose itself",),
        {3: 8, 7: 6},
        _greedy(repetition_penalty=2),
        before=(3,),
        how="forced",
    ),
    Rule("the history of a continuation", (_CONTINUED,), {3: 8, 7: 6}, _greedy(repetition_penalty=2), given=(3, 9)),
    Rule(
        "a code after a continuation",
        ("remembers the history of the request only",),
        {3: 8, 7: 6},
        _greedy(repetition_penalty=2),
        given=(9,),
        before=(3,),
    ),
    Rule(
        "all codes before",
        ("penalises the last code only",),
        {3: 8, 7: 7, 4: 6},
        _greedy(repetition_penalty=2),
        before=(3, 7, 9),
    ),
    Rule("a code long ago", _OLD, {3: 8, 7: 6}, _greedy(repetition_penalty=2), (), (3, *[9] * 66), "forced"),
    Rule("a code given long ago", _ALL_OLD, {3: 8, 7: 6}, _greedy(repetition_penalty=2), (3, *[9] * 300)),
    Rule(
        "a sampled frame",
        ("skips the repetition penalty", "filters before the penalty"),
        {3: 8, 7: 6},
        _sampled(repetition_penalty=2, top_k=1),
        before=(3,),
    ),
    Rule(
        "code 0 only",
        ("penalises later codes, too",),
        {20: 8},
        _greedy(repetition_penalty=1e6),
        given=tuple(range(0, 128, 2)),
        codebooks=LATER,
    ),
    Rule(
        "codes of code 0 only",
        ("penalises codes of all codebooks",),
        {0: 8, 7: 6},
        _greedy(repetition_penalty=2),
        before=(9,),
        how="forced",
    ),
)
END_OF_SPEECH = (
    Rule("greedy", ("ignores end-of-speech",), {END: 9, 3: 8}, _greedy()),
    Rule("sampled", ("ignores end-of-speech",), {END: 9, 3: -9}, _sampled()),
    Rule("greedy, early", ("ignores min_new_tokens",), {END: 9, 3: 8}, _greedy(min_new_tokens=1)),
    Rule("greedy, a minimum of 17 bits", ("ignores min_new_tokens",), {END: 9, 3: 8}, _greedy(min_new_tokens=1 << 16)),
    Rule(
        "greedy, early after 260 frames",
        ("ignores min_new_tokens",),
        {END: 9, 3: 8},
        _greedy(min_new_tokens=300),
        given=(5,) * 260,
    ),
    Rule(
        "sampled, early",
        ("ignores min_new_tokens", "bars special ids after the filters"),
        {END: 9, 3: 8, 4: 8},
        _sampled(min_new_tokens=1, top_k=1),
    ),
    Rule(
        "one frame early",
        ("suppresses end-of-speech one frame shorter",),
        {END: 9, 3: 8},
        _greedy(min_new_tokens=3),
        before=(5, 6),
    ),
    Rule(
        "just in time",
        ("suppresses end-of-speech one frame longer",),
        {END: 9, 3: 8},
        _greedy(min_new_tokens=3),
        before=(5, 6, 7),
    ),
    Rule(
        "just in time, forced",
        ("suppresses end-of-speech one frame longer",),
        {END: 9, 3: 8},
        _greedy(min_new_tokens=3),
        before=(5, 6, 7),
        how="forced",
    ),
    Rule(
        "a continuation just in time",
        ("counts min_new_tokens anew in a continuation", "suppresses end-of-speech one frame longer"),
        {END: 9, 3: 8},
        _greedy(min_new_tokens=3),
        given=(5, 6, 7),
    ),
    Rule(
        "a continuation one frame early",
        ("ignores min_new_tokens", "suppresses end-of-speech one frame shorter"),
        {END: 9, 3: 8},
        _greedy(min_new_tokens=4),
        given=(5, 6),
        before=(7,),
    ),
    Rule("a tie with a code", ("takes the highest of equal ids",), {END: 9, 3: 9}, _greedy()),
)
SUPPRESSED = (
    Rule("greedy", ("chooses special ids",), {3: 5}, _greedy(), special=12),
    Rule("sampled", ("chooses special ids",), {3: 5}, _sampled(), special=12),
    Rule(
        "before top-k",
        ("bars special ids after the filters", "chooses special ids"),
        {3: 5, 7: 5},
        _sampled(top_k=2),
        special=12,
    ),
    Rule(
        "before top-p",
        ("bars special ids after the filters", "chooses special ids"),
        {3: 5, 7: 5},
        _sampled(top_p=0.5),
        special=12,
    ),
)
GREEDY = (
    Rule("the lowest of equal ids", ("takes the highest of equal ids",), {7: 5, 3: 5, 100: 5}, _greedy()),
    Rule("id 0 of equal ids", ("takes the highest of equal ids",), _LEVEL, _greedy(), others=0),
    Rule(
        "the predictor's lowest of equal ids", ("takes the highest of equal ids",), {7: 5}, _greedy(), codebooks=LATER
    ),
    Rule("the last codebook", ("samples where it should be greedy",), {7: 5}, _greedy(), codebooks=(15,)),
    Rule(
        "code 0 alone",
        ("samples where it should be greedy", "takes the predictor's values for code 0"),
        _SLOPE,
        _sampled(do_sample=False),
    ),
    Rule(
        "the predictor alone",
        ("samples where it should be greedy", "takes code 0's values for the predictor"),
        {7: 20},
        _sampled(predictor_do_sample=False),
        codebooks=LATER,
    ),
    Rule(
        "not code 0",
        ("is greedy where it should sample", "takes the predictor's values for code 0"),
        _SLOPE,
        _sampled(predictor_do_sample=False),
    ),
    Rule(
        "not the predictor",
        ("is greedy where it should sample", "takes code 0's values for the predictor"),
        {7: 20},
        _sampled(do_sample=False),
        codebooks=LATER,
    ),
)


def _filters(later: bool) -> tuple[Rule, ...]:
    """Return the rules that hold for code 0 and for the predictor's codes alike."""
    codebooks, where = (LATER, "later codes") if later else ((0,), "code 0")
    other = "takes code 0's values for the predictor" if later else "takes the predictor's values for code 0"

    def rule(name: str, wrong: tuple[str, ...], logits: Mapping[int, float], **params: object) -> Rule:
        named = {("predictor_" if later else "") + key: value for key, value in params.items()}
        params = {"do_sample": False, **named} if later else named
        return Rule(f"{name}, {where}", wrong, {7: 20} if later else logits, _sampled(**params), codebooks=codebooks)

    few = ("keeps 30 ids without a top-k", *(["keeps 50 ids without a top-k"] if later else []))
    cuts = tuple(f"cuts ties at the edge of top-k, keeping {which} ids" for which in ("low", "high"))
    many = ("keeps 64 ids at most", "ignores top-k") if later else cuts
    wrong_heat = ("ignores the temperature", "takes the default temperature", "multiplies by the temperature", other)
    return (
        rule("a low temperature", wrong_heat, _SLOPE, temperature=0.25),
        rule("a high temperature", wrong_heat, _SLOPE, temperature=6.0),
        rule("the lowest temperature", ("ignores the temperature", other), _SLOPE, temperature=1e-6),
        rule("the highest temperature", ("ignores the temperature", other), _SLOPE, temperature=1e6),
        rule(
            "top-k",
            ("ignores top-k", "keeps one id more than top-k", "keeps one id less than top-k", other),
            _SLOPE,
            top_k=4,
            temperature=3.0,
        ),
        rule("top-k of 1", ("ignores top-k", "keeps one id more than top-k"), _SLOPE, top_k=1, temperature=5.0),
        rule("top-k of 100", many, _ALL, top_k=100, temperature=30.0),
        rule(
            "ties at the edge of top-k",
            (
                "cuts ties at the edge of top-k, keeping low ids",
                "cuts ties at the edge of top-k, keeping high ids",
                "ignores top-k",
            ),
            _TIES,
            top_k=2,
            temperature=3.0,
        ),
        rule("no top-k", few, _ALL, top_k=None, temperature=30.0),
        rule("a top-k above the vocabulary", few, _ALL, top_k=2**31 - 1, temperature=30.0),
        rule(
            "top-p",
            (
                "ignores top-p",
                "keeps one id more than top-p",
                "keeps one id less than top-p",
                "takes 1 - top_p for top_p",
                other,
            ),
            _SLOPE,
            top_p=0.6,
            temperature=1.3,
        ),
        rule(
            "top-p close to 0", ("ignores top-p", "keeps one id more than top-p"), _SLOPE, top_p=1e-6, temperature=2.0
        ),
        rule("top-p close to 1", ("keeps one id less than top-p", "takes 1 - top_p for top_p"), _SLOPE, top_p=0.97),
        rule("ties at the edge of top-p", ("cuts ties at the edge of top-p", "ignores top-p"), _TIES, top_p=0.3),
        rule(
            "top-p among the ids of top-k", ("applies top-p before top-k",), _SLOPE, top_k=5, top_p=0.7, temperature=2.0
        ),
        rule("top-p after the temperature", ("filters before the temperature",), _SLOPE, top_p=0.5, temperature=3.0),
    )


def _noisy(codebooks: Sequence[int], frame: int, *wrong: str, seed: int | None = None) -> Rule:
    """All codes are equally likely: noise alone decides."""
    name = f"frame {frame}, codebook {codebooks[0]}" + ("" if seed is None else f", seed {seed}")
    params = _sampled(predictor_temperature=1e6, seed=seed or 0)
    return Rule(name, wrong, _LEVEL, params, given=(9,) * frame, codebooks=codebooks, others=0, seed=seed)


_ANEW = ("counts frames anew in a continuation", "has the same noise in each frame")
_PERIODS = ("repeats its noise every 64 frames", "repeats its noise every 256 frames")
_OTHER_CODEBOOK = ("has the same noise in each codebook", "has the noise of the codebook before")
NOISE = (
    _noisy(
        (0,), 0, "has the noise of another id", "has the noise of another four ids", "is one frame ahead with its noise"
    ),
    _noisy((0,), 1, *_ANEW, "is one frame late with its noise"),
    _noisy((0,), 65, *_ANEW, _PERIODS[0]),
    _noisy((0,), 257, *_ANEW, *_PERIODS),
    _noisy((5,), 257, *_ANEW, *_PERIODS),
    _noisy(
        (0,),
        1030,
        *_ANEW,
        *_PERIODS,
        "repeats its noise every 1000 frames",
        "repeats its noise every 1024 frames",
        "has no new noise after 512 frames",
    ),
    *(_noisy((codebook,), 2, *_OTHER_CODEBOOK, "has the noise of another id") for codebook in (1, 2, 8, 15)),
    _noisy(range(8, 16), 2, "repeats its noise after 8 codebooks"),
    _noisy((0,), 0, "ignores the seed", seed=1),
    _noisy((0,), 0, "ignores the seed", "exchanges the words of the seed", seed=2**31),
    _noisy((0,), 0, "ignores the seed's high word", "ignores the seed's low word", seed=2**32 + 5),
    _noisy((3,), 0, "ignores the seed's high word", "exchanges the words of the seed", seed=7 * 2**32),
    _noisy((0,), 0, "rounds the seed to float64", seed=2**53 + 1),
    _noisy((0,), 0, "ignores the seed's highest bit", seed=2**63 + 3),
    _noisy((7,), 0, "ignores the seed's highest bit", "ignores the seed's high word", seed=2**64 - 1),
)
ALL: Mapping[str, tuple[Rule, ...]] = {
    "repetition penalty": PENALTY,
    "end of speech": END_OF_SPEECH,
    "suppressed ids": SUPPRESSED,
    "greedy": GREEDY,
    "filters": (*_filters(later=False), *_filters(later=True)),
    "noise": NOISE,
}
