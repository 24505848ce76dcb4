"""Impossible prompts are refused by name; values that a checkpoint ignores are reported."""

import dataclasses
import logging

import pytest
import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.template import reference_ids, text_ids
from megatalker.errors import InvalidRequestError
from megatalker.prompt import PromptPlanner
from megatalker.voices import Voice, list_languages, list_speakers
from prompt_helpers import builder, cloned, plain_speaker

# ------------------------------------------------------------------------------------------------------------- errors


def test_unknown_names_list_the_known_ones(tiny_custom_voice: Checkpoint) -> None:
    prompts, voice = builder(tiny_custom_voice), Voice.named(plain_speaker(tiny_custom_voice))
    with pytest.raises(InvalidRequestError, match=f"'klingon'.*{', '.join(list_languages(tiny_custom_voice))}"):
        prompts.build([5], voice=voice, language="klingon")
    with pytest.raises(InvalidRequestError, match=f"'nobody'.*{', '.join(list_speakers(tiny_custom_voice))}"):
        prompts.build([5], voice=Voice.named("nobody"))


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("en", "english"),
        ("en-US", "english"),
        ("EN_gb", "english"),
        (" English ", "english"),
        ("zh-Hans-CN", "chinese"),
        ("pt_BR", "portuguese"),
        ("deu", "german"),
        ("cmn", "chinese"),
        ("AUTO", "auto"),
    ],
)
def test_languages_may_be_given_by_their_codes(tiny_custom_voice: Checkpoint, code: str, name: str) -> None:
    planner, voice = PromptPlanner(tiny_custom_voice), Voice.named(plain_speaker(tiny_custom_voice))
    assert planner.plan(voice=voice, language=code).tags == planner.plan(voice=voice, language=name).tags


@pytest.mark.parametrize("code", ["pl", "e", "en glish", "", "-en", "xx-en"])
def test_codes_of_other_languages_are_refused(tiny_custom_voice: Checkpoint, code: str) -> None:
    voice = Voice.named(plain_speaker(tiny_custom_voice))
    with pytest.raises(InvalidRequestError, match="also by codes such as en-US"):
        PromptPlanner(tiny_custom_voice).plan(voice=voice, language=code)


def test_dialects_are_no_languages(tiny_custom_voice: Checkpoint) -> None:
    dialect = next(iter(tiny_custom_voice.config.dialects.values()))
    with pytest.raises(InvalidRequestError, match="unknown language"):
        builder(tiny_custom_voice).build([5], voice=Voice.named(plain_speaker(tiny_custom_voice)), language=dialect)


@pytest.mark.parametrize("fixture", ["tiny_custom_voice", "tiny_voice_design", "tiny_base"])
def test_voices_of_another_kind(request: pytest.FixtureRequest, tiny_base: Checkpoint, fixture: str) -> None:
    checkpoint = request.getfixturevalue(fixture)
    voices = {
        "tiny_custom_voice": Voice.named("ryan"),
        "tiny_voice_design": Voice.designed("old"),
        "tiny_base": cloned(tiny_base),
    }
    prompts = builder(checkpoint)
    for owner, voice in voices.items():
        if owner != fixture:
            with pytest.raises(
                InvalidRequestError, match=f"{checkpoint.config.variant} model and cannot speak with a {voice.kind}"
            ):
                prompts.build([5], voice=voice)


def test_voices_of_another_checkpoint(tiny_base: Checkpoint) -> None:
    prompts, voice = builder(tiny_base), cloned(tiny_base)
    with pytest.raises(InvalidRequestError, match="another checkpoint"):
        prompts.build([5], voice=dataclasses.replace(voice, checkpoint_fingerprint="somebody else"))
    with pytest.raises(InvalidRequestError, match=r"x_vector has 3 values, expected \d+"):
        prompts.build([5], voice=Voice(x_vector=torch.zeros(3)))


def test_malformed_requests(tiny_custom_voice: Checkpoint, tiny_voice_design: Checkpoint) -> None:
    prompts, voice = builder(tiny_custom_voice), Voice.named(plain_speaker(tiny_custom_voice))
    size = tiny_custom_voice.config.text_vocab_size
    with pytest.raises(InvalidRequestError, match="text is empty"):
        prompts.build([], voice=voice)
    with pytest.raises(InvalidRequestError, match=f"text id {size} is outside"):
        prompts.build([size], voice=voice)
    with pytest.raises(InvalidRequestError, match="text id -1 is outside"):
        prompts.text_rows([-1])
    with pytest.raises(InvalidRequestError, match="needs the whole text"):
        prompts.build([5], voice=voice, layout="upfront", complete=False)
    with pytest.raises(InvalidRequestError, match="layout is 'sideways'"):
        prompts.build([5], voice=voice, layout="sideways")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="already carries its description"):
        builder(tiny_voice_design).build([5], voice=Voice.designed("old"), instruct="sad")


@pytest.mark.parametrize(
    "codes",
    [
        torch.zeros(16, dtype=torch.long),
        torch.zeros(2, 15, dtype=torch.long),
        torch.zeros(2, 16),
        torch.full((2, 16), -1),
    ],
)
def test_malformed_codes(tiny_custom_voice: Checkpoint, codes: Tensor) -> None:
    with pytest.raises(InvalidRequestError, match=r"codes .*expected"):
        builder(tiny_custom_voice).frame_rows(codes)


def test_ignored_instruct_is_said_once(tiny_custom_voice: Checkpoint, caplog: pytest.LogCaptureFixture) -> None:
    prompts, voice = builder(tiny_custom_voice), Voice.named(plain_speaker(tiny_custom_voice))
    with caplog.at_level(logging.WARNING, logger="megatalker.prompt"):
        for _ in range(3):
            prompts.build([5], voice=voice, instruct="Loudly!")
    assert [record.message for record in caplog.records if "ignores instruct" in record.message] == [
        f"checkpoint {tiny_custom_voice.name!r} (0b6, custom_voice) ignores instruct"
    ]


@pytest.mark.parametrize("text", ["", "  ", "\n"])
def test_empty_text_has_no_ids(tiny_custom_voice: Checkpoint, text: str) -> None:
    for encode in (text_ids, reference_ids):
        with pytest.raises(InvalidRequestError, match="text is empty"):
            encode(tiny_custom_voice.tokenizer, text)


def test_leading_line_breaks_never_merge_into_the_template(tiny_custom_voice: Checkpoint) -> None:
    """They either stay out of the role's ids, or are refused; they must not change the role silently."""
    role = tiny_custom_voice.tokenizer.encode("<|im_start|>assistant\n").ids
    for text in ("\nHello", "\n\n Hello", " Hello"):
        turns = f"<|im_start|>assistant\n{text}<|im_end|>\n<|im_start|>assistant\n"
        whole = tiny_custom_voice.tokenizer.encode(turns).ids
        if whole[: len(role)] == role:
            assert text_ids(tiny_custom_voice.tokenizer, text) == whole[len(role) : -5]
        else:
            with pytest.raises(InvalidRequestError, match="begins with a line break"):
                text_ids(tiny_custom_voice.tokenizer, text)
