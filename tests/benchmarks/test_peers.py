"""The environments of peers are pinned."""

import re
from pathlib import Path

import pytest

from megatalker_benchmarks.peers import PEERS

FOLDER = Path(__file__).parents[2] / "benchmarks" / "peers"


@pytest.mark.parametrize("peer", PEERS)
def test_each_peer_has_an_environment_in_which_every_version_is_exact(peer: str) -> None:
    lines = [line for line in (FOLDER / f"{peer}.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9.-]+==[A-Za-z0-9.]+", line) for line in lines)
    names = [line.split("==")[0] for line in lines]
    assert {peer, "torch", "transformers"} <= set(names)
    assert len(names) == len(set(names))


def test_no_environment_is_left_of_what_is_no_peer() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(PEERS)
