"""How long an utterance and its segments may become."""

import json
import shutil
from pathlib import Path

import pytest

from engine_stage import Opener, fakes_with
from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import FRAME_SAMPLES

TWO_SENTENCES = "One sentence is here. Another one is there."


def test_max_frames_bounds_the_utterance_not_a_segment(open_engine: Opener) -> None:
    engine = open_engine(fakes_with(frames=30), max_segment_chars=30)
    for bound, frames, segments, reason in ((45, 45, 2, "max_frames"), (30, 30, 1, "max_frames"), (61, 60, 2, "eos")):
        stream = engine.speak(TWO_SENTENCES, max_frames=bound)
        assert len(stream.read_all()) == frames * FRAME_SAMPLES
        assert (stream.facts().segments, stream.finish_reason) == (segments, reason)


def test_a_segment_is_bounded_as_the_checkpoint_says(
    open_engine: Opener, tiny_custom_voice: Checkpoint, tmp_path: Path
) -> None:
    """``max_new_tokens`` counts the end, which is no frame."""
    folder = Path(shutil.copytree(tiny_custom_voice.folder, tmp_path / "copy"))
    file = folder / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"max_new_tokens": 13}))
    checkpoint = Checkpoint.open(folder)
    endless, short = fakes_with(frames=None), fakes_with(frames=12)
    stream = open_engine(endless, checkpoint=checkpoint).speak(TWO_SENTENCES)
    assert (len(stream.read_all()), stream.finish_reason) == (2 * 12 * FRAME_SAMPLES, "incomplete"), "each sentence"
    stream = open_engine(endless, checkpoint=checkpoint, max_segment_frames=20).speak(TWO_SENTENCES)
    assert (len(stream.read_all()), stream.finish_reason) == (2 * 20 * FRAME_SAMPLES, "incomplete"), "each sentence"
    stream = open_engine(short, checkpoint=checkpoint, max_segment_frames=13, max_segment_chars=30).speak(TWO_SENTENCES)
    assert (len(stream.read_all()), stream.finish_reason) == (24 * FRAME_SAMPLES, "eos"), "each segment anew"


@pytest.mark.parametrize("layout", ["upfront", "interleaved"])
def test_a_bound_that_a_segment_reaches_with_its_end_ends_there(open_engine: Opener, layout: str) -> None:
    engine = open_engine(fakes_with(frames=30), max_segment_chars=30, max_frames=60)
    stream = engine.speak(TWO_SENTENCES, layout=layout)
    assert len(stream.read_all()) == 60 * FRAME_SAMPLES
    assert stream.finish_reason == "max_frames"
