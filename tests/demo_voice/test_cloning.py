"""Training data of a voice that clones: made-up speakers, references, and prompts in the layout for cloning."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from demo_voice_helpers import SMALL, espeak_files
from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.difference import DIFFERENCE, nearest
from megatalker.checkpoint.template import role_ids
from megatalker.checkpoint.tokenizer import load_tokenizer
from megatalker.prompt import Layout
from megatalker.voices import Voice, VoiceCloner
from megatalker_conformance.one_prompt import OnePromptBuilder
from megatalker_demo_voice.clock import TrainingClock
from megatalker_demo_voice.clones_command import likeness
from megatalker_demo_voice.codec_export import export_codec
from megatalker_demo_voice.codec_model import TrainableCodec
from megatalker_demo_voice.crowd import HELD_OUT, cast, crowd, everyone, traits
from megatalker_demo_voice.espeak import MOST_SPEAKERS, EspeakError, EspeakFiles
from megatalker_demo_voice.likeness import VoicePrint
from megatalker_demo_voice.lineage import store_difference, talker_weights, weights_of
from megatalker_demo_voice.listener import SpeakerListener
from megatalker_demo_voice.quantiser import ResidualQuantiser
from megatalker_demo_voice.recipe import FALLING
from megatalker_demo_voice.references import REFERENCE_FRAMES, References, reference_mels
from megatalker_demo_voice.shards import Shard, ShardRequest, make_shards
from megatalker_demo_voice.speakers import SPEAKERS
from megatalker_demo_voice.speech import FRAME
from megatalker_demo_voice.stored import Stored
from megatalker_demo_voice.talker_data import TalkerData, TrainingLayout
from megatalker_demo_voice.talker_export import export_talker, parsed_config
from megatalker_demo_voice.talker_model import NO_CODE, TrainableTalker
from megatalker_demo_voice.talker_training import TalkerPlan, TalkerTrainer
from megatalker_demo_voice.tokens import encode_texts

CPU = torch.device("cpu")
BASE = replace(SMALL, variant="base")
TEXTS = ("Hello there, how are you?", "4 7 1 2 9.", "stop", "One more thing.", "No.")
FRAMES = (12, 9, 5, 7, 4)
VOICES = (0, 0, 1, 2, 2)
LAYOUTS: tuple[tuple[bool, Layout], ...] = ((False, "interleaved"), (True, "upfront"))


@pytest.fixture(scope="module")
def references() -> References:
    torch.manual_seed(0)
    mels = (-6 + 2 * torch.randn(6, REFERENCE_FRAMES * FRAME // 256, 128)).half().numpy()
    return References.build(mels, np.array([2, 0, 1, 0, 2, 1], np.uint16), 3, CPU)


@pytest.fixture(scope="module")
def listener(references: References) -> SpeakerListener:
    torch.manual_seed(1)
    return SpeakerListener(BASE, crowd(3), references)


@pytest.fixture(scope="module")
def talker(tokenizer_folder: Path) -> TrainableTalker:
    torch.manual_seed(3)
    return TrainableTalker(parsed_config(BASE, tokenizer_folder)).requires_grad_(False)


@pytest.fixture(scope="module")
def checkpoint(
    talker: TrainableTalker, listener: SpeakerListener, tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Checkpoint:
    folder = tmp_path_factory.mktemp("checkpoint") / "voice"
    export_talker(talker, BASE, tokenizer_folder, folder, listener.encoder)
    export_codec(TrainableCodec(BASE, FALLING), BASE, folder / "speech_tokenizer")
    return Checkpoint.open(folder)


@pytest.fixture(scope="module")
def data(tokenizer_folder: Path) -> TalkerData:
    ids = encode_texts(load_tokenizer(tokenizer_folder), TEXTS)
    codes = torch.randint(0, 128, (sum(FRAMES), 16), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    return TalkerData.build(codes, FRAMES, ids, [NO_CODE] * len(TEXTS), VOICES, CPU)


@pytest.fixture(scope="module")
def layout(checkpoint: Checkpoint) -> TrainingLayout:
    return TrainingLayout(checkpoint.config, role_ids(checkpoint.tokenizer), "english", CPU)


def text_of(data: TalkerData, index: int) -> list[int]:
    start = int(data.text_starts[index])
    return data.text[start : start + int(data.text_counts[index])].tolist()


def frames_of(data: TalkerData, index: int) -> torch.Tensor:
    start = int(data.frame_starts[index])
    return data.codes[start : start + int(data.frame_counts[index])].long()


def test_made_up_speakers_are_always_the_same_and_differ() -> None:
    assert crowd(5) == crowd(9)[:5]
    everybody = everyone(200)
    assert len({speaker.name for speaker in everybody}) == len(everybody) == 3 + 200 + HELD_OUT
    assert everyone(0) == cast(0, held_out=True) == SPEAKERS
    made_up = np.array([traits(speaker) for speaker in crowd(200)])
    assert (np.abs(made_up) < 1.6).all()
    assert (made_up.std(0) > 0.4).all()


def test_more_speakers_than_espeak_can_list_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EspeakError, match=f"too many, expected at most {MOST_SPEAKERS}"):
        EspeakFiles.prepare(tmp_path, tmp_path, crowd(MOST_SPEAKERS + 1))


def test_pairs_are_neighbours_of_one_voice(data: TalkerData) -> None:
    paired = data.with_pairs()
    assert len(paired) == len(data) + 1, "every other neighbour"
    assert text_of(paired, 5) == text_of(data, 0) + text_of(data, 1)
    assert torch.equal(frames_of(paired, 5), torch.cat([frames_of(data, 0), frames_of(data, 1)]))
    assert int(paired.voices[5]) == 0


@pytest.mark.parametrize(("upfront", "name"), LAYOUTS)
@pytest.mark.parametrize("in_context", [False, True])
def test_rows_equal_those_of_the_prompt_builder(
    checkpoint: Checkpoint, talker: TrainableTalker, data: TalkerData, layout: TrainingLayout,
    upfront: bool, name: Layout, in_context: bool,
) -> None:  # fmt: skip
    paired, x_vector = data.with_pairs(), torch.randn(BASE.talker.hidden)
    index = len(data) if in_context else 1
    length = int(layout.lengths(paired, upfront=upfront).max())
    batch = layout.batch(paired, torch.tensor([index]), torch.tensor([1]), length, upfront=upfront)
    rows = talker.embedded(replace(batch.rows, x_vectors=x_vector[None]))[0]
    voice = Voice(x_vector=x_vector)
    if in_context:
        voice = replace(voice, reference_codes=frames_of(data, 0), reference_text_ids=tuple(text_of(data, 0)))
    builder = OnePromptBuilder(checkpoint, CPU, torch.float32)
    prompt = builder.build(text_of(data, 1), voice=voice, language="english", layout=name)
    frames = frames_of(data, 1)
    fed = torch.cat([prompt.trailing, prompt.pad.expand(len(frames), -1)])[: len(frames)]
    expected = torch.cat([prompt.embeds, builder.frame_rows(frames) + fed])
    torch.testing.assert_close(rows[: len(expected)], expected, atol=2e-5, rtol=1e-5)
    begin = len(prompt.embeds) - 1
    wanted = [*frames[:, 0].tolist(), checkpoint.config.codec_eos_id]
    assert batch.first[0, begin : begin + len(wanted)].tolist() == wanted


def test_references_are_of_the_voice_that_is_asked_for(references: References) -> None:
    torch.manual_seed(0)
    drawn = references.draw(torch.tensor([2, 2, 0, 1] * 8))
    assert drawn.shape[0] == 32
    assert drawn.shape[2] == 128
    known = references.mels.float()
    for mels, voice in zip(drawn, [2, 2, 0, 1] * 8, strict=True):
        owned = [int(references.starts[voice]) + turn for turn in range(int(references.counts[voice]))]
        places = [known[index].unfold(0, len(mels), 1).transpose(1, 2) for index in owned]
        # loudness may differ, so differences between neighbours are compared; values near silence are cut off
        loud = (mels[1:] > -9) & (mels[:-1] > -9)
        found = [
            (((place[:, 1:] - place[:, :-1]) - (mels[1:] - mels[:-1])).abs() * loud).amax((1, 2)) for place in places
        ]
        assert float(torch.cat(found).min()) < 1e-2


def test_a_voice_without_a_reference_is_refused(references: References) -> None:
    with pytest.raises(ValueError, match="1 of 4 speakers say nothing long enough"):
        References.build(references.mels.numpy(), np.array([0, 1, 2, 0, 1, 2], np.uint16), 4, CPU)


def test_the_exported_speaker_encoder_is_the_official_one(
    checkpoint: Checkpoint, listener: SpeakerListener, tokenizer_folder: Path
) -> None:
    assert checkpoint.config.variant == "base"
    assert not checkpoint.config.speakers
    noise = 0.1 * np.random.default_rng(0).standard_normal(24_000).astype(np.float32)
    with VoiceCloner(checkpoint) as cloner:
        voice = cloner.clone(noise, reference_text="Hush.")
    assert voice.x_vector is not None
    assert voice.reference_codes is not None
    assert 0.05 < float(voice.x_vector.std()) < 20, "it begins at a size that can be learned with"


@pytest.mark.slow
def test_steps_learn_whose_voice_it_is_and_what_is_stored(
    checkpoint: Checkpoint, talker: TrainableTalker, listener: SpeakerListener, data: TalkerData,
    layout: TrainingLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    start = {name: value.clone() for name, value in talker.state_dict().items()}
    plan = TalkerPlan(
        config=checkpoint.config, seconds=1.0, rows=128, highest_rate=1e-3, damage=0.0, kept_damage=0.0,
        seed=0, state=tmp_path / "state", save_every=1e9, capture=False,
    )  # fmt: skip
    trainer = TalkerTrainer(plan, data.with_pairs(), layout, CPU, lambda line: None, None, start, listener)
    before = {name: value.detach().clone() for name, value in listener.named_parameters()}
    asked = listener(torch.tensor(VOICES))[1].item()
    monkeypatch.setattr(TrainingClock, "share", property(lambda _: min(1.0, trainer._step / 75)))
    trainer.run(lambda share: None)
    assert listener(torch.tensor(VOICES))[1].item() < asked
    kept = [name for name, value in listener.named_parameters() if torch.equal(value, before[name])]
    assert len(kept) < 0.1 * len(before), "a few of so few channels may be dead"
    moved = 0
    for name, value in trainer.talker.named_parameters():
        if value.ndim > 1:
            again = nearest(start[name], value)
            assert torch.equal(value, value.bfloat16().float()), "what is measured is what is stored"
            torch.testing.assert_close(again, value, atol=0.05 * value.std().item(), rtol=0)
            moved += not torch.equal(value, start[name])
    assert moved > 10


def test_exact_weights_learn_behind_the_rounded_ones() -> None:
    torch.manual_seed(0)
    base = torch.randn(4, 32).bfloat16().float()
    tensor = base + 0.1 * torch.randn(4, 32)
    stored, exact = Stored([tensor], [base.clone()]), tensor.clone()
    stored.impose()
    assert torch.equal(tensor, exact), "not begun"
    stored.begin()
    assert torch.equal(tensor, nearest(base, exact))
    for _ in range(20):  # each step is smaller than what rounding takes away
        stored.release()
        tensor += 1e-3
        stored.impose()
    stored.release()
    torch.testing.assert_close(tensor, exact + 0.02)


def test_a_finished_checkpoint_becomes_a_difference_to_its_parent(
    checkpoint: Checkpoint, talker: TrainableTalker, tokenizer_folder: Path, tmp_path: Path
) -> None:
    successor = TrainableTalker(checkpoint.config).requires_grad_(False)
    successor.load_state_dict(talker_weights(checkpoint.folder))
    successor.model.layers[0].mlp.up_proj.weight.mul_(1.1)  # type: ignore[union-attr]
    export_talker(successor, BASE, tokenizer_folder, tmp_path)
    store_difference(tmp_path, checkpoint.folder)
    assert (tmp_path / DIFFERENCE).stat().st_size < 0.05 * (checkpoint.folder / "model.safetensors").stat().st_size
    name = "talker.model.layers.0.mlp.up_proj.weight"
    old, new = (weights_of(folder)[name].float() for folder in (checkpoint.folder, tmp_path))
    torch.testing.assert_close(new, 1.1 * old, atol=0.02 * float(old.std()), rtol=0.02)


def test_a_loaded_codebook_is_followed_on() -> None:
    torch.manual_seed(0)
    quantiser, vectors = ResidualQuantiser((8, 4), 4), torch.randn(256, 4)
    quantiser.fit(vectors, torch.Generator().manual_seed(0))
    loaded = ResidualQuantiser((8, 4), 4)
    for old, new in zip(quantiser.levels, loaded.levels, strict=True):
        new.entries.copy_(old.entries)  # type: ignore[operator, union-attr]
    loaded.resume(256)
    codes, _ = loaded(vectors, follow=True)
    torch.testing.assert_close(loaded.levels[0].entries, quantiser.levels[0].entries, atol=0.05, rtol=0.05)
    assert torch.equal(codes[0], quantiser(vectors, follow=False)[0][0])


def buzz(pitch: float, formant: float) -> np.ndarray:
    time = np.arange(36_000) / 24_000
    harmonics = np.arange(1, 40)
    heights = 1 / (1 + ((harmonics * pitch - formant) / 300) ** 2) + 0.02
    wave = (heights[:, None] * np.sin(2 * np.pi * pitch * harmonics[:, None] * time)).sum(0)
    return (0.2 * wave / np.abs(wave).max()).astype(np.float32)


def test_voice_prints_tell_pitch_and_formants_apart_but_not_loudness() -> None:
    prints = [VoicePrint.of(wave) for wave in (buzz(120, 700), 0.5 * buzz(120, 700), buzz(140, 700), buzz(120, 1100))]
    assert prints[0].unlike(prints[1]) < 0.1
    assert prints[0].unlike(prints[2]) > 0.9
    assert prints[0].unlike(prints[3]) > 0.9
    assert prints[0].semitones == pytest.approx(12 * np.log2(120), abs=0.2)
    with pytest.raises(ValueError, match="no voiced speech"):
        VoicePrint.of(np.zeros(24_000, np.float32))


def likeness_of(order: Sequence[int]) -> dict[str, float]:
    prints = [VoicePrint.of(buzz(pitch, 800)) for pitch in (90, 130, 180)]
    names = ("a", "b", "c")
    clones = {name: prints[index] for name, index in zip(names, order, strict=True)}
    return likeness(clones, dict(zip(names, prints, strict=True)))


def test_likeness_is_lost_where_references_are_exchanged() -> None:
    assert likeness_of((0, 1, 2))["nearest"] == 1
    assert likeness_of((0, 1, 2))["control"] == 0
    exchanged = likeness_of((1, 2, 0))
    assert exchanged["nearest"] == 0
    assert exchanged["control"] == 1
    assert exchanged["own"] > likeness_of((0, 1, 2))["own"]


@pytest.mark.slow
def test_made_up_speakers_take_turns_and_leave_references(tmp_path: Path) -> None:
    files = espeak_files(tmp_path / "plain")
    where = EspeakFiles.prepare(
        Path(files.library).parent if "/" in files.library else None, tmp_path / "e", everyone(3)
    )
    (path,) = make_shards([ShardRequest(where, tmp_path / "speech", "train", 0, 1.0, crowd=3)], 1)
    shard = Shard.load(path)
    assert set(shard.speakers.tolist()) <= {0, 1, 2}
    assert (shard.speakers[:6] == shard.speakers[0]).all(), "a turn"
    codec = TrainableCodec(BASE, FALLING).place(CPU)
    codes = torch.zeros(int(shard.frames.sum()), 16, dtype=torch.uint8)
    mels, speakers = reference_mels(codec, shard, codes, CPU)
    assert mels.shape == (len(speakers), REFERENCE_FRAMES * FRAME // 256, 128)
    assert len(speakers) == len(shard.frames[::6])
    assert speakers.tolist() == shard.speakers[::6].tolist()
