"""Findings of ``megatalker verify``: a sound checkpoint, and each fault of an unsound one."""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from megatalker.checkpoint import Checkpoint
from megatalker.cli.bench.metrics import METRICS
from megatalker.cli.verify.card import Card, Check, Outcome
from megatalker.cli.verify.order import PARTS, Reach, VerifyOptions
from megatalker.errors import InvalidRequestError
from megatalker.interfaces import DecodeStep, Frame
from megatalker.prompt import PromptBuilder
from megatalker.settings import Settings
from megatalker.voices import list_languages, reference_audio
from megatalker_backends.compiled.decoder import CompiledDecoder
from megatalker_conformance import precision
from megatalker_conformance.codes import OfficialCodec
from megatalker_conformance.intelligibility import Examiner, Pcm, Understood, named_listener
from megatalker_conformance.ties import Margin
from megatalker_conformance.verify.program import verify
from megatalker_conformance.verify.subject import for_official
from voice_recordings import WORDS, speech, wav

FRAMES = 8


PLAIN = {"compile": "off"}
NEAR = Reach(long_frames=24, long_prompts=(200,), draw_frames=24, codec_frames=300)
"""Enough to see each part run; ``test_verify_damage.py`` looks further."""


def verified(
    checkpoint: Checkpoint, *parts: str, backend: str = "compiled", own: Mapping[str, Any] = PLAIN, **order: Any
) -> Card:
    """These parts of the card."""
    dtype = "bfloat16" if backend == "megakernel" else "auto"
    settings = Settings.read(device="cpu", dtype=dtype, backend=backend, backends={backend: own})
    skip = frozenset(PARTS) - set(parts)
    return verify(checkpoint, settings, VerifyOptions(frames=FRAMES, skip=skip, reach=NEAR, **order), lambda _: None)


def of(card: Card, *outcomes: Outcome) -> list[Check]:
    """Return the checks with these outcomes, and check that nothing was left out unasked."""
    return [check for check in card.checks if check.outcome in outcomes and "--skip" not in check.found]


@pytest.fixture(scope="module")
def whole(tiny_1b7: Checkpoint) -> Card:
    return verified(tiny_1b7, *(part for part in PARTS if part != "words"))


@pytest.mark.slow
def test_a_good_checkpoint_passes_in_every_mode(whole: Card, tiny_1b7: Checkpoint) -> None:
    assert whole.passed
    assert not of(whole, "failed", "not run")
    for part in ("prompts", "codes"):
        names = [check.name for check in of(whole, "passed") if check.part == part]
        for speaker in tiny_1b7.config.speakers:
            assert any(name.startswith(f"speaker {speaker}") for name in names), f"{part}: {speaker}"
        for dialect in tiny_1b7.config.dialects.values():
            assert any(f"({dialect})" in name for name in names), f"{part}: {dialect}"
        assert any("instructed" in name for name in names), part
    prompts = " ".join(check.name for check in whole.checks if check.part == "prompts")
    assert all(language in prompts for language in list_languages(tiny_1b7) if language != "auto")


@pytest.mark.slow
def test_the_card_has_the_figures(whole: Card) -> None:
    figures = {name: value for check in whole.checks for name, value in check.figures.items() if check.part == "speed"}
    assert {*METRICS, "process_gb"} <= set(figures)
    assert all(value > 0 for value in figures.values())
    assert whole.environment["backend"] == "compiled"
    sixteen = [check for check in whole.checks if check.part == "16-bit" and "official" in check.figures]
    assert any(check.name.startswith("talker error") for check in sixteen)
    assert any(check.name.startswith("predictor error") for check in sixteen)


@pytest.mark.slow
def test_the_card_says_how_far_it_looked_and_what_it_did_not_see(whole: Card) -> None:
    seen, unseen = (check for check in whole.checks if check.part == "reach")
    assert {"streams at once": 8, "codec frames": 300}.items() <= seen.figures.items()
    positions = f"{seen.figures['positions']:.0f}"
    assert int(positions) >= 224
    assert seen.figures["draws"] > 4000
    assert f"8 streams at once; {positions} positions of a stream" in seen.found
    assert f"more than 8 streams at once, and positions from {positions} to 32768" in unseen.found
    assert "the codec past 300 frames" in unseen.found
    assert "the parts words" in unseen.found


def one_bit(build: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(*arguments: Any, **keywords: Any) -> Any:
        prompts = build(*arguments, **keywords)
        prompts[0].embeds[0, 0] = prompts[0].embeds[0, 0].nextafter(torch.tensor(9.0))
        return prompts

    return wrong


def one_code(frame: Callable[..., Frame]) -> Callable[..., Frame]:
    def wrong(decoder: CompiledDecoder, step: DecodeStep, *result: Any) -> Frame:
        right = frame(decoder, step, *result)
        if right.codes is None or step.forced is not None:
            return right
        return replace(right, codes=(*right.codes[:-1], right.codes[-1] ^ 1))

    return wrong


def too_loud(compute: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments, **keywords: compute(*arguments, **keywords) * 1.01


MISTAKES: dict[str, tuple[type, str, Callable[..., Any], int]] = {
    "prompts": (PromptBuilder, "build_all", one_bit, 12),
    "codes": (CompiledDecoder, "_frame", one_code, 12),
    "codec": (OfficialCodec, "decode", too_loud, 1),
}


@pytest.mark.parametrize("part", MISTAKES)
def test_a_mistake_fails_its_part(part: str, tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, spoil, least = MISTAKES[part]
    monkeypatch.setattr(owner, name, spoil(getattr(owner, name)))
    card = verified(tiny_custom_voice, part)
    assert not card.passed
    failed = of(card, "failed")
    assert {check.part for check in failed} == {part}
    assert len(failed) >= least
    if part == "codes":
        assert all("parts at frame 0, codebook 15" in check.found for check in failed)
        assert all("a near-tie is" in check.found for check in failed)


def test_codes_that_part_at_a_near_tie_pass_and_show_it(
    tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CompiledDecoder, "_frame", one_code(CompiledDecoder._frame))
    monkeypatch.setattr("megatalker_conformance.verify.talker.float32_margin", lambda *_: Margin(1e-6, 1e-5))
    card = verified(tiny_custom_voice, "codes")
    assert card.passed
    shown = [check for check in card.checks if check.figures.get("apart") == 1e-6]
    assert len(shown) >= 12
    assert all("holds 1e-06 apart; a near-tie is 1e-05" in check.found for check in shown)


def test_an_error_in_one_part_leaves_the_others(tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no more memory")

    monkeypatch.setattr("megatalker_conformance.verify.prompts.OfficialPrompts", broken)
    card = verified(tiny_custom_voice, "prompts", "codec")
    assert [(check.part, check.found) for check in of(card, "failed")] == [("prompts", "RuntimeError: no more memory")]
    assert [check.part for check in of(card, "passed")] == ["codec"] * 3


def test_without_the_official_package_the_card_says_what_needs_it(
    tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    missing = ("qwen_tts", "pocketsphinx")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name in missing else find(name, *rest))
    official = {"prompts", "codes", "streams", "sampling", "16-bit", "codec"}
    card = verified(tiny_custom_voice, "configuration", "words", *official)
    reasons = {check.part: check.found for check in of(card, "not run")}
    assert set(reasons) == {*official, "words"}
    assert all("qwen-tts" in reasons[part] for part in official)
    assert "pip install 'megatalker[recogniser]'" in reasons["words"]
    assert [check.name for check in of(card, "passed")] == ["chunks against one call"]
    assert card.summary.startswith("PASSED IN PART")


@pytest.mark.slow
def test_a_backend_without_float32_is_held_to_the_16_bit_rule(tiny_custom_voice: Checkpoint) -> None:
    own = {"interpret": True, "max_positions": 300, "max_streams": 1}
    card = verified(tiny_custom_voice, "codes", "16-bit", backend="megakernel", own=own)
    (codes,) = of(card, "not run")
    assert (codes.part, codes.found) == ("codes", "megakernel computes in bfloat16 only, not in float32")
    assert card.passed


def test_rounded_weights_are_held_to_bounds_of_their_own(
    tiny_custom_voice: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    card = verified(tiny_custom_voice, "codes", "16-bit", own={"weights": "int8", "max_streams": 1})
    checks = of(card, "passed")
    assert {check.part for check in checks} == {"codes"}
    assert {check.name.partition(",")[0] for check in checks} == {
        "talker error",
        "predictor error",
        "talker choices that differ",
        "predictor choices that differ",
    }
    (sixteen,) = of(card, "not run")
    assert "the weights are rounded" in sixteen.found
    assert card.passed


def test_rounded_weights_beyond_their_bounds_fail(
    tiny_custom_voice: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(precision, "ROUNDED_RATIO", {8: 0.1})
    card = verified(tiny_custom_voice, "codes", own={"weights": "int8", "max_streams": 1})
    assert {check.name.partition(",")[0] for check in of(card, "failed")} == {"talker error", "predictor error"}


@pytest.mark.parametrize(("text", "rate"), [(None, 24_000), (WORDS, 44_100)])
def test_a_recording_is_cloned_and_compared(tiny_base: Checkpoint, tmp_path: Path, text: str | None, rate: int) -> None:
    recording = tmp_path / "voice.wav"
    recording.write_bytes(wav(speech(rate=rate)[: -rate // 100], rate))
    card = verified(tiny_base, "cloning", "prompts", ref_audio=recording, ref_text=text)
    assert card.passed
    assert not of(card, "failed", "not run")
    expected = ["cloned, speaker only"] + ["cloned, in context"] * (text is not None)
    names = [check.name for check in card.checks if check.part == "cloning"]
    assert [name for name in names if not name.startswith("recording of")] == expected
    assert len(names) > len(expected)


def test_one_sample_less_of_a_recording_fails(
    tiny_base: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = tmp_path / "voice.wav"
    samples = speech(rate=44_100)
    recording.write_bytes(wav(np.stack([samples, 0.5 * samples], axis=1), 44_100))
    assert verified(tiny_base, "cloning", ref_audio=recording).passed
    resample = reference_audio.to_24_khz
    monkeypatch.setattr(reference_audio, "to_24_khz", lambda *arguments: resample(*arguments)[:-1])
    card = verified(tiny_base, "cloning", ref_audio=recording)
    failed = of(card, "failed")
    assert failed[-1].found.startswith("other than what the official package gives: embedding off by ")
    assert all("kHz" in check.name for check in failed[:-1])


def test_the_official_package_is_given_samples_of_a_file_it_would_read_otherwise(tmp_path: Path) -> None:
    recording = tmp_path / "voice.wav"
    samples = speech()
    recording.write_bytes(wav(np.stack([samples, -samples], axis=1)))
    mono, rate = for_official(recording)
    assert rate == 24_000
    np.testing.assert_allclose(mono, samples, atol=1e-4)
    recording.write_bytes(wav(samples))
    assert for_official(recording) == str(recording)


@pytest.mark.slow
def test_a_base_checkpoint_without_a_recording_says_what_is_missing(tiny_base: Checkpoint) -> None:
    card = verified(tiny_base, "speed", "cloning", "prompts", "words")
    assert card.passed
    assert {check.part: "--ref-audio" in check.found for check in of(card, "not run")} == {
        "cloning": True,
        "words": True,
    }
    assert {"made-up voice, speaker only", "made-up voice, in context"} <= {check.name for check in of(card, "passed")}


def test_described_voices_are_compared(tiny_voice_design: Checkpoint) -> None:
    card = verified(tiny_voice_design, "prompts")
    assert card.passed
    assert {"described voice", "no description", "described voice, english"} <= {check.name for check in card.checks}


def test_a_recording_for_a_checkpoint_that_does_not_clone_is_refused(
    tiny_custom_voice: Checkpoint, tmp_path: Path
) -> None:
    with pytest.raises(InvalidRequestError, match="cloning needs a base model"):
        verified(tiny_custom_voice, ref_audio=tmp_path / "voice.wav")
    with pytest.raises(InvalidRequestError, match="--ref-text goes with --ref-audio"):
        verified(tiny_custom_voice, ref_text=WORDS)


def test_keys_that_nothing_honours_are_listed(tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = ("config.json: talker_config.new_idea", "config.json: other", "speech_tokenizer/config.json: new")
    monkeypatch.setattr(tiny_custom_voice, "unhonoured_keys", keys)
    unhonoured, idle = (check.found for check in verified(tiny_custom_voice, "configuration").checks[:2])
    assert unhonoured == "config.json: talker_config.new_idea, other; speech_tokenizer/config.json: new"
    assert "talker_config.initializer_range" in idle
    assert "architectures" in idle


# ---------------------------------------------------------------------------------------------------------------- words


class DeafExaminer(Examiner):
    """An examiner that does not listen."""

    understood = Understood(0.0, 1.0)

    def digits(self, strings: Sequence[str] = ()) -> Understood:
        return self.understood

    words = digits


@pytest.mark.parametrize(
    ("understood", "outcome"),
    [(Understood(0.1, 0.9), "passed"), (Understood(0.3, 0.9), "failed"), (Understood(0.1, 0.2), "failed")],
)
def test_words_are_bounded_and_so_is_their_control(
    tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch, understood: Understood, outcome: str
) -> None:
    monkeypatch.setattr("megatalker_conformance.verify.words.Examiner", DeafExaminer)
    monkeypatch.setattr(DeafExaminer, "understood", understood)
    card = verified(tiny_custom_voice, "words", word_errors=0.2, recogniser="listeners:expectant")
    assert [check.outcome for check in card.checks if check.part == "words"] == [outcome, outcome]


def test_another_recogniser_can_be_named() -> None:
    said: list[str] = []

    def say(text: str) -> Pcm:
        said.append(text)
        return np.zeros(3_840, np.float32)

    examiner = Examiner(say, named_listener("listeners:expectant"))
    assert examiner.digits(["0 0", "1 2"]).share == pytest.approx(3 / 4)
    assert said[0] == "0 0."


@pytest.mark.parametrize("name", ["nowhere:x", "listeners:nobody", "a b"])
def test_a_recogniser_that_is_not_there_is_an_error_that_says_what_was_expected(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"recogniser .* cannot be had: .* expected MODULE:NAME"):
        named_listener(name)
