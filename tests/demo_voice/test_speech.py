from pathlib import Path

import numpy as np
import pytest
import torch

from demo_voice_helpers import espeak_files
from megatalker_demo_voice.codec_data import CodecData
from megatalker_demo_voice.espeak import EspeakError, EspeakFiles
from megatalker_demo_voice.shards import Shard, ShardRequest, make_shards
from megatalker_demo_voice.speakers import SPEAKERS
from megatalker_demo_voice.speech import FRAME, LEAD_FRAMES
from megatalker_demo_voice.splits import is_held_out


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[Shard]:
    scratch = tmp_path_factory.mktemp("speech")
    files = espeak_files(scratch / "espeak")
    requests = [
        ShardRequest(files, scratch / "speech", "train", 0, 1.0),
        ShardRequest(files, scratch / "again", "train", 0, 1.0),
        ShardRequest(files, scratch / "speech", "held-out", 0, 0.3, held_out=True),
    ]
    return [Shard.load(path) for path in make_shards(requests, 2)]


def test_clips_are_whole_frames_that_begin_and_end_silent(shards: list[Shard]) -> None:
    shard = shards[0]
    assert len(shard.samples) == int(shard.frames.sum()) * FRAME
    assert 0.9 < len(shard.samples) / 24_000 / 60 < 1.5
    end = 0
    for frames in shard.frames.tolist():
        clip = shard.samples[end * FRAME : (end + frames) * FRAME]
        end += frames
        assert not clip[: LEAD_FRAMES * FRAME - 100].any()
        assert np.abs(clip[LEAD_FRAMES * FRAME : (LEAD_FRAMES + 1) * FRAME]).max() > 60
        assert not clip[-4000:].any()


def test_a_seed_gives_the_same_texts_speakers_and_lengths_in_a_fresh_process(shards: list[Shard]) -> None:
    first, again = shards[:2]
    assert first.texts == again.texts
    assert first.speakers.tolist() == again.speakers.tolist()
    assert first.frames.tolist() == again.frames.tolist()


def test_training_and_held_out_text_are_kept_apart(shards: list[Shard]) -> None:
    assert not any(is_held_out(text) for text in shards[0].texts)
    assert all(is_held_out(text) for text in shards[2].texts)


def test_every_speaker_speaks_equally_loud(shards: list[Shard]) -> None:
    owner = np.repeat(shards[0].speakers, shards[0].frames * FRAME)
    voiced = np.abs(shards[0].samples.astype(np.float64)) > 60
    sizes = [
        shards[0].samples[(owner == speaker) & voiced].astype(np.float64).std() for speaker in range(len(SPEAKERS))
    ]
    assert max(sizes) < 1.5 * min(sizes)


def test_phonemes_cover_every_frame(shards: list[Shard]) -> None:
    data = CodecData.gather(shards, torch.device("cpu"))
    spoken = data.phonemes.float().sum(1) / 255
    lead = torch.zeros(len(spoken), dtype=torch.bool)
    for frame in range(LEAD_FRAMES):
        lead[data.starts + frame] = True
    torch.testing.assert_close(spoken[~lead], torch.ones_like(spoken[~lead]), atol=0.05, rtol=0)
    wave, phonemes = data.batch(3, 12)
    assert wave.shape == (3, 12 * FRAME)
    assert phonemes.shape == (3, 12, data.phonemes.shape[1])
    assert 0.01 < float(wave.abs().max()) <= 1


def test_a_folder_without_espeak_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(EspeakError, match=r"portable_espeak\.sh"):
        EspeakFiles.prepare(tmp_path, tmp_path / "scratch")
