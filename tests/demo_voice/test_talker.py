from pathlib import Path

import pytest
import torch

from demo_voice_helpers import SMALL
from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.official import load_official_model
from megatalker.checkpoint.template import role_ids
from megatalker.checkpoint.template import text_ids as template_ids
from megatalker.checkpoint.tokenizer import load_tokenizer
from megatalker.prompt import Layout
from megatalker.voices import Voice, list_languages, list_speakers
from megatalker_conformance.one_prompt import OnePromptBuilder
from megatalker_demo_voice.codec_export import export_codec
from megatalker_demo_voice.codec_model import TrainableCodec
from megatalker_demo_voice.recipe import CANDIDATES, FALLING
from megatalker_demo_voice.speakers import SPEAKERS
from megatalker_demo_voice.talker_data import IGNORED, Buckets, TalkerData, TrainingLayout
from megatalker_demo_voice.talker_export import export_talker, parsed_config
from megatalker_demo_voice.talker_model import NO_CODE, TalkerRows, TrainableTalker
from megatalker_demo_voice.talker_report import report_talker
from megatalker_demo_voice.talker_training import TalkerPlan, TalkerTrainer, damaged, losses
from megatalker_demo_voice.tokens import encode_texts

CPU = torch.device("cpu")
TEXTS = ("Hello there, how are you?", "4 7 1 2 9.", "stop")
FRAMES = (12, 9, 5)
LAYOUTS: tuple[tuple[bool, Layout], ...] = ((False, "interleaved"), (True, "upfront"))


@pytest.fixture(scope="module")
def talker(tokenizer_folder: Path) -> TrainableTalker:
    torch.manual_seed(3)
    return TrainableTalker(parsed_config(SMALL, tokenizer_folder)).requires_grad_(False)


@pytest.fixture(scope="module")
def checkpoint(talker: TrainableTalker, tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("checkpoint") / "voice"
    export_talker(talker, SMALL, tokenizer_folder, folder)
    export_codec(TrainableCodec(SMALL, FALLING), SMALL, folder / "speech_tokenizer")
    return Checkpoint.open(folder)


@pytest.fixture(scope="module")
def data(checkpoint: Checkpoint, tokenizer_folder: Path) -> TalkerData:
    ids = encode_texts(load_tokenizer(tokenizer_folder), TEXTS)
    assert ids == [template_ids(checkpoint.tokenizer, text) for text in TEXTS]
    codes = torch.randint(0, 128, (sum(FRAMES), 16), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    speakers = [checkpoint.config.speakers[speaker.name] for speaker in SPEAKERS]
    return TalkerData.build(codes, FRAMES, ids, speakers, [0, 1, 2], CPU)


@pytest.fixture(scope="module")
def layout(checkpoint: Checkpoint) -> TrainingLayout:
    return TrainingLayout(checkpoint.config, role_ids(checkpoint.tokenizer), "english", CPU)


def frames_of(data: TalkerData, index: int) -> torch.Tensor:
    start = int(data.frame_starts[index])
    return data.codes[start : start + FRAMES[index]].long()


@pytest.mark.parametrize(("upfront", "name"), LAYOUTS)
@pytest.mark.parametrize("tagged", [0, 1])
def test_rows_equal_those_of_the_prompt_builder(
    checkpoint: Checkpoint, talker: TrainableTalker, data: TalkerData, layout: TrainingLayout,
    upfront: bool, name: Layout, tagged: int,
) -> None:  # fmt: skip
    length = int(layout.lengths(data, upfront=upfront).max())
    batch = layout.batch(data, torch.arange(3), torch.full((3,), tagged), length, upfront=upfront)
    rows = talker.embedded(batch.rows)
    builder = OnePromptBuilder(checkpoint, CPU, torch.float32)
    for index, text in enumerate(TEXTS):
        prompt = builder.build(
            template_ids(checkpoint.tokenizer, text),
            voice=Voice.named(SPEAKERS[index].name),
            language="english" if tagged else "auto",
            layout=name,
        )
        frames, begin = frames_of(data, index), len(prompt.embeds)
        fed = torch.cat([prompt.trailing, prompt.pad.expand(len(frames), -1)])[: len(frames)]
        expected = torch.cat([prompt.embeds, builder.frame_rows(frames) + fed])
        torch.testing.assert_close(rows[index, : len(expected)], expected, atol=2e-5, rtol=1e-5)
        wanted = [*frames[:, 0].tolist(), checkpoint.config.codec_eos_id]
        assert batch.first[index, begin - 1 : begin + len(frames)].tolist() == wanted
        assert int((batch.first[index] != IGNORED).sum()) == len(wanted)
        assert torch.equal(batch.frames[index][batch.speaks[index]], frames)


def test_logits_equal_the_official_ones(
    checkpoint: Checkpoint, talker: TrainableTalker, data: TalkerData, layout: TrainingLayout
) -> None:
    official = load_official_model(checkpoint, CPU, torch.float32).model.talker
    talker = TrainableTalker(checkpoint.config).requires_grad_(False)
    stored = {name: checkpoint.tensor(f"talker.{name}").float() for name, _ in talker.named_parameters()}
    talker.load_state_dict(stored)
    length = int(layout.lengths(data, upfront=False).max())
    batch = layout.batch(data, torch.arange(3), torch.ones(3, dtype=torch.long), length, upfront=False)
    hidden = talker.hidden(batch.rows)
    rows = talker.embedded(batch.rows)
    for index in range(3):
        end = int((batch.first[index] != IGNORED).nonzero().max()) + 1
        theirs = official.model(inputs_embeds=rows[index : index + 1, :end]).last_hidden_state[0]
        torch.testing.assert_close(hidden[index, :end], theirs, atol=1e-4, rtol=1e-4)
        ours = talker.first_logits(hidden[index, :end])
        torch.testing.assert_close(ours, official.codec_head(theirs), atol=1e-4, rtol=1e-4)
        frames, predictor = frames_of(data, index), official.code_predictor
        states = hidden[index][batch.speaks[index]]
        tables = [official.get_input_embeddings(), *predictor.get_input_embeddings()]
        known = [table(frames[:, group : group + 1]) for group, table in enumerate(tables[:-1])]
        logits = predictor.forward_finetune(inputs_embeds=torch.cat([states.unsqueeze(1), *known], dim=1)).logits
        torch.testing.assert_close(talker.rest_logits(states, frames), logits, atol=1e-4, rtol=1e-4)


def test_the_export_names_our_speakers_and_its_sampling(checkpoint: Checkpoint) -> None:
    assert set(list_speakers(checkpoint)) == {speaker.name for speaker in SPEAKERS}
    assert list_languages(checkpoint) == ["auto", "english"]
    assert checkpoint.sampling.repetition_penalty == 1.0
    assert checkpoint.sampling.temperature < 0.9


@pytest.mark.parametrize("candidate", CANDIDATES.values(), ids=CANDIDATES.keys())
def test_every_candidate_fits_its_size(candidate: object, tokenizer_folder: Path) -> None:
    recipe = candidate.recipe  # type: ignore[attr-defined]
    talker = TrainableTalker(parsed_config(recipe, tokenizer_folder))
    size = 2 * sum(parameter.numel() for parameter in talker.parameters())
    limit = 16_000_000 if candidate.name == "large" else 11_100_000  # type: ignore[attr-defined]
    assert size < limit, "with 3.9 MB for the codec, 15 MB (large: 20 MB) in all"


def test_damage_touches_the_given_share_of_frames_and_nothing_else(data: TalkerData, layout: TrainingLayout) -> None:
    torch.manual_seed(0)
    chosen = torch.arange(3).repeat(200)
    rows = layout.batch(data, chosen, torch.zeros_like(chosen), 40, upfront=True).rows
    changed = damaged(rows, torch.tensor(0.4))
    spoken = rows.codes[..., 1] != NO_CODE
    different = (changed.codes != rows.codes).any(-1)
    hidden = (changed.codes == NO_CODE).all(-1) & spoken
    assert torch.equal(changed.text, rows.text)
    assert not different[~spoken].any()
    assert 0.2 < float(different[spoken].float().mean()) < 0.4, "a frame drawn to replace another may be none"
    assert float(hidden[spoken].float().mean()) == pytest.approx(0.2, abs=0.03)
    assert torch.equal(damaged(rows, torch.tensor(0.0)).codes, rows.codes)


def test_buckets_hold_every_utterance_that_fits() -> None:
    lengths = torch.tensor([20, 39, 41, 130, 131, 250, 10_000])
    buckets = Buckets(lengths, 512)
    seen = sorted(index for _, members in buckets.all_members() for index in members.tolist())
    assert seen == [0, 1, 2, 3, 4, 5]
    for length in buckets.lengths:
        assert (lengths[buckets.draw(length)] <= length).all()
        assert buckets.size(length) * length <= 512


@pytest.mark.slow
def test_steps_learn_what_each_text_says(checkpoint: Checkpoint, data: TalkerData, layout: TrainingLayout) -> None:
    torch.manual_seed(0)
    talker = TrainableTalker(checkpoint.config)
    before = report_talker(talker, layout, data, checkpoint.config.codec_eos_id)
    optimizer = torch.optim.AdamW(talker.parameters(), lr=3e-3)
    for step in range(60):
        tagged = torch.randint(2, (3,))
        batch = layout.batch(data, torch.arange(3), tagged, 40, upfront=step % 2 == 1)
        first, rest = losses(talker, batch, damaged(batch.rows, torch.tensor(0.1)), share=0.5)
        optimizer.zero_grad()
        (first + rest.mean()).backward()
        optimizer.step()
    after = report_talker(talker, layout, data, checkpoint.config.codec_eos_id)
    for name in ("short, interleaved", "short, upfront"):
        assert after["code_0"][name]["right"] < 0.5 * before["code_0"][name]["right"]
        assert after["code_0"][name]["gap"] > 0.5, "another text must be a worse one"
    assert after["heads"]["perplexity"][1] < before["heads"]["perplexity"][1]
    assert after["end"]["found"] == 1


def test_an_interrupted_run_continues_where_it_stopped(
    checkpoint: Checkpoint, data: TalkerData, layout: TrainingLayout, tmp_path: Path
) -> None:
    lines: list[str] = []
    watched: list[float] = []
    plan = TalkerPlan(
        config=checkpoint.config, seconds=1.0, rows=128, highest_rate=1e-3, damage=0.1, kept_damage=0.0,
        seed=0, state=tmp_path / "state", save_every=1e9, capture=False,
    )  # fmt: skip
    first = TalkerTrainer(plan, data, layout, CPU, lines.append)
    start = [parameter.detach().clone() for parameter in first.talker.parameters()]
    first.run(watched.append)
    assert watched == [1.0]
    assert any(not torch.equal(old, new) for old, new in zip(start, first.talker.parameters(), strict=True))
    second = TalkerTrainer(plan, data, layout, CPU, lines.append)
    second.run(watched.append)
    assert any(line.startswith("continued at") for line in lines)
    for ours, theirs in zip(second.talker.parameters(), first.talker.parameters(), strict=True):
        assert torch.equal(ours, theirs), "there was no time left"


def test_rows_without_codes_add_nothing(talker: TrainableTalker) -> None:
    rows = TalkerRows(torch.zeros(1, 2, dtype=torch.long), torch.full((1, 2, 16), NO_CODE), torch.zeros(1))
    assert not talker._spoken(rows.codes).any()


def test_in_haste_logits_are_nearly_the_same(
    talker: TrainableTalker, tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)  # which would take half a minute here
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    hasty = TrainableTalker(parsed_config(SMALL, tokenizer_folder)).requires_grad_(False)
    hasty.load_state_dict(talker.state_dict())
    hasty.hasten()
    rows = TalkerRows(torch.randint(0, 900, (2, 9)), torch.randint(0, 128, (2, 9, 16)), torch.zeros(2))
    exact = talker.hidden(rows)
    torch.testing.assert_close(hasty.hidden(rows), exact, rtol=1e-4, atol=1e-4)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        rough = hasty.hidden(rows)
    assert 0 < float((rough - exact).std() / exact.std()) < 0.05
