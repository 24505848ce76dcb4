"""The ``reference`` decoder against the official ``generate``, code for code, and against itself."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import ModelConfig
from megatalker.checkpoint.official import load_official_model
from megatalker.errors import CapacityError, InvalidRequestError
from megatalker.interfaces import DecodeStep, Frame, LoadContext, StreamHandle, StreamRequest
from megatalker.plugins.checked import CheckedTalker
from megatalker.sampling import SamplingParams
from megatalker.testing.random_checkpoint import write_checkpoint
from megatalker.testing.recipe import TINY, TINY_1B7
from megatalker_backends.reference.decoder import ReferenceDecoder, ReferenceSettings

CPU = torch.device("cpu")
GREEDY = SamplingParams(do_sample=False, predictor_do_sample=False, repetition_penalty=1.05)
TEXT = "The quick brown fox jumps over the lazy dog, and then it sleeps for a while."
TOKENS = 62
"""Tokens that the official call may generate; it returns one frame less."""
Codes = tuple[int, ...]


@dataclass(frozen=True)
class DecodeMode:
    variant: str
    call: Callable[[Any, ModelConfig], Any]


def _limits() -> dict[str, Any]:
    return {
        "do_sample": False,
        "subtalker_dosample": False,
        "repetition_penalty": 1.05,
        "max_new_tokens": TOKENS,
    }


def _custom_voice(language: str, *, dialect: bool = False, **options: Any) -> DecodeMode:
    def call(model: Any, config: ModelConfig) -> Any:
        speaker = next(name for name in config.speakers if (name in config.dialects) == dialect)
        return model.generate_custom_voice(text=TEXT, language=language, speaker=speaker, **options, **_limits())

    return DecodeMode("custom_voice", call)


def _voice_design() -> DecodeMode:
    return DecodeMode(
        "voice_design",
        lambda model, _: model.generate_voice_design(
            text=TEXT, language="english", instruct="A calm voice, low and slow.", **_limits()
        ),
    )


def _clone(**options: Any) -> DecodeMode:
    seconds = np.arange(36_000) / 24_000
    audio = (0.3 * np.sin(2 * np.pi * 220 * seconds) * np.sin(2 * np.pi * 3 * seconds)).astype(np.float32)
    return DecodeMode(
        "base",
        lambda model, _: model.generate_voice_clone(
            text=TEXT, language="english", ref_audio=(audio, 24_000), **options, **_limits()
        ),
    )


MODES = {
    "language": _custom_voice("english", instruct="Whisper."),
    "auto": _custom_voice("auto", non_streaming_mode=False),
    "dialect": _custom_voice("auto", dialect=True),
    "design": _voice_design(),
    "x-vector": _clone(x_vector_only_mode=True),
    "in-context interleaved": _clone(ref_text="A reference sentence.", non_streaming_mode=False),
    "in-context upfront": _clone(ref_text="A reference sentence.", non_streaming_mode=True),
}
RECIPES = {"0b6": replace(TINY_1B7, size="0b6", seed=6), "1b7": TINY_1B7, "tiny": TINY}
CASES = [(size, mode) for size in ("0b6", "1b7") for mode in MODES] + [("tiny", "language")]


@dataclass(frozen=True)
class OfficialRun:
    """Inputs that the official call gave its talker, and the codes that came out."""

    embeds: Tensor
    trailing: Tensor
    pad: Tensor
    codes: list[Codes]

    def text(self, frame: int) -> Tensor:
        return self.trailing[frame] if frame < len(self.trailing) else self.pad


@dataclass(frozen=True)
class Pair:
    """One checkpoint in the official wrapper and in the backend under test."""

    checkpoint: Checkpoint
    model: Any
    decoder: CheckedTalker

    def official(self, mode: DecodeMode) -> OfficialRun:
        talker, results = self.model.model.talker, []
        generate = self.model.model.generate

        def keep(*args: Any, **options: Any) -> Any:
            results.append(generate(*args, **options))
            return results[-1]

        silence = ([np.zeros(1, np.float32)], 24_000)
        with (
            patch.object(self.model.model, "generate", keep),
            patch.object(self.model.model.speech_tokenizer, "decode", return_value=silence),
            patch.object(talker, "generate", wraps=talker.generate) as inner,
        ):
            mode.call(self.model, self.checkpoint.config)
        given = inner.call_args.kwargs
        rows = (given["inputs_embeds"][0], given["trailing_text_hidden"][0], given["tts_pad_embed"][0, 0])
        return OfficialRun(*(row.clone() for row in rows), [tuple(frame) for frame in results[0][0][0].tolist()])


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # matrices this small only lose time by being shared out
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, str], Pair]]:
    @cache
    def build(size: str, variant: str) -> Pair:
        recipe = replace(RECIPES[size], variant=variant)
        checkpoint = Checkpoint.open(write_checkpoint(tmp_path_factory.mktemp(size) / variant, recipe))
        return Pair(checkpoint, load_official_model(checkpoint, CPU, torch.float32), load(checkpoint))

    yield build
    build.cache_clear()


def load(checkpoint: Checkpoint, **settings: Any) -> CheckedTalker:
    context = LoadContext(CPU, torch.float32, ReferenceSettings(**settings))
    return CheckedTalker(ReferenceDecoder(checkpoint, context), checkpoint.config)


@pytest.fixture(scope="module")
def decoder(tiny_1b7: Checkpoint) -> CheckedTalker:
    return load(tiny_1b7)


@pytest.fixture(scope="module")
def prompt(tiny_1b7: Checkpoint) -> OfficialRun:
    rows = torch.randn(28, tiny_1b7.config.talker.hidden_size, generator=torch.Generator().manual_seed(7)) * 0.1
    return OfficialRun(rows[:8], rows[8:-1], rows[-1], [])


def speak(decoder: CheckedTalker, stream: StreamHandle, run: OfficialRun, frames: range) -> list[Codes]:
    """Frames until the stream ends by itself; releases it."""
    codes = []
    for frame in frames:
        (result,) = decoder.decode([DecodeStep(stream, run.text(frame))])()
        if result.codes is None:
            break
        codes.append(result.codes)
    decoder.release(stream)
    return codes


@pytest.mark.slow
@pytest.mark.parametrize(("size", "mode"), CASES)
def test_greedy_codes_equal_the_official_generate(pair: Callable[[str, str], Pair], size: str, mode: str) -> None:
    both = pair(size, MODES[mode].variant)
    run = both.official(MODES[mode])
    assert len(run.codes) >= 60
    stream = both.decoder.prefill([StreamRequest(run.embeds, GREEDY)])[0]
    assert speak(both.decoder, stream, run, range(len(run.codes))) == run.codes


def test_the_cases_cover_predictors_with_and_without_a_projection(pair: Callable[[str, str], Pair]) -> None:
    projects = {size: pair(size, "custom_voice").checkpoint.config.projects_predictor for size in RECIPES}
    assert projects == {"0b6": True, "1b7": True, "tiny": False}


def test_a_stream_ends_where_the_official_one_ends(pair: Callable[[str, str], Pair]) -> None:
    both = pair("1b7", "custom_voice")
    heads = (both.model.model.talker.codec_head.weight, both.decoder.decoder._talker.codec_head.weight)
    eos, twin = both.checkpoint.config.codec_eos_id, both.official(MODES["language"]).codes[30][0]
    kept = heads[0].detach().clone()
    try:
        with torch.no_grad():
            for head in heads:
                head[eos] = 1.01 * head[twin]  # now end-of-speech wins where this code would have won
        run = both.official(MODES["language"])
        assert 2 <= len(run.codes) < TOKENS - 1
        stream = both.decoder.prefill([StreamRequest(run.embeds, GREEDY)])[0]
        assert speak(both.decoder, stream, run, range(TOKENS)) == run.codes
    finally:
        with torch.no_grad():
            for head in heads:
                head.copy_(kept)


@pytest.mark.parametrize(
    "sampling", [replace(GREEDY, repetition_penalty=1.5), SamplingParams(seed=3), SamplingParams(seed=2**63, top_p=0.8)]
)
def test_a_stream_continued_from_its_history_says_the_same(
    decoder: CheckedTalker, prompt: OfficialRun, tiny_1b7: Checkpoint, sampling: SamplingParams
) -> None:
    whole = speak(decoder, decoder.prefill([StreamRequest(prompt.embeds, sampling)])[0], prompt, range(30))
    assert len(whole) == 30
    said = whole[:17]
    rows = [frame_row(tiny_1b7, codes) + prompt.text(frame) for frame, codes in enumerate(said)]
    embeds = torch.cat((prompt.embeds, torch.stack(rows)))
    stream = decoder.prefill([StreamRequest(embeds, sampling, history=tuple(codes[0] for codes in said))])[0]
    assert speak(decoder, stream, prompt, range(17, 30)) == whole[17:]


def frame_row(checkpoint: Checkpoint, codes: Codes) -> Tensor:
    names = ["talker.model.codec_embedding.weight"]
    names += [f"talker.code_predictor.model.codec_embedding.{index}.weight" for index in range(len(codes) - 1)]
    return torch.stack([checkpoint.tensor(name).float()[code] for name, code in zip(names, codes, strict=True)]).sum(0)


def test_seeds_differ_and_neighbours_do_not_matter(decoder: CheckedTalker, prompt: OfficialRun) -> None:
    params = [SamplingParams(seed=1), SamplingParams(seed=2), GREEDY]
    alone = [
        speak(decoder, decoder.prefill([StreamRequest(prompt.embeds, each)])[0], prompt, range(12)) for each in params
    ]
    assert alone[0] != alone[1]
    streams = [decoder.prefill([StreamRequest(prompt.embeds, each)])[0] for each in params]
    together: list[list[Frame]] = []
    for frame in range(12):
        together.append(decoder.decode([DecodeStep(stream, prompt.text(frame)) for stream in reversed(streams)])())
    for index, stream in enumerate(streams):
        assert [frames[2 - index].codes for frames in together] == alone[index]
        assert {frames[2 - index].stream for frames in together} == {stream}
        decoder.release(stream)


def test_forcing_the_same_codes_gives_the_same_logits(
    decoder: CheckedTalker, prompt: OfficialRun, tiny_1b7: Checkpoint
) -> None:
    config = tiny_1b7.config
    free, forced = (decoder.prefill([StreamRequest(prompt.embeds, GREEDY)])[0] for _ in range(2))
    for index in range(6):
        (chosen,) = decoder.decode([DecodeStep(free, prompt.text(index))], return_logits=True)()
        (echoed,) = decoder.decode([DecodeStep(forced, prompt.text(index), forced=chosen.codes)], return_logits=True)()
        assert echoed.codes == chosen.codes
        assert chosen.logits is not None
        assert echoed.logits is not None
        assert chosen.logits.talker.dtype == chosen.logits.predictor.dtype == torch.float32
        assert chosen.logits.talker.shape == (config.talker.vocab_size,)
        assert chosen.logits.predictor.shape == (config.num_code_groups - 1, config.predictor.vocab_size)
        assert torch.equal(echoed.logits.talker, chosen.logits.talker)
        assert torch.equal(echoed.logits.predictor, chosen.logits.predictor)
        assert chosen.codes is not None
        assert chosen.codes[1:] == tuple(chosen.logits.predictor.argmax(-1).tolist())
    decoder.release(free)
    decoder.release(forced)


def test_forced_end_of_speech_ends_the_stream(
    decoder: CheckedTalker, prompt: OfficialRun, tiny_1b7: Checkpoint
) -> None:
    config = tiny_1b7.config
    stream = decoder.prefill([StreamRequest(prompt.embeds, GREEDY)])[0]
    step = DecodeStep(stream, prompt.pad, forced=(config.codec_eos_id, *[0] * (config.num_code_groups - 1)))
    (frame,) = decoder.decode([step], return_logits=True)()
    assert frame.ended
    assert frame.logits is not None
    assert frame.logits.predictor.shape == (0, config.predictor.vocab_size)
    with pytest.raises(InvalidRequestError, match="has ended"):
        decoder.decode([step])()
    decoder.release(stream)


def test_a_refused_call_advances_no_stream(decoder: CheckedTalker, prompt: OfficialRun) -> None:
    expected = speak(decoder, decoder.prefill([StreamRequest(prompt.embeds, GREEDY)])[0], prompt, range(3))
    stream = decoder.prefill([StreamRequest(prompt.embeds, GREEDY)])[0]
    good = DecodeStep(stream, prompt.text(0))
    with pytest.raises(InvalidRequestError, match="unknown"):
        decoder.decode([good, DecodeStep(StreamHandle(10**6), prompt.pad)])()
    assert speak(decoder, stream, prompt, range(3)) == expected


def test_limits_come_from_the_settings_and_rows_return(tiny_1b7: Checkpoint, prompt: OfficialRun) -> None:
    small = load(tiny_1b7, max_streams=1, max_positions=len(prompt.embeds) + 1)
    assert (small.capabilities.max_streams, small.capabilities.max_positions) == (1, len(prompt.embeds) + 1)
    for _ in range(2):
        stream = small.prefill([StreamRequest(prompt.embeds, GREEDY)])[0]
        with pytest.raises(CapacityError, match="1 of 1 streams"):
            small.prefill([StreamRequest(prompt.embeds, GREEDY)])
        small.decode([DecodeStep(stream, prompt.pad)])()
        with pytest.raises(CapacityError, match="positions"):
            small.decode([DecodeStep(stream, prompt.pad)])()
        small.release(stream)
    with pytest.raises(InvalidRequestError, match="was released"):
        small.release(stream)


def test_the_checkpoint_limits_positions(tiny_1b7: Checkpoint) -> None:
    limit = tiny_1b7.config.talker.max_positions
    assert load(tiny_1b7).capabilities.max_positions == limit
    assert load(tiny_1b7, max_positions=limit + 1).capabilities.max_positions == limit


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_weights_decode(tiny_1b7: Checkpoint, prompt: OfficialRun, dtype: torch.dtype) -> None:
    half = CheckedTalker(ReferenceDecoder(tiny_1b7, LoadContext(CPU, dtype, ReferenceSettings())), tiny_1b7.config)
    stream = half.prefill([StreamRequest(prompt.embeds, GREEDY)])[0]
    (frame,) = half.decode([DecodeStep(stream, prompt.pad)], return_logits=True)()
    assert frame.codes is not None
    assert frame.logits is not None
    assert frame.logits.talker.dtype == torch.float32
    assert torch.equal(frame.logits.talker, frame.logits.talker.to(dtype).float())  # computed in the asked-for type
