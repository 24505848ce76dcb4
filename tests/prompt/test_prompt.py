"""Prompts against the arguments that the official generate() hands its talker, bit for bit."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.template import reference_ids, text_ids
from megatalker.errors import InvalidRequestError
from megatalker.prompt import Layout, Prompt, PromptBuilder, PromptPlanner, PromptText
from megatalker.prompt.builder import CAPTURED_LENGTHS, CAPTURED_TOGETHER, CapturedBodies
from megatalker.testing.random_checkpoint import TINY, write_checkpoint
from megatalker.voices import Voice
from megatalker_conformance.official_prompts import OfficialPrompts, same_prompt
from megatalker_conformance.one_prompt import OnePromptBuilder
from prompt_helpers import REFERENCE_TEXT, builder, cloned, ids_needed, plain_speaker

TEXTS = ("Hi", "Hello there", "Hello there, how are you on this fine and rather long day?", "你好,世界。")
LAYOUTS: tuple[Layout, ...] = ("interleaved", "upfront")


@pytest.fixture(scope="module")
def official() -> Callable[..., OfficialPrompts]:
    loaded: dict[tuple[str, torch.dtype], OfficialPrompts] = {}

    def load(checkpoint: Checkpoint, dtype: torch.dtype = torch.float32) -> OfficialPrompts:
        key = (str(checkpoint.folder), dtype)
        if key not in loaded:
            loaded[key] = OfficialPrompts(checkpoint, dtype)
        return loaded[key]

    return load


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_plan_knows_how_many_rows_its_prompt_takes(
    tiny_base: Checkpoint, tiny_1b7: Checkpoint, layout: Layout
) -> None:
    for checkpoint, voice, instruct in (
        (tiny_base, cloned(tiny_base, frames=9), None),
        (tiny_base, cloned(tiny_base), None),
        (tiny_1b7, Voice.named(plain_speaker(tiny_1b7)), "Softly, please."),
    ):
        plan = PromptPlanner(checkpoint).plan(voice=voice, language="english", instruct=instruct, layout=layout)
        for count in (1, 2, 40):
            (prompt,) = builder(checkpoint).build_all([PromptText(list(range(count)), plan)])
            assert len(prompt.embeds) == plan.prefill_rows(count)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_prompts_that_are_built_together_equal_those_built_alone(tiny_base: Checkpoint, dtype: torch.dtype) -> None:
    prompts, planner = builder(tiny_base, dtype), PromptPlanner(tiny_base)
    texts = [
        PromptText(list(range(1, 1 + count)), planner.plan(voice=voice, layout=layout), complete)
        for layout in LAYOUTS
        for voice in (cloned(tiny_base), cloned(tiny_base, frames=9))
        for count in (2, 11, 30)
        for complete in ((True, False) if layout == "interleaved" and count == 30 else (True,))
    ]
    for text, together in zip(texts, prompts.build_all(texts), strict=True):
        (alone,) = prompts.build_all([text])
        assert torch.equal(together.embeds, alone.embeds)
        assert torch.equal(together.trailing, alone.trailing)
        assert (together.complete, together.prefix_length) == (text.complete, alone.prefix_length)


def dialect_speaker(checkpoint: Checkpoint) -> str:
    return next(iter(checkpoint.config.dialects))


# --------------------------------------------------------------------------------------- equal to the official prompt


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("language", ["auto", "English", "chinese"])
@pytest.mark.parametrize("speaker", [plain_speaker, dialect_speaker])
def test_custom_voice(
    tiny_custom_voice: Checkpoint,
    official: Callable[..., OfficialPrompts],
    speaker: Callable[[Checkpoint], str],
    language: str,
    text: str,
    layout: Layout,
) -> None:
    name = speaker(tiny_custom_voice).upper()
    expected = official(tiny_custom_voice)(text, layout, Voice.named(name), language=language)
    ids = text_ids(tiny_custom_voice.tokenizer, text)
    prompt = builder(tiny_custom_voice).build(ids, voice=Voice.named(name), language=language, layout=layout)
    assert same_prompt(prompt, expected)
    assert prompt.complete


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("instruct", [None, "", "Speak slowly and sadly."])
@pytest.mark.parametrize("fixture", ["tiny_1b7", "tiny_custom_voice"])
def test_instruct(
    request: pytest.FixtureRequest,
    official: Callable[..., OfficialPrompts],
    fixture: str,
    instruct: str | None,
    layout: Layout,
) -> None:
    checkpoint = request.getfixturevalue(fixture)
    name = plain_speaker(checkpoint)
    expected = official(checkpoint)(TEXTS[2], layout, Voice.named(name), instruct=instruct)
    ids = text_ids(checkpoint.tokenizer, TEXTS[2])
    assert same_prompt(
        builder(checkpoint).build(ids, voice=Voice.named(name), instruct=instruct, layout=layout), expected
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("description", ["", "A warm, low voice of an old man."])
@pytest.mark.parametrize("language", ["auto", "english"])
def test_voice_design(
    tiny_voice_design: Checkpoint,
    official: Callable[..., OfficialPrompts],
    description: str,
    language: str,
    layout: Layout,
) -> None:
    expected = official(tiny_voice_design)(TEXTS[1], layout, Voice.designed(description), language=language)
    ids = text_ids(tiny_voice_design.tokenizer, TEXTS[1])
    prompts = builder(tiny_voice_design)
    assert same_prompt(
        prompts.build(ids, voice=Voice.designed(description), language=language, layout=layout), expected
    )
    given = prompts.build(ids, voice=Voice.designed(""), instruct=description, language=language, layout=layout)
    assert same_prompt(given, expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("language", ["auto", "english"])
def test_speaker_embedding_alone(
    tiny_base: Checkpoint, official: Callable[..., OfficialPrompts], language: str, text: str, layout: Layout
) -> None:
    voice = cloned(tiny_base)
    ids = text_ids(tiny_base.tokenizer, text)
    prompt = builder(tiny_base).build(ids, voice=voice, language=language, layout=layout)
    assert same_prompt(prompt, official(tiny_base)(text, layout, voice, language=language))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("spare", [-60, -1, 0, 1, 5])
def test_in_context(
    tiny_base: Checkpoint, official: Callable[..., OfficialPrompts], spare: int, text: str, layout: Layout
) -> None:
    """``spare`` text rows more (or fewer) than codec rows: the official code pads or defers at that border."""
    ids = text_ids(tiny_base.tokenizer, text)
    text_rows = len(reference_ids(tiny_base.tokenizer, REFERENCE_TEXT)) + len(ids) + 1
    voice = cloned(tiny_base, frames=max(1, text_rows - spare - 1))
    prompt = builder(tiny_base).build(ids, voice=voice, layout=layout)
    assert same_prompt(prompt, official(tiny_base)(text, layout, voice, reference_text=REFERENCE_TEXT))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sixteen_bit(tiny_custom_voice: Checkpoint, official: Callable[..., OfficialPrompts], layout: Layout) -> None:
    name = plain_speaker(tiny_custom_voice)
    expected = official(tiny_custom_voice, torch.bfloat16)(TEXTS[2], layout, Voice.named(name))
    ids = text_ids(tiny_custom_voice.tokenizer, TEXTS[2])
    prompt = builder(tiny_custom_voice, torch.bfloat16).build(ids, voice=Voice.named(name), layout=layout)
    assert prompt.embeds.dtype == torch.bfloat16
    assert same_prompt(prompt, expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_widths_that_fill_no_vector_of_the_processor(tmp_path: Path, layout: Layout) -> None:
    """Numbers at the end of a call are computed by other instructions than those before: a call's end is a text's."""
    checkpoint = Checkpoint.open(write_checkpoint(tmp_path / "narrow", replace(TINY, text_hidden=44)))
    official, voice = OfficialPrompts(checkpoint), Voice.named(plain_speaker(checkpoint))
    plan = PromptPlanner(checkpoint).plan(voice=voice, layout=layout)
    texts = [PromptText(text_ids(checkpoint.tokenizer, text), plan) for text in TEXTS]
    for text, prompt in zip(TEXTS, builder(checkpoint).build_all(texts), strict=True):
        assert same_prompt(prompt, official(text, layout, voice))


def drop_row(prompt: Prompt, row: int) -> Prompt:
    return replace(prompt, embeds=torch.cat([prompt.embeds[:row], prompt.embeds[row + 1 :]]))


MUTATIONS: dict[str, Callable[[Prompt], Prompt]] = {
    "first row dropped": lambda prompt: drop_row(prompt, 0),
    "speaker row dropped": lambda prompt: drop_row(prompt, 6),
    "text row dropped": lambda prompt: drop_row(prompt, len(prompt.embeds) - 1),
    "end of text dropped": lambda prompt: replace(prompt, trailing=prompt.trailing[:-1]),
    "first trailing row dropped": lambda prompt: replace(prompt, trailing=prompt.trailing[1:]),
    "one bit": lambda prompt: replace(prompt, embeds=prompt.embeds.nextafter(torch.tensor(9.0))),
    "pad": lambda prompt: replace(prompt, pad=prompt.trailing[-1]),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_comparison_notices(
    tiny_custom_voice: Checkpoint, official: Callable[..., OfficialPrompts], mutation: str
) -> None:
    name = plain_speaker(tiny_custom_voice)
    expected = official(tiny_custom_voice)(TEXTS[2], "interleaved", Voice.named(name))
    prompt = builder(tiny_custom_voice).build(text_ids(tiny_custom_voice.tokenizer, TEXTS[2]), voice=Voice.named(name))
    assert same_prompt(prompt, expected)
    assert not same_prompt(MUTATIONS[mutation](prompt), expected)


# ------------------------------------------------------------------------------------------- text that arrives slowly


def test_rows_do_not_depend_on_how_the_text_is_split(demo: Checkpoint) -> None:
    prompts = builder(demo)
    ids = text_ids(demo.tokenizer, TEXTS[2] * 3)
    whole = prompts.text_rows(ids)
    for size in (1, 2, 3, 7, 8, 9, 30):
        parts = [prompts.text_rows(ids[start : start + size]) for start in range(0, len(ids), size)]
        assert torch.equal(torch.cat(parts), whole), f"split by {size}"


@pytest.mark.parametrize("frames", [None, 3, 30])
def test_slow_text_makes_the_same_prompt(tiny_base: Checkpoint, frames: int | None) -> None:
    prompts, voice = builder(tiny_base), cloned(tiny_base, frames)
    ids = text_ids(tiny_base.tokenizer, TEXTS[2] * 2)
    at_once = prompts.build(ids, voice=voice)
    grown = []
    for known in (ids_needed(tiny_base, voice), ids_needed(tiny_base, voice) + 4, len(ids)):
        begun = prompts.build(ids[:known], voice=voice, complete=False)
        assert not begun.complete
        rest = prompts.text_rows(ids[known:])
        grown.append((begun.embeds, torch.cat([begun.trailing, rest, prompts.end_row.unsqueeze(0)])))
    for embeds, trailing in grown:
        assert torch.equal(embeds, grown[0][0])
        assert torch.equal(trailing, grown[0][1])
        torch.testing.assert_close(embeds, at_once.embeds)
        torch.testing.assert_close(trailing, at_once.trailing)


def test_text_rows_of_nothing(tiny_base: Checkpoint) -> None:
    assert builder(tiny_base).text_rows([]).shape == (0, tiny_base.config.talker.hidden_size)


def test_in_context_voices_wait_for_a_text_row_per_reference_frame(tiny_base: Checkpoint) -> None:
    prompts, voice = builder(tiny_base), cloned(tiny_base, frames=20)
    assert voice.reference_text_ids is not None
    needed = ids_needed(tiny_base, voice)
    assert needed == 21 - len(voice.reference_text_ids)
    ids = text_ids(tiny_base.tokenizer, TEXTS[2] * 2)
    assert len(prompts.build(ids[:needed], voice=voice, complete=False).trailing) == 0
    with pytest.raises(InvalidRequestError, match=f"needs {needed} text ids"):
        prompts.build(ids[: needed - 1], voice=voice, complete=False)
    assert ids_needed(tiny_base, cloned(tiny_base)) == ids_needed(tiny_base, cloned(tiny_base, frames=1)) == 1


# -------------------------------------------------------------------------------------------------------------- parts


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("frames", [None, 12])
def test_prefix_is_shared_by_all_texts(tiny_base: Checkpoint, frames: int | None, layout: Layout) -> None:
    prompts, voice = builder(tiny_base), cloned(tiny_base, frames)
    first, *others = [
        prompts.build(text_ids(tiny_base.tokenizer, text), voice=voice, language="english", layout=layout)
        for text in TEXTS
    ]
    for other in others:
        length = first.prefix_length
        assert other.prefix_length == length >= 8
        assert torch.equal(first.embeds[:length], other.embeds[:length])
        if frames is None:  # in context, the reference text comes first, and its last bits depend on the row count
            assert not torch.equal(first.embeds[length], other.embeds[length])


def test_frame_rows_equal_the_official_sum(tiny_1b7: Checkpoint, official: Callable[..., OfficialPrompts]) -> None:
    codes = torch.randint(tiny_1b7.config.predictor.vocab_size, (9, 16), generator=torch.Generator().manual_seed(1))
    talker = official(tiny_1b7).wrapper.model.talker
    tables = [talker.get_input_embeddings(), *talker.code_predictor.get_input_embeddings()]
    rows = builder(tiny_1b7).frame_rows(codes)
    for frame in range(len(codes)):  # one frame at a time, as in generation
        parts = [table(codes[frame : frame + 1, group : group + 1]) for group, table in enumerate(tables)]
        assert torch.equal(rows[frame], torch.cat(parts, dim=1).sum(1)[0].detach())
        assert torch.equal(rows[frame], builder(tiny_1b7).frame_rows(codes[frame : frame + 1])[0])


class StaysInTheFile(Tensor):
    """A table that may be looked up, but not converted or copied whole."""

    def to(self, *arguments: Any, **keywords: Any) -> Tensor:
        raise AssertionError("the whole table was copied")

    def index_select(self, *arguments: Any, **keywords: Any) -> Tensor:
        return self.as_subclass(Tensor).index_select(*arguments, **keywords)


def test_tables_are_never_copied_whole(tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = Checkpoint.tensor

    def guarded(self: Checkpoint, name: str) -> Tensor:
        found = tensor(self, name)
        return found.as_subclass(StaysInTheFile) if "embedding" in name else found

    monkeypatch.setattr(Checkpoint, "tensor", guarded)
    prompts = builder(tiny_custom_voice, torch.bfloat16)
    prompts.build([5, 6], voice=Voice.named(plain_speaker(tiny_custom_voice)))
    prompts.frame_rows(torch.zeros(2, 16, dtype=torch.long))


def in_place(work: Callable[[], tuple[Tensor, Tensor]]) -> Callable[[], tuple[Tensor, Tensor]]:
    """Run the work directly in place of a CUDA graph, and return the same tensors each time."""
    results = work()

    def replay() -> tuple[Tensor, Tensor]:
        for result, new in zip(results, work(), strict=True):
            result.copy_(new)
        return results

    return replay


def capture_in_place(prompts: PromptBuilder) -> None:
    prompts.warmup()
    assert prompts._captured is None, "a processor needs none"
    prompts._captured = CapturedBodies(prompts._rows, prompts._captured_body, in_place)


@pytest.mark.parametrize(
    ("device", "dtype"),
    [
        ("cpu", torch.float32),
        *(
            pytest.param("cuda", dtype, marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"))
            for dtype in (torch.float32, torch.bfloat16)
        ),
    ],
)
def test_texts_that_come_alone_have_the_prompts_that_were_captured_for_their_length(
    tiny_custom_voice: Checkpoint, device: str, dtype: torch.dtype
) -> None:
    fresh, prompts = (OnePromptBuilder(tiny_custom_voice, torch.device(device), dtype) for _ in range(2))
    if device == "cuda":
        prompts.warmup()
    else:
        capture_in_place(prompts)
    noise = torch.Generator().manual_seed(3)
    voice, built = Voice.named(plain_speaker(tiny_custom_voice)), []
    for layout in LAYOUTS:
        for length in (*range(1, CAPTURED_LENGTHS + 1), 2 * CAPTURED_LENGTHS):
            ids = torch.randint(100, (length,), generator=noise).tolist()
            built.append([one.build(ids, voice=voice, layout=layout) for one in (fresh, prompts)])
    for expected, found in built:  # after all: a later text must not change what an earlier one was given
        assert torch.equal(found.embeds, expected.embeds)
        assert torch.equal(found.trailing, expected.trailing)
        assert (found.complete, found.prefix_length) == (True, expected.prefix_length)


def test_captured_and_other_prompts_that_are_built_together_equal_those_built_alone(tiny_base: Checkpoint) -> None:
    fresh, prompts, planner = builder(tiny_base), builder(tiny_base), PromptPlanner(tiny_base)
    capture_in_place(prompts)
    plain, in_context = (planner.plan(voice=voice) for voice in (cloned(tiny_base), cloned(tiny_base, frames=9)))
    texts = [
        PromptText(list(range(start, start + length)), plan, complete)
        for start, (length, plan, complete) in enumerate(
            [(40, plain, True), (40, in_context, True), (40, plain, False), (300, plain, True), (40, plain, True)], 1
        )
    ]
    for count in (len(texts), CAPTURED_TOGETHER + 1):
        some = (texts * count)[:count]
        for text, found in zip(some, prompts.build_all(some), strict=True):
            (expected,) = fresh.build_all([text])
            assert torch.equal(found.embeds, expected.embeds)
            assert torch.equal(found.trailing, expected.trailing)
            assert (found.complete, found.prefix_length) == (text.complete, expected.prefix_length)


def test_a_full_gpu_builds_prompts_without_captures(
    tiny_base: Checkpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError("no room for 2 MB")

    prompts = builder(tiny_base)
    with monkeypatch.context() as patch:
        patch.setattr(prompts, "_device", torch.device("cuda"))
        patch.setattr(prompts._rows, "embed", lambda ids: None)
        patch.setattr("megatalker.prompt.builder.GraphCapture", lambda device: None)
        patch.setattr("megatalker.prompt.builder.CapturedBodies", full)
        prompts.warmup()
    assert "no room for 2 MB" in caplog.text
    assert len(prompts.build([1, 2, 3], voice=cloned(tiny_base)).embeds)
