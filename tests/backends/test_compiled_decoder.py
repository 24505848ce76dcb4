"""The ``compiled`` decoder against ``reference``, code for code, alone and in company."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from decoder_voices import Codes, VoiceRequest, codes_of, require_that_one_may_end, say, voice
from kept import compiling
from megatalker.checkpoint import Checkpoint
from megatalker.errors import CapacityError, SettingsError
from megatalker.interfaces import DecodeStep, Frame, LoadContext, StreamHandle, StreamRequest
from megatalker.plugins.checked import CheckedTalker
from megatalker.sampling import SamplingParams
from megatalker_backends.compiled.decoder import CompiledDecoder
from megatalker_backends.compiled.model import Model
from megatalker_backends.compiled.settings import CompiledSettings
from megatalker_backends.reference.decoder import ReferenceDecoder, ReferenceSettings

CPU = torch.device("cpu")
CUDA = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="this torch sees no CUDA device")
)
GREEDY = SamplingParams(do_sample=False, predictor_do_sample=False)
SAMPLINGS = {
    "greedy": GREEDY,
    "seed 1": SamplingParams(seed=1),
    "seed 2": SamplingParams(seed=2, top_p=0.8, predictor_top_k=None),
    "seed 3": SamplingParams(seed=2**64 - 1, temperature=0.6, predictor_do_sample=False, min_new_tokens=20),
}


@dataclass(frozen=True)
class Company:
    """Streams that begin at different frames of a common clock."""

    voices: Sequence[VoiceRequest]
    starts: Sequence[int]


def compiled(checkpoint: Checkpoint, device: str = "cpu", **settings: Any) -> CheckedTalker:
    settings.setdefault("compile", "off")
    settings.setdefault("max_positions", 200)
    context = LoadContext(torch.device(device), torch.float32, CompiledSettings(**settings))
    return CheckedTalker(CompiledDecoder(checkpoint, context), checkpoint.config)


def reference(checkpoint: Checkpoint, dtype: torch.dtype = torch.float32) -> CheckedTalker:
    return CheckedTalker(ReferenceDecoder(checkpoint, LoadContext(CPU, dtype, ReferenceSettings())), checkpoint.config)


def model_of(talker: CheckedTalker) -> Model:
    assert isinstance(talker.decoder, CompiledDecoder)
    return talker.decoder._model


def speak(decoder: CheckedTalker, each: VoiceRequest) -> list[Codes | None]:
    return codes_of(say(decoder, each))


def speak_together(decoder: CheckedTalker, company: Company) -> list[list[Codes | None]]:
    """Each stream starts and ends at its own time; all that are alive share one call."""
    said: list[list[Codes | None]] = [[] for _ in company.voices]
    streams: dict[int, StreamHandle] = {}
    members = list(zip(company.voices, company.starts, strict=True))
    for clock in range(max(start + len(each.text) for each, start in members)):
        for index, (each, start) in enumerate(members):
            if clock == start:
                streams[index] = decoder.prefill([each.request])[0]
            if index in streams and clock == start + len(each.text):
                decoder.release(streams.pop(index))
        alive = sorted(streams, reverse=clock % 2 == 1)
        texts = {index: each.text[clock - start] for index, (each, start) in enumerate(members) if index in streams}
        steps = [DecodeStep(streams[index], texts[index]) for index in alive]
        for index, frame in zip(alive, decoder.decode(steps)(), strict=True):
            said[index].append(frame.codes)
    for stream in streams.values():
        decoder.release(stream)
    return said


def company(checkpoint: Checkpoint) -> Company:
    """Five streams of different lengths; the longest passes the first step of the looked-at cache."""
    sizes = [(9, 30), (60, 24), (2, 12), (31, 40), (17, 7)]
    samplings = [*SAMPLINGS.values(), SamplingParams(seed=9)]
    voices = [
        voice(checkpoint, seed, rows, frames, replace(sampling, min_new_tokens=frames))
        for seed, ((rows, frames), sampling) in enumerate(zip(sizes, samplings, strict=True))
    ]
    return Company(voices, starts=(0, 3, 5, 5, 20))


@pytest.fixture(scope="module")
def expected(request: pytest.FixtureRequest) -> Callable[[str], list[list[Codes | None]]]:
    """Codes of the reference for :func:`company`, each stream alone, by name of the checkpoint fixture."""

    @cache
    def say(name: str) -> list[list[Codes | None]]:
        checkpoint = request.getfixturevalue(name)
        decoder = reference(checkpoint)
        return [speak(decoder, each) for each in company(checkpoint).voices]

    return say


@pytest.fixture(scope="module", params=[pytest.param("cpu", marks=pytest.mark.slow), CUDA])
def warm(request: pytest.FixtureRequest, demo: Checkpoint) -> Iterator[CheckedTalker]:
    """Compiled units; on a CPU for one stream and for batches of four, so that five streams fall in two parts.

    Of the voice and with the settings that snippets of the README have compiled, too.
    """
    decoder = compiled(demo, request.param, compile="on", max_positions=None)
    with compiling("demo"):
        decoder.warmup()
    yield decoder
    decoder.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny_custom_voice", "tiny_1b7", "demo"])
@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_codes_equal_the_reference_alone_and_in_company(
    request: pytest.FixtureRequest, expected: Callable[[str], list[list[Codes | None]]], name: str, device: str
) -> None:
    checkpoint = request.getfixturevalue(name)
    decoder, together = compiled(checkpoint, device), company(checkpoint)
    decoder.warmup()
    assert [speak(decoder, each) for each in together.voices] == expected(name)
    assert speak_together(decoder, together) == expected(name)


def test_compiled_units_give_the_codes_of_the_reference(
    warm: CheckedTalker, demo: Checkpoint, expected: Callable[[str], list[list[Codes | None]]]
) -> None:
    together = company(demo)
    assert [speak(warm, each) for each in together.voices] == expected("demo")
    assert speak_together(warm, together) == expected("demo")


def test_nothing_is_compiled_outside_the_first_warmup(warm: CheckedTalker, demo: Checkpoint) -> None:
    from torch._dynamo.utils import counters

    before = counters["stats"]["unique_graphs"]
    assert before > 0
    speak_together(warm, company(demo))
    warm.warmup()
    speak(compiled(demo, compile="on"), voice(demo, 1, 5, 2, GREEDY))
    assert counters["stats"]["unique_graphs"] == before


def test_warming_up_says_how_far_it_is(
    tiny_1b7: Checkpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    with caplog.at_level(logging.INFO, logger="megatalker_backends"):
        compiled(tiny_1b7, compile="on", max_streams=5).warmup()
    assert [record.message for record in caplog.records] == [
        "compiled: warming up 1 of 2: frames of 1 streams",
        "compiled: warming up 2 of 2: frames of 4 streams",
    ]


def test_neighbours_do_not_matter_on_a_cpu_not_to_the_last_bit(warm: CheckedTalker, demo: Checkpoint) -> None:
    one, *others = (voice(demo, seed, rows, 6, GREEDY) for seed, rows in ((1, 8), (2, 80), (3, 3), (4, 20)))
    tolerance = 0.0 if model_of(warm).device.type == "cpu" else 1e-4
    alone = logits(warm, [one])[0]
    crowded = logits(warm, [one, *others])[0]
    for ours, theirs in zip(alone, crowded, strict=True):
        torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=0)


def logits(decoder: CheckedTalker, voices: Sequence[VoiceRequest]) -> list[list[Tensor]]:
    """Every logit of each stream's frames: ``[groups x vocab]`` rows, flat, one tensor a frame."""
    streams = [decoder.prefill([each.request])[0] for each in voices]
    rows: list[list[Tensor]] = [[] for _ in voices]
    for index in range(len(voices[0].text)):
        steps = [DecodeStep(stream, each.text[index]) for stream, each in zip(streams, voices, strict=True)]
        for place, frame in enumerate(decoder.decode(steps, return_logits=True)()):
            assert frame.logits is not None
            rows[place].append(torch.cat((frame.logits.talker, frame.logits.predictor.flatten())).cpu())
    for stream in streams:
        decoder.release(stream)
    return rows


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("name", ["tiny_custom_voice", "tiny_1b7"])
def test_forced_codes_give_the_logits_of_the_reference(request: pytest.FixtureRequest, name: str, device: str) -> None:
    checkpoint = request.getfixturevalue(name)
    vocab, groups = checkpoint.config.predictor.vocab_size, checkpoint.config.num_code_groups
    each = voice(checkpoint, 4, 12, 20, GREEDY)
    forced = torch.randint(vocab, (20, groups), generator=torch.Generator().manual_seed(5)).tolist()
    decoder = compiled(checkpoint, device)
    decoder.warmup()
    ours, theirs = (say(one, each, forced) for one in (decoder, reference(checkpoint)))
    assert [frame.codes for frame in ours] == [tuple(codes) for codes in forced]
    for own, other in zip(ours, theirs, strict=True):
        assert own.logits is not None
        assert other.logits is not None
        assert own.logits.talker.dtype == own.logits.predictor.dtype == torch.float32
        assert own.logits.predictor.shape == (groups - 1, vocab)
        torch.testing.assert_close(own.logits.talker.cpu(), other.logits.talker, atol=1e-4, rtol=0)
        torch.testing.assert_close(own.logits.predictor.cpu(), other.logits.predictor, atol=1e-4, rtol=0)


def test_logits_are_those_the_codes_came_from_and_stay_as_they_are(tiny_1b7: Checkpoint) -> None:
    decoder = compiled(tiny_1b7)
    each = voice(tiny_1b7, 6, 10, 2, replace(GREEDY, repetition_penalty=1.0))
    stream = decoder.prefill([each.request])[0]
    frames = [decoder.decode([DecodeStep(stream, text)], return_logits=True)()[0] for text in each.text]
    for frame in frames:
        assert frame.codes is not None
        assert frame.logits is not None
        allowed = frame.logits.talker[: tiny_1b7.config.first_suppressed_id]
        assert frame.codes == (int(allowed.argmax()), *frame.logits.predictor.argmax(-1).tolist())


def test_forcing_one_stream_leaves_the_others_free(tiny_1b7: Checkpoint) -> None:
    decoder = compiled(tiny_1b7)
    free, led = (voice(tiny_1b7, seed, 7, 3, SamplingParams(seed=seed)) for seed in (1, 2))
    alone = speak(decoder, free)
    streams = [decoder.prefill([each.request])[0] for each in (free, led)]
    codes = (3,) * tiny_1b7.config.num_code_groups
    for index, said in enumerate(alone):
        steps = [DecodeStep(streams[0], free.text[index]), DecodeStep(streams[1], led.text[index], forced=codes)]
        assert [frame.codes for frame in decoder.decode(steps)()] == [said, codes]


def test_end_of_speech_ends_one_stream_and_not_its_neighbour(tiny_1b7: Checkpoint) -> None:
    ending, lasting = (voice(tiny_1b7, seed, 7, 4, SamplingParams(seed=seed)) for seed in (1, 2))
    require_that_one_may_end(compiled(tiny_1b7), tiny_1b7, ending, lasting)


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_a_row_s_earlier_contents_leave_no_trace(tiny_1b7: Checkpoint, device: str) -> None:
    decoder = compiled(tiny_1b7, device, max_streams=1)
    decoder.warmup()
    short = voice(tiny_1b7, 1, 5, 12, SamplingParams(seed=4))
    fresh = speak(decoder, short)
    speak(decoder, voice(tiny_1b7, 2, 90, 60, SamplingParams(seed=5, repetition_penalty=1.5, top_k=3)))
    assert speak(decoder, short) == fresh
    model = model_of(decoder)
    for layer in (*model._talker_cache, *model._predictor_cache):
        for part in layer:
            part.fill_(torch.nan)
    assert speak(decoder, short) == fresh


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_a_stream_continued_from_the_codes_of_another_backend_says_the_same(
    tiny_1b7: Checkpoint, sampling: SamplingParams
) -> None:
    whole = voice(tiny_1b7, 8, 10, 24, sampling)
    expected = speak(reference(tiny_1b7), whole)
    said = [codes for codes in expected[:15] if codes is not None]
    rows = torch.stack([frame_row(tiny_1b7, codes) + text for codes, text in zip(said, whole.text[:15], strict=True)])
    history = tuple(codes[0] for codes in said)
    rest = VoiceRequest(StreamRequest(torch.cat((whole.request.embeds, rows)), sampling, history), whole.text[15:])
    assert speak(compiled(tiny_1b7), rest) == expected[15:]


def frame_row(checkpoint: Checkpoint, codes: Codes) -> Tensor:
    names = ["talker.model.codec_embedding.weight"]
    names += [f"talker.code_predictor.model.codec_embedding.{index}.weight" for index in range(len(codes) - 1)]
    return torch.stack([checkpoint.tensor(name)[code] for name, code in zip(names, codes, strict=True)]).float().sum(0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_are_as_close_to_float32_as_the_reference(tiny_1b7: Checkpoint, dtype: torch.dtype) -> None:
    each = voice(tiny_1b7, 4, 12, 10, GREEDY)
    vocab, groups = tiny_1b7.config.predictor.vocab_size, tiny_1b7.config.num_code_groups
    forced = torch.randint(vocab, (10, groups), generator=torch.Generator().manual_seed(5)).tolist()
    oracle = say(reference(tiny_1b7), each, forced)
    context = LoadContext(CPU, dtype, CompiledSettings(compile="off", max_positions=200))
    ours = error(say(CheckedTalker(CompiledDecoder(tiny_1b7, context), tiny_1b7.config), each, forced), oracle)
    theirs = error(say(reference(tiny_1b7, dtype), each, forced), oracle)
    assert 0 < ours <= 1.5 * theirs


def error(frames: Sequence[Frame], oracle: Sequence[Frame]) -> float:
    """Root mean square over all logits."""
    squares = []
    for frame, exact in zip(frames, oracle, strict=True):
        assert frame.logits is not None
        assert exact.logits is not None
        squares.append((frame.logits.predictor - exact.logits.predictor).square().flatten())
        squares.append((frame.logits.talker - exact.logits.talker).square())
    return float(torch.cat(squares).mean().sqrt())


def test_limits_come_from_settings_and_checkpoint(tiny_1b7: Checkpoint) -> None:
    decoder = compiled(tiny_1b7, max_streams=2, max_positions=9)
    assert (decoder.capabilities.max_streams, decoder.capabilities.max_positions) == (2, 9)
    each = voice(tiny_1b7, 1, 8, 2, GREEDY)
    stream = decoder.prefill([each.request])[0]
    decoder.decode([DecodeStep(stream, each.text[0])])()
    with pytest.raises(CapacityError, match="used its 9 positions"):
        decoder.decode([DecodeStep(stream, each.text[1])])()
    with pytest.raises(CapacityError, match="holds 9 positions"):
        decoder.prefill([voice(tiny_1b7, 1, 10, 1, GREEDY).request])
    limit = tiny_1b7.config.talker.max_positions
    assert compiled(tiny_1b7, max_positions=10 * limit).capabilities.max_positions == limit


def test_a_prompt_and_frames_may_fill_every_position(tiny_1b7: Checkpoint) -> None:
    each = voice(tiny_1b7, 3, 60, 10, GREEDY)
    assert speak(compiled(tiny_1b7, max_positions=70), each) == speak(compiled(tiny_1b7, max_positions=500), each)


def test_an_empty_batch_is_no_frame(tiny_1b7: Checkpoint) -> None:
    assert compiled(tiny_1b7).decode([])() == []


def test_asking_for_a_compiler_that_is_missing_is_an_error(
    tiny_1b7: Checkpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SettingsError, match="no C\\+\\+ compiler"):
        compiled(tiny_1b7, compile="on")
    decoder = compiled(tiny_1b7, compile="auto")
    assert "no C++ compiler" in caplog.text
    decoder.warmup()
    assert decoder.decode([])() == []
