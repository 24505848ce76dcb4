"""The ``megakernel`` decoder around its launches: company, pages, prompts in passes, faults."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from decoder_voices import (
    GREEDY,
    SEEDED,
    VoiceRequest,
    codes_of,
    logits_of,
    require_that_one_may_end,
    say,
    say_together,
    voice,
)
from megakernel_helpers import megakernel, some_codes, within
from megatalker.checkpoint import Checkpoint
from megatalker.errors import CapacityError, InvalidRequestError
from megatalker.interfaces import DecodeStep, StreamHandle, StreamRequest
from megatalker.plugins.checked import CheckedTalker
from megatalker.sampling import CodeVocabulary, SamplingParams
from megatalker.sampling.numpy_sampler import choose
from megatalker_backends.megakernel.machine import Machine
from megatalker_kernels.constants import ROWS
from megatalker_kernels.schedule import Launch


class RecordingMachine:
    """A machine that notes what it is asked."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.calls: list[str] = []
        self.launches: list[Launch] = []

    def run(self, launch: Launch) -> int:
        self.calls.append(launch.mode)
        self.launches.append(launch)
        return self._machine.run(launch)

    def wait(self, ticket: int) -> list[tuple[int, ...]]:
        self.calls.append("wait")
        return self._machine.wait(ticket)

    def check(self) -> None:
        self.calls.append("check")
        self._machine.check()


@pytest.fixture
def recorder(decoder: CheckedTalker) -> Iterator[RecordingMachine]:
    machine = within(decoder)._ready()
    within(decoder)._machine = recorder = RecordingMachine(machine)
    yield recorder
    within(decoder)._machine = machine


# --- company


@pytest.mark.slow
def test_neighbours_do_not_change_a_bit(decoder: CheckedTalker, tiny_1b7: Checkpoint) -> None:
    """Ten streams in two launches: prompts of one to three pages, lives of different lengths, all kinds of sampling."""
    sizes = [(9, 12), (62, 8), (2, 5), (130, 6), (17, 3), (64, 4), (63, 4), (8, 7), (65, 9), (16, 2)]
    samplings = [GREEDY, SEEDED, replace(SEEDED, seed=8, top_p=0.7), replace(GREEDY, repetition_penalty=1.3)]
    voices = [voice(tiny_1b7, seed, *size, samplings[seed % 4]) for seed, size in enumerate(sizes)]
    together = say_together(decoder, voices)
    for each, frames in zip(voices, together, strict=True):
        alone = say(decoder, each)
        assert codes_of(alone) == codes_of(frames)
        assert torch.equal(logits_of(alone), logits_of(frames))


def test_earlier_contents_of_a_slot_and_its_pages_leave_no_trace(device: str, tiny_1b7: Checkpoint) -> None:
    decoder = megakernel(tiny_1b7, device, max_streams=1, pages=3, prefix_rows=0)
    short = voice(tiny_1b7, 1, 5, 6, SEEDED)
    fresh = say(decoder, short)
    say(decoder, voice(tiny_1b7, 2, 130, 5, SamplingParams(seed=5, repetition_penalty=1.5, top_k=3)))
    space = within(decoder)._space
    junk = (space.talker_kv, space.predictor_kv, space.x, space.qkv, space.attention, space.activation, space.partial)
    for buffer in (*junk, space.hidden, space.projected, space.pending, space.predictor_logits, space.text):
        buffer.fill_(1e3)
    again = say(decoder, short)
    assert codes_of(again) == codes_of(fresh)
    assert torch.equal(logits_of(again), logits_of(fresh))
    space.check_guards()


def test_warming_up_disturbs_no_stream(decoder: CheckedTalker, tiny_1b7: Checkpoint) -> None:
    each = voice(tiny_1b7, 1, 12, 4, SEEDED)
    expected = codes_of(say(decoder, each))
    stream = decoder.prefill([each.request])[0]
    found = []
    for text in each.text:
        decoder.warmup()
        found.append(decoder.decode([DecodeStep(stream, text)])()[0].codes)
    decoder.release(stream)
    assert found == expected


@pytest.mark.slow
def test_a_stream_says_the_same_in_any_launch(decoder: CheckedTalker, device: str, tiny_1b7: Checkpoint) -> None:
    """Alone, in company, in wide launches, and in both by turns, as others come and go."""
    sizes = [(9, 12), (62, 8), (130, 9), (17, 3), (64, 10), (127, 7)]
    samplings = [GREEDY, SEEDED, replace(SEEDED, seed=8, top_p=0.7), replace(GREEDY, repetition_penalty=1.3)]
    voices = [voice(tiny_1b7, seed, *size, samplings[seed % 4]) for seed, size in enumerate(sizes)]
    for wide_from in (1, 4):
        wide = megakernel(tiny_1b7, device, max_streams=8, wide_from=wide_from)
        within(wide)._machine = recorder = RecordingMachine(within(wide)._ready())
        for each, frames in zip(voices, say_together(wide, voices), strict=True):
            alone = say(decoder, each)
            assert codes_of(alone) == codes_of(frames)
            assert torch.equal(logits_of(alone), logits_of(frames))
        assert {launch.wide for launch in recorder.launches if launch.mode == "decode"} == {True, wide_from == 1}
        within(wide)._space.check_guards()


def test_prompts_of_many_launches_leave_what_one_launch_leaves(
    decoder: CheckedTalker, device: str, tiny_1b7: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    voices = [voice(tiny_1b7, 40 + seed, rows, 2, SEEDED) for seed, rows in enumerate((37, 5, 60))]
    expected = [say(decoder, each) for each in voices]
    narrow = megakernel(tiny_1b7, device, max_streams=3, prefix_rows=0)
    whole = within(narrow)._space.wide.text
    within(narrow)._space.wide.text = whole[:16]
    within(narrow)._machine = recorder = RecordingMachine(within(narrow)._ready())
    found = say_together(narrow, voices)
    assert [len(launch.rows) for launch in recorder.launches if launch.mode == "prefill"] == [16] * 6 + [6]
    for one, other in zip(found, expected, strict=True):
        assert codes_of(one) == codes_of(other)
        assert torch.equal(logits_of(one), logits_of(other))


# --- codes and logits


def test_forced_codes_come_out_and_leave_neighbours_free(decoder: CheckedTalker, tiny_1b7: Checkpoint) -> None:
    free, led = voice(tiny_1b7, 1, 7, 3, SEEDED), voice(tiny_1b7, 2, 9, 3)
    alone, forced = codes_of(say(decoder, free)), some_codes(tiny_1b7, 3)
    streams = [decoder.prefill([each.request])[0] for each in (free, led)]
    for index, said in enumerate(alone):
        steps = [DecodeStep(streams[0], free.text[index]), DecodeStep(streams[1], led.text[index], forced[index])]
        assert [frame.codes for frame in decoder.decode(steps)()] == [said, tuple(forced[index])]
    for stream in streams:
        decoder.release(stream)


def test_end_of_speech_ends_one_stream_and_not_its_neighbour(decoder: CheckedTalker, tiny_1b7: Checkpoint) -> None:
    ending, lasting = voice(tiny_1b7, 1, 7, 4, SEEDED), voice(tiny_1b7, 2, 7, 4, replace(SEEDED, seed=1))
    require_that_one_may_end(decoder, tiny_1b7, ending, lasting)


def test_a_stream_may_end_by_its_own_choice(decoder: CheckedTalker, tiny_1b7: Checkpoint) -> None:
    """The temperature lets the noise alone decide; with this seed it chooses end-of-speech in the third frame."""
    hot = replace(SEEDED, temperature=1e6, top_k=None, repetition_penalty=1.0, min_new_tokens=0)
    vocabulary, flat = (
        CodeVocabulary.from_config(tiny_1b7.config),
        np.zeros(tiny_1b7.config.talker.vocab_size, np.float32),
    )

    def first_code(seed: int, frame: int) -> int:
        params = replace(hot, seed=seed)
        return choose(flat, params, codebook=0, frame=frame, history=(), vocabulary=vocabulary)

    eos = vocabulary.eos_id
    seed = next(seed for seed in range(10_000) if [first_code(seed, frame) == eos for frame in range(3)] == [0, 0, 1])
    each = voice(tiny_1b7, 1, 3, 4, replace(hot, seed=seed))
    stream = decoder.prefill([each.request])[0]
    frames = [decoder.decode([DecodeStep(stream, text)])()[0] for text in each.text[:3]]
    assert [frame.ended for frame in frames] == [False, False, True]
    with pytest.raises(InvalidRequestError, match="has ended"):
        decoder.decode([DecodeStep(stream, each.text[3])])()
    decoder.release(stream)


def test_a_stream_continued_from_its_codes_goes_on_as_it_would_have(
    decoder: CheckedTalker, tiny_1b7: Checkpoint
) -> None:
    sampling = SamplingParams(do_sample=False, seed=6, repetition_penalty=5.0, min_new_tokens=1000)
    whole = voice(tiny_1b7, 8, 10, 12, sampling)
    expected = say(decoder, whole)
    said = [frame.codes for frame in expected[:7] if frame.codes is not None]
    rows = torch.stack([frame_row(tiny_1b7, codes) + text for codes, text in zip(said, whole.text[:7], strict=True)])
    history = tuple(codes[0] for codes in said)
    rest = VoiceRequest(StreamRequest(torch.cat((whole.request.embeds, rows)), sampling, history), whole.text[7:])
    found = say(decoder, rest)
    assert codes_of(found) == codes_of(expected[7:])
    assert torch.equal(logits_of(found), logits_of(expected[7:]))


def frame_row(checkpoint: Checkpoint, codes: tuple[int, ...]) -> Tensor:
    """Return the sum that the kernel computes: the tables in bfloat16, the sum in float32, in order."""
    names = ["talker.model.codec_embedding.weight"]
    names += [f"talker.code_predictor.model.codec_embedding.{index}.weight" for index in range(len(codes) - 1)]
    total = torch.zeros(checkpoint.config.talker.hidden_size)
    for name, code in zip(names, codes, strict=True):
        total += checkpoint.tensor(name)[code].bfloat16().float()
    return total


def test_text_rows_may_be_of_any_float_type_and_lie_anywhere(decoder: CheckedTalker, tiny_1b7: Checkpoint) -> None:
    each = voice(tiny_1b7, 4, 6, 3)
    rounded = replace(each, text=each.text.bfloat16())
    widened = replace(each, text=rounded.text.float())
    there = replace(each, text=rounded.text.to(within(decoder)._device))
    first, second, third = (logits_of(say(decoder, one)) for one in (rounded, widened, there))
    assert torch.equal(first, second)
    assert torch.equal(first, third)


# --- launches


def test_prompts_share_a_launch_and_a_frame_waits_for_its_codes_only(
    decoder: CheckedTalker, recorder: RecordingMachine, tiny_1b7: Checkpoint
) -> None:
    sizes = (2 * ROWS + 3, 2, 70)
    stream, *others = decoder.prefill([voice(tiny_1b7, 31 + size, size, 1).request for size in sizes])
    assert recorder.calls == ["prefill"]
    rows = recorder.launches[0].rows
    assert [row.position for row in rows] == [position for size in sizes for position in range(size)]
    assert [row.position + 1 for row in rows if row.heard] == list(sizes)
    for other in others:
        decoder.release(other)
    recorder.calls.clear()
    decoder.decode([DecodeStep(stream, torch.zeros(tiny_1b7.config.talker.hidden_size))])()
    assert recorder.calls == ["decode", "wait"]
    decoder.release(stream)


def test_equal_prompt_heads_are_computed_once_and_nothing_else_changes(
    decoder: CheckedTalker, recorder: RecordingMachine, tiny_1b7: Checkpoint
) -> None:
    first, second = voice(tiny_1b7, 21, 90, 2), voice(tiny_1b7, 22, 83, 4, SEEDED)
    second.request.embeds[:75] = first.request.embeds[:75]
    within(decoder)._prefix.clear()
    plain = say(decoder, second)
    within(decoder)._prefix.clear()
    say(decoder, first)
    recorder.launches.clear()
    reused = say(decoder, second)
    passes = [launch for launch in recorder.launches if launch.mode == "prefill"]
    assert [[row.position for row in launch.rows] for launch in passes] == [list(range(72, 83))]
    assert codes_of(reused) == codes_of(plain)
    assert torch.equal(logits_of(reused), logits_of(plain))


# --- pages that become more


@pytest.fixture
def from_one_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoders begin with a single page."""
    monkeypatch.setattr("megatalker_backends.megakernel.settings.FIRST_PAGE_BYTES", 0)


def test_streams_that_outgrow_their_pages_say_the_same(
    decoder: CheckedTalker, device: str, tiny_1b7: Checkpoint, from_one_page: None
) -> None:
    """Pages become more in prompts and between frames, and once for two launches' streams together."""
    sizes = [(9, 12), (62, 8), (120, 9), (127, 4), (60, 9), (3, 5), (64, 4), (58, 9), (2, 3), (59, 9)]
    voices = [voice(tiny_1b7, seed, *size, (GREEDY, SEEDED)[seed % 2]) for seed, size in enumerate(sizes)]
    growing = megakernel(tiny_1b7, device, max_streams=10)
    growing.warmup()
    found = say_together(growing, voices)
    assert within(growing)._space.pages == 1 + 24
    growing.warmup()
    for frames, expected in zip(found, say_together(decoder, voices), strict=True):
        assert codes_of(frames) == codes_of(expected)
        assert torch.equal(logits_of(frames), logits_of(expected))
    within(growing)._space.check_guards()


def test_prompt_heads_are_reused_on_pages_that_were_made_later(
    decoder: CheckedTalker, device: str, tiny_1b7: Checkpoint, from_one_page: None
) -> None:
    first, second = voice(tiny_1b7, 21, 60, 9), voice(tiny_1b7, 22, 83, 4, SEEDED)
    second.request.embeds[:51] = first.request.embeds[:51]
    within(decoder)._prefix.clear()
    plain = say(decoder, second)
    growing = megakernel(tiny_1b7, device, max_streams=2)
    stream = growing.prefill([first.request])[0]
    before = within(growing)._space.talker_kv
    for text in first.text:
        growing.decode([DecodeStep(stream, text)])()
    within(growing)._machine = recorder = RecordingMachine(within(growing)._ready())
    reused = say(growing, second)
    assert within(growing)._space.talker_kv is not before
    assert recorder.launches[0].rows[0].position == 48
    assert codes_of(reused) == codes_of(plain)
    assert torch.equal(logits_of(reused), logits_of(plain))


def test_a_full_gpu_stops_only_streams_that_need_pages(
    decoder: CheckedTalker, device: str, tiny_1b7: Checkpoint, from_one_page: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    each, long = voice(tiny_1b7, 1, 62, 6, SEEDED), voice(tiny_1b7, 2, 65, 3)
    expected = codes_of(say(decoder, each))
    growing = megakernel(tiny_1b7, device, max_streams=2)
    stream = growing.prefill([each.request])[0]
    said = [growing.decode([DecodeStep(stream, text)])()[0].codes for text in each.text[:2]]
    advice = "2 pages of keys and values do not fit .* along with the 2 they replace: full; release a stream, or lower"
    with monkeypatch.context() as full:
        full.setattr("megatalker_kernels.workspace.torch.empty", refuse)
        with pytest.raises(CapacityError, match=advice):
            growing.decode([DecodeStep(stream, each.text[2])])()
        with pytest.raises(CapacityError, match="3 pages of keys and values do not fit"):
            growing.prefill([long.request])
    assert within(growing)._space.pages == 2
    within(growing)._space.check_guards()
    said += [growing.decode([DecodeStep(stream, text)])()[0].codes for text in each.text[2:]]
    assert said == expected
    assert codes_of(say(growing, long)) == codes_of(say(decoder, long)), "nothing was held"


def refuse(*args: object, **kwargs: object) -> Tensor:
    raise torch.cuda.OutOfMemoryError("full")


# --- limits


def test_a_prompt_and_frames_may_fill_every_position(device: str, tiny_1b7: Checkpoint) -> None:
    decoder = megakernel(tiny_1b7, device, max_streams=1, pages=4)
    each = voice(tiny_1b7, 3, 190, 10)
    found = say(decoder, each)
    assert len(found) == 10
    stream = decoder.prefill([each.request])[0]
    for text in each.text:
        decoder.decode([DecodeStep(stream, text)])()
    with pytest.raises(CapacityError, match="used its 200 positions"):
        decoder.decode([DecodeStep(stream, each.text[0])])()


def test_too_few_pages_stop_no_stream_that_needs_none(tiny_1b7: Checkpoint, from_one_page: None) -> None:
    decoder = megakernel(tiny_1b7, max_streams=4, pages=3)
    assert decoder.capabilities.max_positions == 3 * 64
    growing, other = voice(tiny_1b7, 1, 62, 6), voice(tiny_1b7, 2, 62, 6, SEEDED)
    expected = codes_of(say(decoder, growing)), codes_of(say(decoder, other))
    first, second = decoder.prefill([growing.request])[0], decoder.prefill([other.request])[0]
    third = decoder.prefill([voice(tiny_1b7, 3, 3, 1).request])[0]
    with pytest.raises(CapacityError, match="0 of 3 are free"):
        decoder.prefill([voice(tiny_1b7, 4, 3, 1).request])
    said = [advance(decoder, (first, growing), (second, other), index) for index in range(2)]
    with pytest.raises(CapacityError, match="2 more pages"):
        advance(decoder, (first, growing), (second, other), 2)
    decoder.release(third)
    with pytest.raises(CapacityError, match="2 more pages of 64 positions are needed and 1 of 3"):
        advance(decoder, (first, growing), (second, other), 2)
    alone = [decoder.decode([DecodeStep(first, text)])()[0].codes for text in growing.text[2:]]
    assert [codes[0] for codes in said] + alone == expected[0]
    decoder.release(first)
    rest = [decoder.decode([DecodeStep(second, text)])()[0].codes for text in other.text[2:]]
    assert [codes[1] for codes in said] + rest == expected[1]


def advance(
    decoder: CheckedTalker, one: tuple[StreamHandle, VoiceRequest], other: tuple[StreamHandle, VoiceRequest], index: int
) -> list[tuple[int, ...] | None]:
    return codes_of(decoder.decode([DecodeStep(stream, each.text[index]) for stream, each in (one, other)])())


def test_prompts_that_come_together_begin_together_or_not_at_all(tiny_1b7: Checkpoint, from_one_page: None) -> None:
    decoder = megakernel(tiny_1b7, max_streams=3, pages=3)
    voices = [voice(tiny_1b7, seed, 62, 2, SEEDED) for seed in range(3)]
    long = voice(tiny_1b7, 3, 65, 1)
    with pytest.raises(CapacityError, match=r"4 more pages of 64 positions are needed and 3 of 3 are free"):
        decoder.prefill([voices[0].request, voices[1].request, long.request])
    assert within(decoder)._pages.free == 3
    together = [codes_of(frames) for frames in say_together(decoder, voices)]
    assert together == [codes_of(say(decoder, each)) for each in voices]
