"""Voices: cloning as the official package clones, saving, loading, and refusals."""

import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.official import load_official_model
from megatalker.checkpoint.template import reference_ids
from megatalker.errors import CheckpointError, InvalidRequestError
from megatalker.interfaces import LoadContext
from megatalker.voices import Voice, VoiceCloner, clone_voice, default_voice, list_languages, list_speakers
from megatalker_backends.streaming.codec import StreamingCodec
from megatalker_backends.streaming.settings import StreamingSettings
from megatalker_conformance.one_prompt import OnePromptBuilder

CPU = torch.device("cpu")
REFERENCE_TEXT = "This is what I said before."


@pytest.fixture(scope="module")
def recording() -> npt.NDArray[np.float32]:
    """1.3 s of a rising tone with noise; not a whole number of frames."""
    time = np.arange(31_201) / 24_000
    noise = np.random.default_rng(3).normal(size=time.size)
    return (0.5 * np.sin(2 * np.pi * (150 + 200 * time) * time) + 0.05 * noise).astype(np.float32)


def same(ours: Tensor | None, theirs: Tensor | None) -> bool:
    assert ours is not None
    assert theirs is not None
    return torch.equal(ours, theirs)


# ------------------------------------------------------------------------------------------------------------ cloning


def test_cloning_equals_the_official_prompt(tiny_base: Checkpoint, recording: npt.NDArray[np.float32]) -> None:
    official = load_official_model(tiny_base, CPU, torch.float32)
    [item] = official.create_voice_clone_prompt((recording, 24_000), REFERENCE_TEXT)
    with VoiceCloner(tiny_base, CPU) as cloner:
        voice = cloner.clone(recording, reference_text=REFERENCE_TEXT, trim=False)
        alone = cloner.clone(recording, trim=False)
    assert voice.in_context
    assert same(voice.x_vector, item.ref_spk_embedding)
    assert same(voice.reference_codes, item.ref_code)
    assert item.ref_code.shape == (17, 16)
    assert voice.reference_text_ids == tuple(reference_ids(tiny_base.tokenizer, REFERENCE_TEXT))
    assert same(alone.x_vector, item.ref_spk_embedding)
    assert (alone.reference_codes, alone.reference_text_ids, alone.in_context) == (None, None, False)


def test_a_voice_follows_its_recording(tiny_base: Checkpoint, recording: npt.NDArray[np.float32]) -> None:
    with VoiceCloner(tiny_base, CPU) as cloner:
        voices = [cloner.clone(audio, reference_text="Hi") for audio in (recording, recording[::-1].copy())]
    assert not same(voices[0].x_vector, voices[1].x_vector)
    assert not same(voices[0].reference_codes, voices[1].reference_codes)


def test_a_closed_cloner_loads_again(tiny_base: Checkpoint, recording: npt.NDArray[np.float32]) -> None:
    cloner = VoiceCloner(tiny_base, CPU)
    first = cloner.clone(recording)
    cloner.close()
    assert same(cloner.clone(recording).x_vector, first.x_vector)


def test_the_codec_is_loaded_for_in_context_voices_only(
    tiny_base: Checkpoint, recording: npt.NDArray[np.float32], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, load = [], StreamingCodec.__init__

    def watched(codec: StreamingCodec, checkpoint: Checkpoint, context: LoadContext[StreamingSettings]) -> None:
        loaded.append(context.encoder_only)
        load(codec, checkpoint, context)

    monkeypatch.setattr(StreamingCodec, "__init__", watched)
    clone_voice(tiny_base, recording, reference_text=None, device=CPU)
    assert loaded == []
    clone_voice(tiny_base, recording, reference_text="Hi", device=CPU)
    assert loaded == [True]


def test_a_loud_recording_is_taken_as_the_official_package_takes_it_but_silently(
    tiny_base: Checkpoint, recording: npt.NDArray[np.float32], capsys: pytest.CaptureFixture[str]
) -> None:
    loud = recording * np.float32(1.7 / np.abs(recording).max())
    voice = clone_voice(tiny_base, loud, reference_text=REFERENCE_TEXT, trim=False, device=CPU)
    assert capsys.readouterr().out == ""
    official = load_official_model(tiny_base, CPU, torch.float32)
    [item] = official.create_voice_clone_prompt((loud, 24_000), REFERENCE_TEXT)
    assert same(voice.x_vector, item.ref_spk_embedding)
    assert same(voice.reference_codes, item.ref_code)
    clipped = clone_voice(tiny_base, np.clip(loud, -1, 1), reference_text=REFERENCE_TEXT, device=CPU)
    assert not same(voice.x_vector, clipped.x_vector)


@pytest.mark.parametrize(
    ("audio", "message"),
    [
        (np.zeros((24_000, 2), np.float32), r"shape \[24000, 2\]"),
        (np.zeros(24_000), "type float64"),
        ([0.0] * 24_000, "has list"),
        (np.zeros(0, np.float32), "lasts 0.000 s"),
        (np.zeros(1_200, np.float32), "lasts 0.050 s"),
        (np.full(24_000, np.nan, np.float32), "not finite"),
        (np.full(24_000, 32_000, np.float32), "reaches 32000"),
    ],
)
def test_malformed_audio(tiny_base: Checkpoint, audio: npt.NDArray[np.float32], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"reference audio.*{message}"):
        clone_voice(tiny_base, audio, reference_text=None, device=CPU)


@pytest.mark.parametrize("text", ["", "  \n"])
def test_empty_reference_text(tiny_base: Checkpoint, recording: npt.NDArray[np.float32], text: str) -> None:
    with pytest.raises(InvalidRequestError, match="reference text is empty"):
        clone_voice(tiny_base, recording, reference_text=text, device=CPU)


def test_only_base_models_clone(tiny_custom_voice: Checkpoint, tiny_voice_design: Checkpoint) -> None:
    for checkpoint in (tiny_custom_voice, tiny_voice_design):
        with pytest.raises(InvalidRequestError, match=f"{checkpoint.config.variant} model; cloning needs a base model"):
            VoiceCloner(checkpoint, CPU)


def test_a_missing_speaker_encoder(tiny_base: Checkpoint, recording: npt.NDArray[np.float32], tmp_path: Path) -> None:
    copy = shutil.copytree(tiny_base.folder, tmp_path / "copy")
    tensors = load_file(copy / "model.safetensors")
    save_file(
        {name: tensor for name, tensor in tensors.items() if "speaker_encoder" not in name}, copy / "model.safetensors"
    )
    with pytest.raises(CheckpointError, match=r"tensor 'speaker_encoder\.\S+' is missing"):
        clone_voice(Checkpoint.open(copy), recording, reference_text=None, device=CPU)


# ----------------------------------------------------------------------------------------------------------- the file

CODES = torch.arange(48).reshape(3, 16)
VOICES = {
    "speaker": Voice.named("ryan"),
    "design": Voice.designed("Eine warme Stimme „älterer Herr“"),
    "x-vector": Voice(x_vector=torch.randn(8), checkpoint_fingerprint="abc"),
    "sixteen bit": Voice(x_vector=torch.randn(8).to(torch.bfloat16), checkpoint_fingerprint="abc"),
    "in context": Voice(
        x_vector=torch.randn(8), reference_codes=CODES, reference_text_ids=(4, 5, 6), checkpoint_fingerprint="abc"
    ),
}


@pytest.mark.parametrize("name", VOICES)
def test_saved_voices_come_back(tmp_path: Path, name: str) -> None:
    voice, path = VOICES[name], tmp_path / "voice.safetensors"
    voice.save(path)
    back = Voice.load(path)
    for field in ("speaker", "description", "reference_text_ids", "checkpoint_fingerprint", "kind", "in_context"):
        assert getattr(back, field) == getattr(voice, field)
    for field in ("x_vector", "reference_codes"):
        ours, theirs = getattr(voice, field), getattr(back, field)
        assert (ours is None) == (theirs is None)
        assert ours is None or (ours.dtype == theirs.dtype and torch.equal(ours, theirs))


def test_a_saved_voice_speaks_the_same(
    tiny_base: Checkpoint, recording: npt.NDArray[np.float32], tmp_path: Path
) -> None:
    voice = clone_voice(tiny_base, recording, reference_text=REFERENCE_TEXT, device=CPU)
    voice.save(tmp_path / "voice.safetensors")
    back = Voice.load(tmp_path / "voice.safetensors")
    prompts = OnePromptBuilder(tiny_base, CPU, torch.float32)
    assert torch.equal(prompts.build([5, 6, 7], voice=voice).embeds, prompts.build([5, 6, 7], voice=back).embeds)


def test_a_voice_is_bound_to_its_checkpoint(
    tiny_base: Checkpoint, recording: npt.NDArray[np.float32], monkeypatch: pytest.MonkeyPatch
) -> None:
    voice = clone_voice(tiny_base, recording, reference_text=None, device=CPU)
    assert voice.checkpoint_fingerprint == tiny_base.fingerprint
    monkeypatch.setitem(tiny_base.__dict__, "fingerprint", "another")
    with pytest.raises(InvalidRequestError, match="cloned with another checkpoint"):
        OnePromptBuilder(tiny_base, CPU, torch.float32).build([5], voice=voice)


def test_unreadable_voice_files(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="does not exist"):
        Voice.load(tmp_path / "nowhere")
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"RIFF this is no safetensors file")
    with pytest.raises(InvalidRequestError, match="not a voice file"):
        Voice.load(garbage)
    other = tmp_path / "other.safetensors"
    save_file({"weight": torch.zeros(2)}, other)
    with pytest.raises(InvalidRequestError, match="format None, expected 'megatalker-voice-1'"):
        Voice.load(other)


@pytest.mark.parametrize("fields", ["not json", "[]", '{"speaker": "ryan"}', '{"speaker": 3, "description": null}'])
def test_voice_files_with_damaged_fields(tmp_path: Path, fields: str) -> None:
    path = tmp_path / "voice.safetensors"
    save_file({}, path, metadata={"format": "megatalker-voice-1", "voice": fields})
    with pytest.raises(InvalidRequestError, match="not a voice file"):
        Voice.load(path)


# ---------------------------------------------------------------------------------------------------- the other kinds


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "found none"),
        ({"speaker": "ryan", "description": "old"}, "found speaker, description"),
        ({"x_vector": torch.zeros(1, 8)}, r"x_vector has shape \[1, 8\]"),
        ({"x_vector": torch.full((8,), 1e30)}, r"x_vector reaches 1e\+30, expected values from -10000 to 10000"),
        ({"x_vector": torch.zeros(8, dtype=torch.long)}, "expected finite floats"),
        ({"x_vector": torch.full((8,), torch.inf)}, "expected finite floats"),
        ({"speaker": "ryan", "reference_codes": CODES, "reference_text_ids": (1,)}, "need an x_vector"),
        ({"x_vector": torch.zeros(8), "reference_codes": CODES}, "go together"),
        (
            {"x_vector": torch.zeros(8), "reference_codes": CODES, "reference_text_ids": ()},
            "reference_text_ids are empty",
        ),
        ({"x_vector": torch.zeros(8), "reference_codes": CODES[:0], "reference_text_ids": (1,)}, "frames >= 1"),
        ({"x_vector": torch.zeros(8), "reference_codes": CODES.int(), "reference_text_ids": (1,)}, "torch.int32"),
    ],
)
def test_impossible_voices(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        Voice(**fields)  # type: ignore[arg-type]


def test_listings_and_defaults(
    tiny_custom_voice: Checkpoint, tiny_voice_design: Checkpoint, tiny_base: Checkpoint
) -> None:
    speakers, languages = list_speakers(tiny_custom_voice), list_languages(tiny_custom_voice)
    assert speakers == sorted(speakers)
    assert {"ryan", "dylan"} <= set(speakers)
    assert languages[0] == "auto"
    assert {"english", "chinese"} <= set(languages)
    assert not any("dialect" in language for language in languages)
    assert list_speakers(tiny_base) == []
    assert default_voice(tiny_custom_voice).speaker in speakers
    assert default_voice(tiny_voice_design).description == ""
    with pytest.raises(InvalidRequestError, match="clone one from reference audio"):
        default_voice(tiny_base)
