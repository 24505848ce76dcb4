"""The environments of peers are pinned, and the frames that their timing counts are the frames they made."""

import re
from pathlib import Path

import pytest
import torch

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import FRAME_SAMPLES
from megatalker_benchmarks.peers import PEERS, PeerCall, frame_ms, official, timed

FOLDER = Path(__file__).parents[2] / "benchmarks" / "peers"


@pytest.mark.parametrize("peer", PEERS)
def test_each_peer_has_an_environment_in_which_every_version_is_exact(peer: str) -> None:
    lines = [line for line in (FOLDER / f"{peer}.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9.-]+==[A-Za-z0-9.]+", line) for line in lines)
    names = [line.split("==")[0] for line in lines]
    assert {peer, "torch", "transformers"} <= set(names)
    assert len(names) == len(set(names))


def test_no_environment_is_left_of_a_removed_peer() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(PEERS)


def test_frames_are_those_of_the_audio_that_came_back() -> None:
    call = timed(lambda limit: (3 * FRAME_SAMPLES, 0.25), 40, torch.device("cpu"))
    assert (call.frames, call.first_s) == (3, 0.25)
    with pytest.raises(SystemExit, match="no whole number of frames"):
        timed(lambda limit: (3 * FRAME_SAMPLES + 1, None), 40, torch.device("cpu"))


def test_the_cost_of_a_frame_is_the_slope_over_frames_that_came() -> None:
    made = (14, 39, 30, 4)
    assert frame_ms([PeerCall(frames, 0.2 + 0.01 * frames) for frames in made]) == pytest.approx(10)
    with pytest.raises(SystemExit, match="every call made 7 frames"):
        frame_ms([PeerCall(7, 1.0), PeerCall(7, 1.1)])


def test_the_official_package_is_timed_by_the_frames_it_makes(demo: Checkpoint) -> None:
    """Frames on a CPU are counted in the same way as on a GPU, for which the measurement is meant."""
    speak = official(demo.folder, "robin", torch.device("cpu"))
    calls = [timed(speak, limit, torch.device("cpu")) for limit in (3, 6)]
    assert [call.frames for call in calls] == [2, 5]
