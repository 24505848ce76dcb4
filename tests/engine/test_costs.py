"""Costs of launches by size, what streams need by them, and the budget of prefill."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from known_costs import known, line
from megatalker.checkpoint.config import FRAME_SECONDS
from megatalker.engine.costs import (
    GROWING_SHARE,
    LEAST_GROWING_SHARE,
    LEAST_SHARE,
    MOST_CODEC_FRAMES,
    MOST_CODEC_S,
    MOST_DEBT_S,
    MOST_FORCED_DEBT_S,
    MOST_PREFILL_S,
    MOST_SURPRISE,
    MOST_UNEVEN,
    SUSTAINABLE,
    Budget,
    Cost,
    Costs,
)

NOW = 50.0
AUDIO_S = 0.001, 6e-5
"""Seconds of a codec step, and of each of its frames."""


# ---- costs of launches


def test_a_cost_is_a_line_from_each_size_that_was_observed_to_the_next() -> None:
    cost = line(0.005, 0.001, 1, 10, 100)
    assert cost.predict(50) == pytest.approx(0.055)
    assert cost.size_within(0.055) == pytest.approx(50)
    assert cost.size_within(0.001) < 0, "not even the smallest"
    bent = Cost()
    for size, seconds in ((10, 0.010), (20, 0.011), (40, 0.021)):
        bent.observe(size, seconds)
    assert bent.predict(15) == pytest.approx(0.0105)
    assert bent.predict(30) == pytest.approx(0.016)
    assert bent.size_within(0.016) == pytest.approx(30)


def test_nothing_is_predicted_before_the_first_launch() -> None:
    assert Cost().predict(7) == 0.0
    assert Cost().size_within(0.0) == math.inf


def test_launches_of_one_size_tell_little_about_others() -> None:
    one_size = line(0.0, 0.01, 10, 10)
    assert one_size.predict(10) == pytest.approx(0.1)
    assert one_size.predict(1) < 0.1 < one_size.predict(100) < 1.0
    assert one_size.predict(20) == pytest.approx(0.1 * (1 + GROWING_SHARE))
    assert one_size.predict(5) == pytest.approx(0.1 * (1 - GROWING_SHARE / 2))


def test_beyond_the_largest_size_a_cost_grows_as_it_did_up_to_it_but_not_more_slowly_than_a_tenth() -> None:
    steep = line(0.005, 0.001, 10, 100)
    assert steep.predict(200) == pytest.approx(0.205)
    assert steep.size_within(0.205) == pytest.approx(200)
    flat = line(0.1, 0.0, 10, 100)
    assert flat.predict(200) == pytest.approx(0.1 * (1 + LEAST_GROWING_SHARE))


def test_a_cost_follows_a_device_that_becomes_slower_and_ignores_single_mishaps() -> None:
    cost = line(0.0, 0.001, *([1, 10] * 20))
    cost.observe(10, 100.0)
    assert cost.predict(10) < MOST_SURPRISE * 0.01
    for _ in range(40):
        cost.observe(1, 0.002)
        cost.observe(10, 0.02)
    assert cost.predict(10) == pytest.approx(0.02, rel=0.05)


def test_a_larger_launch_seems_neither_cheaper_nor_much_dearer_for_each_unit_than_a_smaller_one() -> None:
    cost = line(0.0, 0.001, 1, 10)
    for _ in range(40):
        cost.observe(1, 0.05)
    assert cost.predict(1) == pytest.approx(0.05, rel=0.05)
    assert cost.predict(10) >= cost.predict(1), "it was observed to be cheaper, when the device was quicker"
    uneven = line(0.0, 0.001, 10)
    uneven.observe(40, 0.12)
    assert uneven.predict(40) == pytest.approx(MOST_UNEVEN * 0.04), "a mishap"


@given(st.lists(st.tuples(st.integers(0, 11), st.floats(1e-5, 1.0), st.booleans()), min_size=1, max_size=30))
def test_whatever_was_observed_costs_grow_evenly_with_the_size(launches: list[tuple[int, float, bool]]) -> None:
    cost = Cost()
    for octave, seconds, warm in launches:
        cost.observe(2**octave, seconds, warm=warm)
    observed = sorted({2**octave for octave, _, _ in launches})
    for smaller, larger in pairwise(observed):
        assert cost.predict(larger) / larger <= MOST_UNEVEN * cost.predict(smaller) / smaller * (1 + 1e-9)
    sizes = [2 ** (quarter / 4) for quarter in range(4 * 13)]
    predicted = [cost.predict(size) for size in sizes]
    for size, seconds, larger_s in zip(sizes, predicted, [*predicted[1:], math.inf], strict=True):
        assert 0 < seconds <= larger_s * (1 + 1e-9)
        fits = cost.size_within(seconds)
        rises = seconds > cost.predict(size * (1 - 1e-3)) * (1 + 1e-9)
        assert not rises or fits >= size * (1 - 1e-6)
        assert cost.predict(fits) == pytest.approx(seconds, rel=1e-6), "what fits takes this long"


def test_a_device_that_became_quicker_is_found_out_by_smaller_launches() -> None:
    """However slow larger ones were, they are made again as soon as the smaller ones leave the time."""
    cost = line(0.0, 0.02, 10, 1000)
    for _ in range(60):
        cost.observe(10, 0.01)
    assert cost.predict(1000) == pytest.approx(MOST_UNEVEN * 1.0, rel=0.01)


def test_smaller_sizes_are_remembered_however_many_larger_launches_follow() -> None:
    cost = line(0.004, 0.001, 10, 1000)
    for _ in range(2000):
        cost.observe(1000, 1.004)
    assert cost.predict(10) == pytest.approx(0.014)


def test_what_a_backend_takes_that_is_not_warm_counts_until_its_next_launch_that_is_not_warm_either() -> None:
    cost = Cost()
    cost.observe(10, 9.0, warm=False)
    assert cost.predict(10) == pytest.approx(9.0)
    cost.observe(10, 0.5, warm=False)
    assert cost.predict(10) == pytest.approx(0.5)
    cost.observe(10, 7.0, warm=False)
    assert cost.predict(10) == pytest.approx(7.0), "it is no mishap, however long it took"


def test_what_a_backend_takes_that_is_not_warm_counts_until_the_next_launch_only() -> None:
    cost = Cost()
    cost.observe(10, 9.0, warm=False)
    cost.observe(10, 0.01)
    assert cost.predict(10) == pytest.approx(0.01)


def test_audio_is_predicted_from_the_largest_codec_step_of_which_a_slow_device_makes_a_smaller_one() -> None:
    costs = known()
    assert costs.most_frames == MOST_CODEC_FRAMES
    assert costs.audio_each_s == pytest.approx(AUDIO_S[0] / MOST_CODEC_FRAMES + AUDIO_S[1])
    slow = known(speed=0.2)
    assert 1 <= slow.most_frames < MOST_CODEC_FRAMES
    assert slow.codec.predict(slow.most_frames) <= MOST_CODEC_S < slow.codec.predict(slow.most_frames + 1)
    assert known(speed=1e-4).most_frames == 1
    assert (Costs().most_frames, Costs().audio_each_s) == (MOST_CODEC_FRAMES, 0.0), "nothing is known"


def test_streams_need_a_frame_each_with_audio_that_takes_what_it_took_lately() -> None:
    costs = known()
    assert Costs().need(100) == 0.0, "nothing is known"
    for _ in range(200):
        costs.observe_codec(100, 0.02, warm=True)
    assert costs.need(100) == pytest.approx((costs.decode_s(100) + 0.02) / FRAME_SECONDS)
    for _ in range(200):
        costs.observe_codec(10, 0.01, warm=True)
    assert costs.need(100) == pytest.approx((costs.decode_s(100) + 0.1) / FRAME_SECONDS, rel=0.01), "chunks are small"


def test_more_streams_than_one_step_takes_go_in_several() -> None:
    costs = known()
    costs.most_decoded = 100
    assert costs.decode_s(100) == pytest.approx(costs.decode.predict(100))
    assert costs.decode_s(250) == pytest.approx(2.5 * costs.decode.predict(100))


def test_the_codec_steps_of_a_backend_that_is_not_warm_do_not_count_in_what_streams_need() -> None:
    costs = Costs()
    costs.observe_codec(10, 30.0, warm=False)
    costs.observe_codec(10, 0.01, warm=False)
    assert costs.need(10) == pytest.approx(0.01 / FRAME_SECONDS)


def test_as_many_streams_are_sustainable_as_need_nearly_all_of_the_time() -> None:
    costs = known()
    most = costs.sustainable_streams
    assert 500 < most < 1000
    assert costs.need(int(most)) <= SUSTAINABLE < costs.need(int(most) + 1)
    assert known(speed=0.5).sustainable_streams < most / 2
    assert known(speed=0.01).sustainable_streams == 1, "one at least"
    assert Costs().sustainable_streams == math.inf, "nothing is known"
    assert Costs(decode=line(0.004, 3e-5, 8)).sustainable_streams == math.inf, "nor of audio"


def test_what_a_few_streams_cost_limits_nothing_until_half_as_many_have_been_decoded() -> None:
    costs = Costs(decode=line(0.004, 3e-5, 2))
    costs.observe_codec(2, 4e-4, warm=True)
    few = costs.sustainable_streams
    assert 4 < few < math.inf
    assert costs.proven_streams == math.inf
    costs.decode.observe(math.ceil(few / 2), costs.decode.predict(few / 2))
    assert costs.proven_streams == costs.sustainable_streams < math.inf


def test_the_largest_prefill_batch_takes_a_bounded_time_but_holds_a_row() -> None:
    assert known().prefill.predict(known().most_rows) == pytest.approx(MOST_PREFILL_S)
    assert known(speed=0.01).most_rows == 1
    assert Costs().most_rows == math.inf


# ---- the budget


def test_the_budget_earns_the_time_that_streams_leave_and_keeps_little() -> None:
    for need, share in ((0.2, 0.792), (0.6, 0.184), (1.5, 0.05), (0.0, 0.95)):
        budget = Budget()
        budget.earn(0.0005, need)
        assert budget.spare_s == pytest.approx(0.0005 * share / (1 - share))
        assert budget.floor_s == pytest.approx(0.0005 * LEAST_SHARE / (1 - LEAST_SHARE)), "whatever they need"
        budget.earn(1e6, need)
        assert budget.spare_s == budget.floor_s == MOST_DEBT_S
        budget.spend(1.0, others_waited=False)
        assert (budget.spare_s, budget.floor_s > 0) == (-MOST_DEBT_S, True), "nobody missed the time"
        budget.spend(1.0, others_waited=True)
        assert budget.floor_s == -MOST_FORCED_DEBT_S, "and not more is owed"
