import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from transformers.generation.logits_process import (
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from megatalker.checkpoint import Checkpoint
from megatalker.errors import InvalidRequestError
from megatalker.sampling import CodeVocabulary, SamplerRows, SamplingParams
from megatalker.sampling.numpy_sampler import choose, gumbel_noise
from megatalker.sampling.numpy_sampler import philox4x32 as philox_numpy
from megatalker.sampling.philox import philox4x32, round_keys, signed_multipliers
from megatalker.sampling.piecewise import decay_table, evaluate, gumbel_table

CPU = torch.device("cpu")
VOCABULARY = CodeVocabulary(size=70, eos_id=60, first_suppressed_id=50)
GREEDY = SamplingParams(do_sample=False, predictor_do_sample=False, min_new_tokens=0)

# Known answers of the Random123 distribution (tests/kat_vectors, philox4x32 10): counter, key, result.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def sampler(*streams: SamplingParams, vocabulary: CodeVocabulary = VOCABULARY) -> SamplerRows:
    rows = SamplerRows(len(streams), vocabulary, CPU)
    for row, params in enumerate(streams):
        rows.assign(row, params)
    return rows


def random_logits(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 3


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_the_published_known_answers(counter: str, key: str, expected: str) -> None:
    c, k = torch.tensor(words(counter)).view(2, 2, 1), tuple(words(key))
    keys = torch.tensor(round_keys((k[0], k[1]))).unsqueeze(-1)
    even, odd = philox4x32(c[:, 0], c[:, 1], keys, signed_multipliers(CPU).unsqueeze(-1))
    assert torch.stack((even, odd), dim=1).flatten().tolist() == words(expected)
    assert philox_numpy(np.array(words(counter), np.uint64)[:, None], (k[0], k[1]))[:, 0].tolist() == words(expected)


def test_noise_is_the_gumbel_function_of_the_documented_counter() -> None:
    seed, codebook, frame, size = 2**63 + 12345, 7, 3, 41
    noise = gumbel_noise(seed, codebook, frame, size)
    for code in (0, 1, 2, 3, 4, 38, 40):
        counter = np.array([[code // 4], [codebook], [frame], [0]], np.uint64)
        word = int(philox_numpy(counter, (seed % 2**32, seed // 2**32))[code % 4, 0])
        u = ((word >> 8) + 0.5) / 2**24
        assert noise[code] == pytest.approx(-math.log(-math.log(u)), abs=2e-6)


def test_every_kind_of_uniform_number_has_its_gumbel_value() -> None:
    n = np.unique(np.concatenate([2 ** np.arange(1, 25) - 1, 2 ** np.arange(1, 25) + 1, np.arange(1, 2**25, 9998)]))
    n = np.unique(np.concatenate([n, 2**25 - n]))
    upper = n > 2**24
    nearer = np.where(upper, 2**25 - n, n)
    bits = nearer.astype(np.float32).view(np.int32).astype(np.int64)
    rows = np.array(gumbel_table())[(bits >> 19) - 127 * 16 + 384 * upper]
    value = evaluate(rows, bits & (2**19 - 1), 19) / 2**26
    exponential = np.where(upper, -np.log1p(-nearer / 2**25), -np.log(nearer / 2**25))
    np.testing.assert_allclose(value, -np.log(exponential), atol=1e-7)


def test_decay_is_the_exponential_function() -> None:
    steps = np.arange(0, 32 * 2**20, 1237)
    value = evaluate(np.array(decay_table())[steps >> 17], steps & (2**17 - 1), 17)
    np.testing.assert_allclose(value, np.exp(-steps / 2**20) * 2**40, rtol=1.4e-7, atol=4)


parameters = st.builds(
    SamplingParams,
    do_sample=st.booleans(),
    temperature=st.floats(0.05, 3),
    top_k=st.none() | st.integers(1, 100),
    top_p=st.floats(0.01, 1) | st.just(1.0),
    repetition_penalty=st.floats(0.5, 2),
    min_new_tokens=st.integers(0, 4),
    predictor_do_sample=st.booleans(),
    predictor_temperature=st.floats(0.05, 3),
    predictor_top_k=st.none() | st.integers(1, 100),
    predictor_top_p=st.floats(0.01, 1) | st.just(1.0),
    seed=st.integers(0, 2**64 - 1),
)
histories = st.lists(st.integers(0, VOCABULARY.size - 1), max_size=6)


@settings(max_examples=120, deadline=None)
@given(st.lists(st.tuples(parameters, histories), min_size=1, max_size=4), st.integers(0, 2**32), st.booleans())
def test_torch_equals_numpy(streams: list[tuple[SamplingParams, list[int]]], seed: int, coarse: bool) -> None:
    rows = SamplerRows(len(streams), VOCABULARY, CPU)
    for row, (params, history) in enumerate(streams):
        rows.assign(row, params, history)
    order = torch.arange(len(streams)).flip(0)
    for step in range(3):
        first, rest = (
            random_logits(len(streams), 70, seed=seed + step),
            random_logits(len(streams), 37, seed=seed - step),
        )
        if coarse:  # many equal logits: ties at every filter and at the choice
            first, rest = first.round(), rest.round()
        codes = rows.choose_first(order, first).tolist()
        codebook = 1 + (seed + step) % 15
        others = rows.choose_rest(order, rest, codebook).tolist()
        for position, row in enumerate(order.tolist()):
            params, history = streams[row]
            facts: dict[str, Any] = {"frame": len(history), "history": history, "vocabulary": VOCABULARY}
            assert codes[position] == choose(first[position].numpy(), params, codebook=0, **facts)
            assert others[position] == choose(rest[position].numpy(), params, codebook=codebook, **facts)
            history.append(codes[position])
        rows.advance(order, torch.tensor(codes))


def test_rows_without_top_p_equal_numpy() -> None:
    """Weights of top-p are not computed in a call of which no row has one."""
    streams = [
        SamplingParams(seed=seed, predictor_top_k=top_k, predictor_temperature=3.0)
        for top_k in (1, 2, 3, None, 69, 2**31 - 1)
        for seed in range(20)
    ]
    logits = random_logits(len(streams), 70)
    found = sampler(*streams).choose_rest(torch.arange(len(streams)), logits, 4).tolist()
    facts = {"codebook": 4, "frame": 0, "history": (), "vocabulary": VOCABULARY}
    assert found == [choose(row.numpy(), params, **facts) for row, params in zip(logits, streams, strict=True)]


@pytest.mark.parametrize("size", [1, 2, 5, 256, 3072])
def test_noise_of_all_codebooks_at_once_equals_numpy(size: int) -> None:
    rows = sampler(SamplingParams(seed=5), SamplingParams(seed=2**64 - 1))
    rows.advance(torch.tensor([1]), torch.tensor([0]))
    noise = rows.rest_noise(torch.tensor([0, 1]), 15, size).numpy()
    for codebook in (1, 2, 15):
        np.testing.assert_array_equal(noise[0, codebook - 1], gumbel_noise(5, codebook, 0, size))
        np.testing.assert_array_equal(noise[1, codebook - 1], gumbel_noise(2**64 - 1, codebook, 1, size))


def test_given_noise_changes_nothing() -> None:
    rows, logits = sampler(SamplingParams(seed=9)), random_logits(1, 40)
    noise = rows.rest_noise(torch.tensor([0]), 15, 40)
    for codebook in range(1, 16):
        alone = rows.choose_rest(torch.tensor([0]), logits, codebook)
        assert rows.choose_rest(torch.tensor([0]), logits, codebook, noise[:, codebook - 1]).equal(alone)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # from inside inductor
@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
def test_compiled_equals_eager(device: str) -> None:
    streams = [SamplingParams(seed=n, top_p=1 - n / 70, top_k=n + 1, temperature=0.3 + n / 7) for n in range(64)]
    on_cpu, compiled = sampler(*streams), SamplerRows(64, VOCABULARY, torch.device(device))
    for row, params in enumerate(streams):
        compiled.assign(row, params)
    choose_first = torch.compile(compiled.choose_first, fullgraph=True)
    for frame in range(3):
        logits = random_logits(64, 70, seed=frame).round(decimals=1)
        codes = on_cpu.choose_first(torch.arange(64), logits)
        assert choose_first(torch.arange(64, device=device), logits.to(device)).cpu().equal(codes)
        on_cpu.advance(torch.arange(64), codes)
        compiled.advance(torch.arange(64, device=device), codes.to(device))


def huggingface(params: SamplingParams, history: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
    """Scores after the official pipeline's filters."""
    ids = torch.tensor([list(history)], dtype=torch.int64)
    scores = RepetitionPenaltyLogitsProcessor(params.repetition_penalty)(ids, logits[None])
    scores[:, VOCABULARY.first_suppressed_id : VOCABULARY.eos_id] = -torch.inf
    scores[:, VOCABULARY.eos_id + 1 :] = -torch.inf
    if params.do_sample:
        scores = TemperatureLogitsWarper(params.temperature)(ids, scores)
        scores = TopKLogitsWarper(params.top_k or VOCABULARY.size)(ids, scores)
        scores = TopPLogitsWarper(params.top_p)(ids, scores)
    return scores[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0.9, "top_k": 12},
        {"temperature": 2.0, "top_k": None, "top_p": 0.8},
        {"temperature": 2.5, "top_k": 20, "top_p": 0.7, "repetition_penalty": 1.6},
    ],
)
def test_choices_follow_the_softmax_of_the_official_filters(changes: dict[str, Any]) -> None:
    params = SamplingParams(min_new_tokens=0, **changes)
    logits, history, streams, frames = random_logits(70, seed=3), [5, 6, 61, 5], 800, 15
    rows = SamplerRows(streams, VOCABULARY, CPU)
    for row in range(streams):
        rows.assign(row, dataclasses.replace(params, seed=row), history)
    counts = torch.zeros(70)
    for _ in range(frames):
        codes = rows.choose_first(torch.arange(streams), logits.expand(streams, -1))
        counts += codes.bincount(minlength=70)
        rows.advance(torch.arange(streams), torch.full_like(codes, history[0]))
    expected = huggingface(params, history, logits).softmax(0) * streams * frames
    assert not counts[expected == 0].any()
    common = expected >= 5
    rare = [(expected[~common].sum().item(), counts[~common].sum().item())]
    pairs = [*zip(expected[common].tolist(), counts[common].tolist(), strict=True), *(r for r in rare if r[0] >= 5)]
    wanted, seen = np.array(pairs).T
    assert len(pairs) >= 3
    assert stats.chisquare(seen, wanted * seen.sum() / wanted.sum()).pvalue > 1e-3


def test_noise_is_uncorrelated_between_neighbouring_codes_codebooks_frames_and_seeds() -> None:
    base = gumbel_noise(1, 1, 1, 4000)
    assert base.mean() == pytest.approx(np.euler_gamma, abs=0.1)
    assert base.std() == pytest.approx(math.pi / math.sqrt(6), abs=0.1)
    others = [gumbel_noise(2, 1, 1, 4000), gumbel_noise(1, 2, 1, 4000), gumbel_noise(1, 1, 2, 4000), np.roll(base, 1)]
    others.append(gumbel_noise(1 + 2**32, 1, 1, 4000))
    for other in others:
        assert abs(np.corrcoef(base, other)[0, 1]) < 0.07


@pytest.mark.parametrize("seed", range(8))
def test_greedy_equals_the_official_processors(seed: int) -> None:
    params = dataclasses.replace(GREEDY, repetition_penalty=20.0)
    logits = random_logits(70, seed=seed)
    history = logits[:50].argsort()[[0, 3, -3, -1]].tolist()
    rows = SamplerRows(1, VOCABULARY, CPU)
    rows.assign(0, params, history)
    chosen = rows.choose_first(torch.tensor([0]), logits[None]).item()
    assert chosen == huggingface(params, history, logits).argmax().item()
    assert chosen != logits[:50].argmax().item()  # the penalty mattered


def test_greedy_takes_the_lowest_id_on_ties() -> None:
    logits = torch.zeros(1, 70)
    logits[0, [9, 31, 44]] = 2.0
    rows = sampler(GREEDY)
    assert rows.choose_first(torch.tensor([0]), logits).item() == 9
    assert rows.choose_rest(torch.tensor([0]), logits, 1).item() == 9


def test_ids_equal_to_the_kth_are_kept() -> None:
    logits = torch.full((400, 70), -5.0)
    logits[:, [3, 8, 20]] = 1.0
    rows = sampler(*(SamplingParams(top_k=2, temperature=1.0, seed=n) for n in range(400)))
    assert set(rows.choose_first(torch.arange(400), logits).tolist()) == {3, 8, 20}


def test_end_of_speech_waits_for_min_new_tokens_and_suppressed_ids_are_never_chosen() -> None:
    logits = torch.zeros(1, 70)
    logits[0, 65], logits[0, VOCABULARY.eos_id], logits[0, 11] = 9.0, 8.0, 7.0
    rows, row, chosen = (
        sampler(dataclasses.replace(GREEDY, min_new_tokens=2, repetition_penalty=1.0)),
        torch.tensor([0]),
        [],
    )
    for _ in range(3):
        code = rows.choose_first(row, logits)
        chosen.append(code.item())
        rows.advance(row, code)
    assert chosen == [11, 11, VOCABULARY.eos_id]


def test_a_code_seen_twice_is_penalised_once() -> None:
    logits = torch.zeros(1, 70)
    logits[0, 4], logits[0, 5] = 3.0, 1.6
    rows = SamplerRows(1, VOCABULARY, CPU)
    rows.assign(0, dataclasses.replace(GREEDY, repetition_penalty=1.5), [4, 4, 4])
    assert rows.choose_first(torch.tensor([0]), logits).item() == 4  # 3 / 1.5 = 2.0; twice would be 1.33


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    streams = [SamplingParams(seed=n, top_k=n + 1, top_p=1 - n / 20, temperature=1 + n) for n in range(6)]
    logits = random_logits(6, 70)
    together = sampler(*streams).choose_first(torch.arange(6), logits)
    for row, params in enumerate(streams):
        assert sampler(params).choose_first(torch.tensor([0]), logits[row : row + 1]).item() == together[row].item()


def test_a_reused_row_forgets_its_former_stream() -> None:
    rows, row, logits = sampler(SamplingParams(seed=1)), torch.tensor([0]), random_logits(1, 70)
    for _ in range(3):
        rows.advance(row, rows.choose_first(row, logits))
    rows.assign(0, SamplingParams(seed=2))
    assert rows.choose_first(row, logits).equal(sampler(SamplingParams(seed=2)).choose_first(row, logits))


def test_a_stream_continued_from_its_history_chooses_the_same_codes() -> None:
    params, row = SamplingParams(seed=77), torch.tensor([0])
    history: list[int] = []
    rows = sampler(params)
    for frame in range(12):
        logits = random_logits(1, 70, seed=frame)
        code = rows.choose_first(row, logits)
        fresh = SamplerRows(1, VOCABULARY, CPU)
        fresh.assign(0, params, history)
        assert fresh.choose_first(row, logits).equal(code)
        rows.advance(row, code)
        history.append(int(code))
    assert len(set(history)) > 3


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_broken_logits_give_a_code_of_the_vocabulary(bad: float) -> None:
    logits = torch.full((1, 70), bad)
    rows = sampler(SamplingParams(top_p=0.5))
    assert 0 <= rows.choose_first(torch.tensor([0]), logits).item() < 70
    assert 0 <= rows.choose_rest(torch.tensor([0]), logits, 1).item() < 70


@pytest.mark.parametrize("code", [-1, 70])
def test_history_outside_the_vocabulary_is_refused(code: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"code {code}, expected codes from 0 to 69"):
        SamplerRows(1, VOCABULARY, CPU).assign(0, SamplingParams(), [3, code])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((name, value) for name in ("do_sample", "predictor_do_sample") for value in (1, None, "yes")),
        *(
            (name, value)
            for name in ("temperature", "predictor_temperature", "repetition_penalty")
            for value in (0, -1.0, math.nan, math.inf, 1e-30, 1e30, "hot", True, None)
        ),
        *(
            (name, value)
            for name in ("top_p", "predictor_top_p")
            for value in (0, -0.1, 1.01, math.nan, "all", None, True)
        ),
        *((name, value) for name in ("top_k", "predictor_top_k") for value in (0, -3, 2.0, "5", True, 2**31)),
        *(("min_new_tokens", value) for value in (-1, 2**31, 1.0, None)),
        *(("seed", value) for value in (-1, 2**64, 0.5, None, True)),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=rf"^{field} is .*, expected "):
        dataclasses.replace(SamplingParams(), **{field: value})


def test_extreme_values_in_range_are_accepted() -> None:
    params = SamplingParams(top_k=2**31 - 1, top_p=1e-9, temperature=1e6, repetition_penalty=1e-6, seed=2**64 - 1)
    rows = sampler(params)
    assert 0 <= rows.choose_first(torch.tensor([0]), random_logits(1, 70)).item() < 50


def test_the_former_name_of_a_vocabulary_still_works(tiny_custom_voice: Checkpoint) -> None:
    with pytest.deprecated_call(match="from_config"):
        assert CodeVocabulary.of(tiny_custom_voice.config) == CodeVocabulary.from_config(tiny_custom_voice.config)
