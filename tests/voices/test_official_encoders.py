"""Cloning, held to the official encoders: the same codes and embeddings of recordings of every kind."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from numpy.typing import NDArray
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.official import load_official_model, quiet, why_no_official
from megatalker.errors import CheckpointError
from megatalker.testing.random_checkpoint import write_checkpoint
from megatalker.testing.recipe import PUBLISHED_0B6, TINY, CheckpointRecipe, StackSizes
from megatalker.voices import VoiceCloner, clone_voice, read_reference
from megatalker_backends.streaming.encoder.convolution import PIECE, StridedConv
from megatalker_backends.streaming.encoder.encoder import CodecEncoder
from megatalker_conformance.one_prompt import OnePromptBuilder
from voice_recordings import speech

pytestmark = pytest.mark.skipif(why_no_official() is not None, reason=str(why_no_official()))

CPU = torch.device("cpu")
CLOSE = 1e-5
WORDS = "This is what I said before."
RATES = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 47_999, 48_000)
FORMATS = ("WAV", "FLAC", "MP3", "OGG", "M4A", "FLOAT")
PUBLISHED = replace(
    TINY,
    variant="base",
    codec=replace(
        TINY.codec,
        codebook_dim=PUBLISHED_0B6.codec.codebook_dim,
        encoder=PUBLISHED_0B6.codec.encoder,
        encoder_filters=PUBLISHED_0B6.codec.encoder_filters,
        encoder_quantizers=PUBLISHED_0B6.codec.encoder_quantizers,
    ),
    speaker_encoder=PUBLISHED_0B6.speaker_encoder,
    codebook_size=PUBLISHED_0B6.codebook_size,
)
"""Both encoders at the published shapes; a talker and a decoder that are not used are small."""
GROUPED = replace(
    TINY,
    variant="base",
    codec=replace(
        TINY.codec, encoder=StackSizes(hidden=32, intermediate=48, layers=3, heads=4, kv_heads=2, head_dim=16)
    ),
)


@dataclass(frozen=True, slots=True)
class SampleFile:
    """One file to make and to clone."""

    seconds: float
    rate: int
    channels: int
    format: str
    pitch: float

    @property
    def name(self) -> str:
        return f"{self.seconds:.2f}s-{self.rate}-{self.channels}ch-{self.format.lower()}"

    def write(self, folder: Path) -> Path:
        mono = speech(self.seconds, self.pitch, self.rate)
        levels = np.linspace(1, 0.4, self.channels, dtype=np.float32)
        audio = mono[:, None] * levels
        if self.format == "M4A":
            return _aac(folder / "voice.m4a", audio, self.rate)
        path = folder / f"voice.{'wav' if self.format == 'FLOAT' else self.format.lower()}"
        container = "WAV" if self.format == "FLOAT" else self.format
        soundfile.write(path, audio, self.rate, format=container, subtype="FLOAT" if self.format == "FLOAT" else None)
        return path


def _files() -> Iterator[SampleFile]:
    """Sixty: each rate in each format; lengths from half a second to half a minute, of whole and broken frames."""
    for index in range(len(RATES) * len(FORMATS)):
        rate, kind = RATES[index % len(RATES)], FORMATS[index // len(RATES)]
        if kind in ("MP3", "M4A") and rate == 47_999:
            rate = 48_000  # the only ones that these formats have
        seconds = 0.5 * 60 ** (index * 7 % 60 / 59) + 1 / rate * (index % 5)
        yield SampleFile(seconds, rate, 1 + index % 3 % 2, kind, 90.0 + 3 * index)


RECORDINGS = list(_files())


def _aac(path: Path, audio: NDArray[np.float32], rate: int) -> Path:
    av = pytest.importorskip("av")
    layout = "mono" if audio.shape[1] == 1 else "stereo"
    with av.open(path, "w") as file:
        stream = file.add_stream("aac", rate=rate, layout=layout)
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(audio.T), format="fltp", layout=layout)
        frame.sample_rate = rate
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            file.mux(packet)
    return path


Official = Callable[[Any], tuple[Tensor, Tensor]]


def official_encoders(checkpoint: Checkpoint) -> Official:
    """Return a function from a file, or samples at 24 kHz, to the official embedding and codes."""
    model = load_official_model(checkpoint, CPU, torch.float32)

    def encode(source: str | NDArray[np.float32]) -> tuple[Tensor, Tensor]:
        given = source if isinstance(source, str) else (source, 24_000)
        with quiet():  # audioread, which librosa reads files by, imports what a later Python leaves out
            [item] = model.create_voice_clone_prompt(given, WORDS)
        return item.ref_spk_embedding, item.ref_code

    return encode


@pytest.fixture(scope="module")
def base() -> Checkpoint:
    return Checkpoint.open("demo-base")


@pytest.fixture(scope="module")
def official(base: Checkpoint) -> Official:
    return official_encoders(base)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[CheckpointRecipe], Checkpoint]:
    return lambda recipe: Checkpoint.open(write_checkpoint(tmp_path_factory.mktemp("checkpoint"), recipe))


def expect_equal(cloner: VoiceCloner, samples: NDArray[np.float32], expected: tuple[Tensor, Tensor]) -> None:
    voice = cloner.clone(samples, reference_text=WORDS, trim=False)
    embedding, codes = expected
    assert voice.x_vector is not None
    assert voice.reference_codes is not None
    assert voice.reference_codes.shape == codes.shape == (-(-len(samples) // 1920), 16)
    assert torch.equal(voice.reference_codes, codes)
    assert (voice.x_vector - embedding).abs().max() <= CLOSE


def test_there_are_sixty_of_every_kind() -> None:
    assert len({recording.name for recording in RECORDINGS}) == 60
    assert {recording.channels for recording in RECORDINGS} == {1, 2}
    assert min(recording.seconds for recording in RECORDINGS) < 0.51
    assert max(recording.seconds for recording in RECORDINGS) > 29.9


@pytest.mark.slow
@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda recording: recording.name)
def test_codes_and_embedding_are_the_official_ones(
    base: Checkpoint, official: Official, recording: SampleFile, tmp_path: Path
) -> None:
    path = recording.write(tmp_path)
    samples = read_reference(path)
    readable = recording.format != "M4A"  # by the official package
    with VoiceCloner(base) as cloner:
        expect_equal(cloner, samples, official(str(path) if readable else samples))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [PUBLISHED, GROUPED], ids=["published shapes", "grouped queries"])
def test_random_weights_give_the_official_codes(
    recipe: CheckpointRecipe, written: Callable[[CheckpointRecipe], Checkpoint]
) -> None:
    checkpoint = written(recipe)
    encode = official_encoders(checkpoint)
    noise = np.random.default_rng(0)
    with VoiceCloner(checkpoint) as cloner:
        for count in (1920, 1921, 12_345, 36_001, PIECE + 1, 2 * PIECE - 1, 2 * PIECE + 1919, 5 * PIECE // 2):
            samples = speech(count / 24_000, 140.0) + noise.normal(0, 0.02, count).astype(np.float32)
            expect_equal(cloner, samples, encode(samples))


def test_spoken_prompts_are_those_of_the_official_encoders(base: Checkpoint, official: Official) -> None:
    samples = speech(2.3, 150.0)
    embedding, codes = official(samples)
    ours = clone_voice(base, samples, reference_text=WORDS, trim=False)
    theirs = replace(ours, x_vector=embedding.clone(), reference_codes=codes.clone())
    prompts = OnePromptBuilder(base, CPU, torch.float32)
    assert torch.equal(prompts.build([5, 6, 7], voice=ours).embeds, prompts.build([5, 6, 7], voice=theirs).embeds)


def test_a_long_recording_is_encoded_in_pieces_with_the_same_codes(
    base: Checkpoint, official: Official, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest, run = [0], StridedConv.forward

    def watched(conv: StridedConv, signal: Tensor, ends: Any) -> Tensor:
        longest.append(signal.shape[2])
        return run(conv, signal, ends)

    monkeypatch.setattr(StridedConv, "forward", watched)
    samples = speech(58.3, 150.0)
    codes = CodecEncoder(base, CPU).encode(torch.from_numpy(samples))
    assert PIECE <= max(longest) < 2 * PIECE
    assert torch.equal(codes, official(samples)[1])


def test_the_same_recording_has_the_same_codes_every_time(base: Checkpoint) -> None:
    samples = speech(9.1, 150.0)
    first, second = (clone_voice(base, samples, reference_text=WORDS) for _ in range(2))
    assert first.reference_codes is not None
    assert second.reference_codes is not None
    assert torch.equal(first.reference_codes, second.reference_codes)
    assert not first.reference_codes.is_inference()
    assert first.x_vector is not None
    assert second.x_vector is not None
    assert torch.equal(first.x_vector, second.x_vector)
    assert not first.x_vector.is_inference()


def test_of_equal_entries_the_first_is_taken(base: Checkpoint) -> None:
    encoder, audio = CodecEncoder(base, CPU), torch.from_numpy(speech(1.0))
    for books in encoder._books:
        books._entries = [entries[:64].repeat(entries.shape[0] // 64, 1) for entries in books._entries]
    assert encoder.encode(audio).max() < 64


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("hidden_act", "relu", "hidden_act is 'relu', expected 'gelu'"),
        ("use_causal_conv", False, "use_causal_conv is False, expected True"),
        ("upsampling_ratios", [8, 6, 5], "expected integers whose product is 960"),
        ("num_hidden_layers", "two", "expected an integer"),
        ("num_filters", 64, "belong to different checkpoints"),
        ("_frame_rate", 25, "_frame_rate is 25, expected 12.5"),
        ("num_semantic_quantizers", 16, "num_semantic_quantizers is 16"),
        ("codebook_size", 4096, "codebook_size is 4096"),
    ],
)
def test_an_encoder_of_another_kind_is_refused_by_name(
    tiny_base: Checkpoint, tmp_path: Path, key: str, value: object, expected: str
) -> None:
    folder = shutil.copytree(tiny_base.folder, tmp_path / "copy")
    file = folder / "speech_tokenizer" / "config.json"
    content = json.loads(file.read_text())
    content["encoder_config"][key] = value
    file.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=re.escape(expected)):
        clone_voice(Checkpoint.open(folder), speech(), reference_text=WORDS)


@pytest.mark.parametrize(
    ("key", "value"), [("encoder_valid_num_quantizers", 8), ("encoder_config.num_semantic_quantizers", 20)]
)
def test_an_encoder_whose_codes_do_not_fit_the_talker_is_refused(
    written: Callable[[CheckpointRecipe], Checkpoint], key: str, value: int
) -> None:
    folder = written(replace(TINY, variant="base", codec=replace(TINY.codec, encoder_quantizers=32))).folder
    file = folder / "speech_tokenizer" / "config.json"
    content = json.loads(file.read_text())
    place = content["encoder_config"] if "." in key else content
    place[key.rpartition(".")[2]] = value
    file.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=rf"{key} is {value}, expected (decoder_config|less than)"):
        clone_voice(Checkpoint.open(folder), speech(), reference_text=WORDS)
