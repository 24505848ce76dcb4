"""Mixed voices: what their names mean, what they are made of, how they speak, and what is refused."""

import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from megatalker.checkpoint import Checkpoint
from megatalker.cli import voices as command
from megatalker.engine import Engine
from megatalker.errors import InvalidRequestError
from megatalker.prompt import PromptPlanner
from megatalker.settings import Settings
from megatalker.testing.random_checkpoint import write_checkpoint
from megatalker.testing.recipe import TINY
from megatalker.voices import Voice, list_speakers, mix_voices
from megatalker.voices.cache import VoiceCache
from megatalker.voices.library import VoiceLibrary
from megatalker.voices.mixing import MOST_PARTS, find_mixed, mix_parts

TEXT = "Seven small stones."
MIX = "robin:0.6+mina:0.4"
BAD = {
    "robin:0+mina:1": "a weight of a mixed voice is 0",
    "robin:-1+mina:1": "is -1",
    "robin:nan+mina:1": "is nan",
    "robin:1e400+mina:1": "is inf",
    "robin:1e-9+mina:1": "is 1e-09, expected a number from 0.001 to 1000",
    "robin:nan": "is nan",
    "robin:x+mina:1": "has the part 'robin:x'",
    "robin+": "has the part ''",
    "+": "has the part ''",
    ":1+mina": "has the part ':1'",
    "+".join(["robin:1"] * (MOST_PARTS + 1)): "mixes 9 voices",
    "+".join(["robin:1"] * 20_000): "mixes 20,000 voices",
    "x" * 100_000 + "+mina": "in 100,005 characters",
    "robin:0.5+nobody:0.5": "unknown voice 'nobody' in the mix",
}


def embedding(checkpoint: Checkpoint, speaker: str) -> torch.Tensor:
    return checkpoint.tensor("talker.model.codec_embedding.weight")[checkpoint.config.speakers[speaker]]


def clone(checkpoint: Checkpoint, seed: int) -> Voice:
    vector = torch.randn(checkpoint.config.talker.hidden_size, generator=torch.Generator().manual_seed(seed))
    return Voice(x_vector=vector, checkpoint_fingerprint=checkpoint.fingerprint)


@pytest.fixture(scope="module")
def engine(demo: Checkpoint) -> Iterator[Engine]:
    settings = Settings(device="cpu", threads=1, backend="reference", codec="streaming", max_frames=12)
    with Engine.open(settings, checkpoint=demo) as engine:
        yield engine


def codes(engine: Engine, voice: Any, seed: int = 5) -> NDArray[np.int64]:
    chunks = list(engine.speak(TEXT, voice=voice, seed=seed, return_codes=True))
    return np.concatenate([chunk.codes for chunk in chunks if chunk.codes is not None])


def test_names_are_read_as_they_are_meant() -> None:
    assert mix_parts(MIX) == [("robin", 0.6), ("mina", 0.4)]
    assert mix_parts(" robin : 3 + Mina ") == [("robin", 3.0), ("Mina", 1.0)]
    assert mix_parts("robin:1.0") == [("robin", 1.0)]
    for one in ("robin", "Jean-Luc O'Neil", "a:b", "", "C:\\voices\\anna.safetensors", "x" * 100_000):
        assert mix_parts(one) is None


@pytest.mark.parametrize(("name", "complaint"), BAD.items(), ids=[name[:20] for name in BAD])
def test_bad_mixes_are_refused_in_a_line(demo: Checkpoint, name: str, complaint: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        find_mixed(name, demo)
    assert complaint in str(refused.value)
    assert len(str(refused.value)) < 400


def test_a_mix_is_the_weighted_sum_of_embeddings(demo: Checkpoint) -> None:
    mixed = find_mixed("Robin:6+mina:4", demo)
    assert mixed is not None
    assert (mixed.kind, mixed.checkpoint_fingerprint) == ("mix", demo.fingerprint)
    assert mixed.x_vector is not None
    expected = 0.6 * embedding(demo, "robin").double() + 0.4 * embedding(demo, "mina").double()
    torch.testing.assert_close(mixed.x_vector.double(), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", ["robin:1.0", "robin:0.25", "ROBIN:0.5+robin:0.5"])
def test_a_mix_of_one_voice_is_that_voice_to_the_bit(demo: Checkpoint, engine: Engine, name: str) -> None:
    assert codes(engine, name).tolist() == codes(engine, "robin").tolist()


def test_an_embedding_in_a_speaker_s_place_speaks_like_the_speaker(demo: Checkpoint, engine: Engine) -> None:
    """The path of mixes, with weights that leave one speaker: its own codes, to the bit."""
    same = Voice(x_vector=embedding(demo, "robin"), mixed_from="robin", checkpoint_fingerprint=demo.fingerprint)
    assert codes(engine, same).tolist() == codes(engine, "robin").tolist()


def test_a_mix_is_none_of_its_parts_and_the_same_under_load(engine: Engine) -> None:
    alone = codes(engine, MIX)
    assert alone.tolist() not in (codes(engine, "robin").tolist(), codes(engine, "mina").tolist())
    voices = [MIX, "robin", "mina", "robin:0.2+otto:0.8"] * 2
    found: list[Any] = [None] * len(voices)

    def speak(place: int) -> None:
        found[place] = codes(engine, voices[place]).tolist()

    threads = [threading.Thread(target=speak, args=(place,)) for place in range(len(voices))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[4] == alone.tolist()
    assert found[3] == found[7] == codes(engine, voices[3]).tolist()


def test_a_speaker_whose_name_looks_like_a_mix_comes_first(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "odd", TINY)
    config = folder / "config.json"
    known = list_speakers(Checkpoint.open(folder))
    config.write_text(config.read_text().replace(f'"{known[0]}"', '"a+b"'))
    odd = Checkpoint.open(folder)
    assert "a+b" in list_speakers(odd)
    assert find_mixed("A+b", odd) is None
    with pytest.raises(InvalidRequestError, match="unknown voice 'a' in the mix"):
        find_mixed(f"a+{known[1]}", odd)


def test_clones_are_mixed_by_how_they_sound(tiny_base: Checkpoint) -> None:
    one, other = clone(tiny_base, 1), clone(tiny_base, 2)
    heard = replace(one, reference_codes=torch.zeros(3, 16, dtype=torch.int64), reference_text_ids=(1, 2))
    mixed = mix_voices([(heard, 3), (other, 1)])
    assert one.x_vector is not None
    assert other.x_vector is not None
    assert mixed.x_vector is not None
    torch.testing.assert_close(mixed.x_vector, 0.75 * one.x_vector + 0.25 * other.x_vector)
    assert not mixed.in_context
    assert mix_voices([(heard, 0.3)]) is heard
    again = Voice.from_bytes(mixed.to_bytes())
    assert (again.kind, again.mixed_from) == ("mix", "clone:0.75+clone:0.25")
    assert again.x_vector is not None
    assert again.x_vector.tolist() == mixed.x_vector.tolist()


def test_voices_without_a_common_space_are_refused(
    tiny_base: Checkpoint, tiny_voice_design: Checkpoint, demo: Checkpoint
) -> None:
    design = Voice.designed("calm")
    with pytest.raises(InvalidRequestError, match=r"is a voice_design model: voices in words have no embeddings"):
        find_mixed(MIX, tiny_voice_design)
    with pytest.raises(InvalidRequestError, match="no embeddings"):
        mix_voices([(design, 1), (Voice.designed("loud"), 1)])
    stranger = replace(clone(tiny_base, 1), checkpoint_fingerprint="another")
    for pair in ([clone(tiny_base, 2), stranger], [clone(tiny_base, 2), Voice.named("robin")]):
        with pytest.raises(InvalidRequestError, match="of several checkpoints"):
            mix_voices([(voice, 1.0) for voice in pair], demo)
    with pytest.raises(InvalidRequestError, match="give the checkpoint"):
        mix_voices([(Voice.named("robin"), 1), (Voice.named("mina"), 1)])
    with pytest.raises(InvalidRequestError, match="expected 1 to 8"):
        mix_voices([])
    with pytest.raises(InvalidRequestError, match="mixed with another checkpoint"):
        PromptPlanner(tiny_base).plan(voice=replace(clone(tiny_base, 1), checkpoint_fingerprint="x", mixed_from="a+b"))


def test_the_command_saves_a_mix_as_a_voice(
    demo: Checkpoint,
    engine: Engine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("kept")
    command.mix("blend", MIX, voices_dir=folder)
    assert [path.name for path in folder.iterdir()] == ["blend.safetensors"]
    assert codes(engine, Voice.load(folder / "blend.safetensors")).tolist() == codes(engine, MIX).tolist()
    command.show("blend", voices_dir=folder)
    assert "mix of robin:0.6+mina:0.4" in capsys.readouterr().out.replace("\n", "")
    command.mix("second", "blend:0.5+otto:0.5", voices_dir=folder)
    for name, parts, complaint in (
        ("blend", MIX, "there is a voice 'blend' already"),
        ("otto", MIX, "named like a speaker"),
        ("a+b", MIX, "cannot be named"),
        ("third", "robin", "names one voice"),
        ("third", "robin:1+robin:2", "is one voice"),
        ("third", "robin+nobody", "unknown voice 'nobody'"),
    ):
        with pytest.raises(InvalidRequestError, match=complaint):
            command.mix(name, parts, voices_dir=folder)
    assert sorted(path.name for path in folder.iterdir()) == ["blend.safetensors", "second.safetensors"]


def test_a_library_mixes_what_it_keeps(tiny_base: Checkpoint, tmp_path: Path) -> None:
    for seed, name in enumerate(("anna", "bert")):
        clone(tiny_base, seed).save(tmp_path / f"{name}.safetensors")
    library = VoiceLibrary(tmp_path, tiny_base, VoiceCache(4, 100.0), 30.0)
    mixed = library.get("Anna:0.5+bert:0.5")
    assert mixed is not None
    assert mixed.kind == "mix"
    assert library.at_hand("anna+bert")
    assert not library.lacks("anna+bert")
    assert library.lacks("anna+carl")
    with pytest.raises(InvalidRequestError, match="unknown voice 'carl'"):
        library.get("anna+carl")
    assert library.get("carl") is None
    deep = "anna" + ":1" * 500
    with pytest.raises(InvalidRequestError, match="unknown voice"):
        library.get(deep)
    library.close()


def test_any_name_ends_in_a_voice_or_a_refusal(demo: Checkpoint) -> None:
    generator = random.Random(1)
    for _ in range(3_000):
        name = "".join(generator.choices(["robin", "mina", ":", "+", "0", ".5", "nan", " ", "e9", "-", "x"], k=9))
        try:
            voice = find_mixed(name, demo)
        except InvalidRequestError:
            continue
        assert voice is None or voice.kind in ("speaker", "mix")
