"""Owners take turns, and one with many rows lends some to one with few; who lends, and what it keeps."""

import threading
from dataclasses import replace
from itertools import product

import pytest
import torch

from engine_stage import TEXT, Opener, codes_of, fakes_with, order_of_prompts, plain_codes
from fake_backend import CAPABILITIES
from megatalker.checkpoint import Checkpoint
from megatalker.engine import Engine, SpeechStream
from megatalker.engine.admission import Grant, grants, is_owed, serve
from megatalker.engine.costs import Costs
from megatalker.engine.scheduler import ENOUGH_S
from megatalker.engine.utterance import REST_S, DecoderStream, Utterance
from megatalker.errors import CapacityError
from megatalker.interfaces import StreamHandle
from megatalker.prompt import Prompt
from waiting import eventually


def alone(checkpoint: Checkpoint, seed: int) -> list[tuple[int, ...]]:
    return plain_codes(checkpoint, TEXT, seed, "upfront", frames=30)


def test_owners_take_turns(open_engine: Opener) -> None:
    fakes = fakes_with(frames=3)
    engine = open_engine(fakes, max_streams=1)
    with engine.borrow_backends():
        streams = [engine.speak_for("many", TEXT, seed=seed) for seed in range(1, 7)]
        streams += [engine.speak_for("few", TEXT, seed=seed) for seed in (11, 12)]
        streams.append(engine.speak_for("one", TEXT, seed=21))
    for stream in streams:
        stream.read_all()
    assert order_of_prompts(fakes) == [1, 11, 21, 2, 12, 3, 4, 5, 6]


def test_an_owner_that_comes_again_and_again_does_not_pass_others_for_ever(open_engine: Opener) -> None:
    fakes = fakes_with(frames=3)
    engine = open_engine(fakes, max_streams=1)
    streams: list[SpeechStream] = []

    def come_again(_: object) -> None:
        if len(streams) < 8:
            streams.append(engine.speak_for("again", TEXT, seed=7 + len(streams)))

    fakes.talkers["fake"].on_prefill = come_again
    with engine.borrow_backends():
        streams += [engine.speak_for("many", TEXT, seed=seed) for seed in range(1, 5)]
    for index in range(8):
        streams[index].read_all()
    order = order_of_prompts(fakes)
    assert [seed for seed in order if seed < 10] == [1, 2, 3, 4]
    assert order.index(4) <= 6, "one of the other owner's between two of this one's"


@pytest.mark.parametrize("batch", [True, False])
def test_an_owner_with_many_rows_lends_some_though_all_have_work(
    open_engine: Opener, tiny_custom_voice: Checkpoint, batch: bool
) -> None:
    release = threading.Event()
    capabilities = replace(CAPABILITIES, batch=batch)
    fakes = fakes_with(capabilities=capabilities, on_decode=lambda call: release.wait(0.01))
    engine = open_engine(fakes, max_streams=4, max_waiting=1)
    many = [engine.speak_for("many", TEXT, seed=seed, return_codes=True) for seed in range(5)]
    eventually(lambda: engine.metrics().active == 4, "they hold every row")
    with pytest.raises(CapacityError, match="4 streams run and 1 wait already"):
        engine.speak_for("many", TEXT)
    few = [engine.speak_for("few", TEXT, seed=seed, return_codes=True) for seed in (7, 8)]
    eventually(lambda: all(stream.facts().frames for stream in few), "both have begun")
    assert engine.metrics().lent == 2, "half of the rows and no more"
    assert all(stream.facts().finish_reason is None for stream in many), "while the others have work"
    with pytest.raises(CapacityError, match="wait already"):
        engine.speak_for("few", TEXT)
    release.set()
    for seed, stream in [*zip((7, 8), few, strict=True), *enumerate(many)]:
        assert codes_of(stream) == alone(tiny_custom_voice, seed)
    assert fakes.loaded["fake"].streams == {}


def test_what_one_owner_has_asked_for_takes_no_place_of_another(open_engine: Opener) -> None:
    engine = open_engine(max_streams=1, max_waiting=2)
    with engine.borrow_backends():
        streams = [engine.speak_for("many", TEXT) for _ in range(3)]
        with pytest.raises(CapacityError, match="1 streams run and 2 wait already"):
            engine.speak_for("many", TEXT)
        streams.append(engine.speak_for("few", TEXT))
        with pytest.raises(CapacityError, match="1 streams run and 2 wait already"):
            engine.speak_for("few", TEXT)
        streams.append(engine.speak_for("one", TEXT))
    for stream in streams:
        stream.read_all()


def test_owners_who_come_together_share_the_rows(open_engine: Opener, tiny_custom_voice: Checkpoint) -> None:
    fakes = fakes_with()
    engine = open_engine(fakes)
    with engine.borrow_backends():
        streams = [engine.speak_for("many", TEXT, seed=seed, return_codes=True) for seed in range(8)]
        streams += [engine.speak_for("few", TEXT, seed=seed, return_codes=True) for seed in range(8, 13)]
    for seed, stream in enumerate(streams):
        assert codes_of(stream) == alone(tiny_custom_voice, seed)
    assert len(set(order_of_prompts(fakes)[:8]) & set(range(8, 13))) >= 3


def test_what_a_lender_has_made_is_heard_at_once(open_engine: Opener) -> None:
    release = threading.Event()
    engine = open_engine(fakes_with(frames=200, on_decode=lambda call: release.wait(0.005)), max_streams=2)
    many = [engine.speak_for("many", TEXT, seed=seed) for seed in range(2)]
    eventually(lambda: all(stream.facts().frames >= 15 for stream in many), "their chunks are long")
    few = engine.speak_for("few", TEXT, seed=9)
    eventually(lambda: bool(few.facts().frames), "it has a row")
    (lender,) = [stream._link.utterance for stream in many if not stream._link.utterance.admitted]
    eventually(lambda: lender.pending == 0, "while another has its row")
    assert not lender.admitted
    release.set()
    for stream in [few, *many]:
        assert len(stream.read_all()) == 200 * 1920


def test_without_owners_those_who_come_first_go_first(open_engine: Opener) -> None:
    fakes = fakes_with(frames=3)
    engine = open_engine(fakes, max_streams=1)
    with engine.borrow_backends():
        streams = [engine.speak(TEXT, seed=seed) for seed in range(6)]
    for stream in streams:
        stream.read_all()
    assert order_of_prompts(fakes) == list(range(6))


def wish(engine: Engine, owner: str, *, begun: bool = False) -> Utterance:
    utterance = engine.speak_for(owner, TEXT)._link.utterance
    utterance.progress.segments = int(begun)
    return utterance


def test_streams_that_come_back_go_before_their_owners_newcomers_and_keep_nobody_else_out(busy_engine: Engine) -> None:
    served: dict[str, int] = {}

    def first(*wishing: Utterance) -> Utterance:
        taker = grants(wishing, [], 1, 0.0, served=served)[0].taker
        serve(served, taker.owner)
        return taker

    new, back = wish(busy_engine, "a"), wish(busy_engine, "a", begun=True)
    assert first(new, back) is back
    other = wish(busy_engine, "b")
    assert first(new, other, back) is other, "the owner that was served longest ago"
    assert [first(new, wish(busy_engine, "b"), back).owner for _ in range(4)] == ["a", "b", "a", "b"]


def test_the_next_row_goes_to_the_owner_with_the_fewest(busy_engine: Engine) -> None:
    held = [holding(busy_engine, "a")]
    new = [wish(busy_engine, owner) for owner in "aabb"]
    assert [grant.taker for grant in grants(new, held, 4, 0.0)] == [new[2], new[0], new[3]]


def holding(engine: Engine, owner: str, *, begun: bool = True) -> Utterance:
    utterance = wish(engine, owner, begun=begun)
    utterance.admitted = True
    if begun:
        segment = utterance.text.upcoming
        no_rows = torch.zeros(0, 1)
        prompt = Prompt(torch.zeros(5, 1), no_rows, torch.zeros(1), complete=True, prefix_length=0)
        utterance.decoder = DecoderStream.of(segment, 0, prompt, utterance.request.sampling, utterance.frames)
        utterance.decoder.handle = StreamHandle(1)
    return utterance


def test_a_free_row_costs_nobody_anything(busy_engine: Engine) -> None:
    held, new = holding(busy_engine, "a"), [wish(busy_engine, "a") for _ in range(3)]
    assert grants(new, [held], 3, 0.0) == [Grant(new[0]), Grant(new[1])]
    assert grants([], [held], 3, 0.0) == []


def test_rows_of_streams_without_work_go_before_those_of_others(busy_engine: Engine) -> None:
    held = [holding(busy_engine, "a") for _ in range(4)]
    held[2].idle_since = 0.0
    new = [wish(busy_engine, "b") for _ in range(3)]
    first, second = grants(new, held, 4, now=REST_S)
    assert first == Grant(new[0], held[2], due=True)
    assert second.lender in held
    assert second.lender is not held[2]


def test_an_owner_gets_the_row_of_another_that_has_at_least_two_more(busy_engine: Engine) -> None:
    mine, theirs = holding(busy_engine, "a"), [holding(busy_engine, "b") for _ in range(2)]
    new = [wish(busy_engine, "a"), wish(busy_engine, "c")]
    (grant,) = grants(new, [mine, *theirs], 3, 0.0)
    assert (grant.taker, grant.due) == (new[1], True), "the other one has one fewer"
    assert grant.lender in theirs
    assert grants(new[:1], [mine, *theirs], 3, 0.0) == []
    assert grants([wish(busy_engine, "b")], [mine, *theirs], 3, 0.0) == []


def test_who_is_about_to_begin_lends_nothing(busy_engine: Engine) -> None:
    held = [holding(busy_engine, "a", begun=False) for _ in range(3)]
    assert grants([wish(busy_engine, "b")], held, 3, 0.0) == []


def test_who_is_due_goes_first_though_rows_are_free(busy_engine: Engine) -> None:
    held = [holding(busy_engine, "a") for _ in range(2)]
    back, new = wish(busy_engine, "a", begun=True), wish(busy_engine, "b")
    assert grants([back, new], held, 3, 0.0) == [Grant(new, due=True)]


@pytest.mark.parametrize(
    ("held", "wishing"), [*product(("", "a", "aa", "aaa", "aab", "aaabb"), ("a", "b", "ab", "abc"))]
)
def test_whether_a_row_is_owed_is_known_without_the_grants(busy_engine: Engine, held: str, wishing: str) -> None:
    holders = [holding(busy_engine, owner) for owner in held]
    new = [wish(busy_engine, owner) for owner in wishing]
    assert is_owed(new, holders) == grants(new, holders, 9, 0.0)[0].due


@pytest.mark.parametrize("slow", [True, False])
def test_an_owner_s_many_streams_do_not_slow_down_another_s(
    open_engine: Opener, tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch, slow: bool
) -> None:
    monkeypatch.setattr(Costs, "need", lambda costs, streams: 2.0 * slow)
    fakes = fakes_with()
    engine = open_engine(fakes)
    with engine.borrow_backends():
        streams = [engine.speak_for("many", TEXT, seed=seed, return_codes=True) for seed in range(3)]
        streams.append(engine.speak_for("few", TEXT, seed=3, return_codes=True))
    assert [codes_of(stream) for stream in streams] == [alone(tiny_custom_voice, seed) for seed in range(4)]
    widths = [len(handles) for handles in fakes.loaded["fake"].calls]
    assert (widths.count(2) > 15) is slow


def test_the_stream_lends_that_can_best_do_without(busy_engine: Engine) -> None:
    held = [holding(busy_engine, "a") for _ in range(4)]
    new = [wish(busy_engine, "b")]
    for one, frames in zip(held, (300, 200, 100, 5), strict=True):
        one.frames.extend([(0,)] * frames)
    assert grants(new, held, 4, 0.0)[0].lender is held[3], "the one with the least to repeat"
    held[0].progress.playback.deliver(0.0, ENOUGH_S)
    held[1].chunks.untaken_s = ENOUGH_S
    assert grants(new, held, 4, 0.0)[0].lender is held[1], "of those with audio to play, or to take"
    held[0].idle_since = 0.0
    assert grants(new, held, 4, 0.0)[0].lender is held[0], "it has no work, though not for long"
