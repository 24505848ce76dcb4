"""Results of oracles are kept on disk, and only while they are valid."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.plugins import BackendRegistry
from megatalker.testing.random_checkpoint import TINY, write_checkpoint
from megatalker_conformance.cases import Cases
from megatalker_conformance.kept import Kept, OracleClock, content
from megatalker_conformance.oracle import Oracle
from megatalker_conformance.streams import GREEDY
from waiting import HANG_S, PROCESS_S


class CountingOracle:
    """Computes one tensor, and counts how often."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> dict[str, Tensor]:
        self.calls += 1
        return {"codes": torch.arange(self.calls)}


@pytest.fixture
def make() -> CountingOracle:
    return CountingOracle()


def test_equal_inputs_are_computed_once(tmp_path: Path, make: CountingOracle) -> None:
    first = Kept("fact", folder=tmp_path / "new").get(("codes", 3), make)
    again = Kept("fact", folder=tmp_path / "new").get(("codes", 3), make)
    assert make.calls == 1
    assert torch.equal(first["codes"], again["codes"])


def test_other_inputs_and_other_facts_are_computed_anew(tmp_path: Path, make: CountingOracle) -> None:
    for facts, inputs in ((("fact",), 3), (("fact",), 4), (("other",), 3)):
        Kept(*facts, folder=tmp_path).get(inputs, make)
    assert make.calls == 3


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:5], lambda data: b"", lambda _: b"x"])
def test_a_damaged_file_is_computed_again_and_replaced(tmp_path: Path, make: CountingOracle, damage) -> None:
    kept = Kept(folder=tmp_path)
    kept.get(0, make)
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    for _ in range(2):
        assert len(kept.get(0, make)["codes"]) == 2
    assert make.calls == 2


def test_others_wait_for_the_one_that_computes(tmp_path: Path, make: CountingOracle) -> None:
    computing, again = threading.Event(), threading.Event()

    def slowly() -> dict[str, Tensor]:
        (again if computing.is_set() else computing).set()
        again.wait(0.5)  # long enough for the second, were it let in
        return make()

    threads = [threading.Thread(target=Kept(folder=tmp_path).get, args=(0, slowly)) for _ in range(2)]
    threads[0].start()
    assert computing.wait(HANG_S)
    threads[1].start()
    for thread in threads:
        thread.join(HANG_S)
    assert make.calls == 1


def test_what_does_not_suffice_is_computed_again(tmp_path: Path, make: CountingOracle) -> None:
    kept = Kept(folder=tmp_path)
    for _ in range(2):
        kept.get(0, make, lambda found: len(found["codes"]) >= 2)
    assert make.calls == 2


def test_files_that_nobody_reads_are_removed(tmp_path: Path, make: CountingOracle) -> None:
    old, recent = tmp_path / "old", tmp_path / "recent"
    for path in (old, recent):
        path.write_bytes(b"")
    os.utime(old, (0, 0))
    Kept(folder=tmp_path).get(0, make)
    assert not old.exists()
    assert recent.exists()


def test_an_unwritable_folder_is_named_and_costs_only_time(tmp_path: Path, make: CountingOracle) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="cannot be kept in .*file"):
        assert len(Kept(folder=tmp_path / "file").get(0, make)["codes"]) == 1


@pytest.mark.slow
def test_processes_share_a_folder(tmp_path: Path) -> None:
    """Each of three processes reads complete results while the others write."""
    script = (
        "import sys, torch\nfrom pathlib import Path\nfrom megatalker_conformance.kept import Kept\n"
        "kept = Kept(folder=Path(sys.argv[1]))\n"
        "for turn in range(60):\n"
        "    for name in range(5):\n"
        "        enough = lambda found: turn % 3 == 0\n"
        "        found = kept.get(name, lambda: {'x': torch.full((9999,), name)}, enough)\n"
        "        assert (found['x'] == name).all()\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path)]) for _ in range(3)]
    assert [process.wait(PROCESS_S) for process in running] == [0, 0, 0]
    assert len(list(tmp_path.iterdir())) == 5


def test_contents_differ_by_value_shape_and_type() -> None:
    zeros = torch.zeros(2, 3)
    assert content(zeros) == content(torch.zeros(3, 2).T)
    assert len({content(each) for each in (zeros, zeros.T, zeros.int(), zeros + 1, torch.zeros(()))}) == 5


def test_one_changed_weight_is_another_checkpoint(tmp_path: Path, make: CountingOracle) -> None:
    folder = write_checkpoint(tmp_path / "tiny", TINY)
    cpu = torch.device("cpu")
    Kept.open(Checkpoint.open(folder), cpu, folder=tmp_path / "kept").get(0, make)
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[len(data) // 64 * 10 - 8] ^= 1  # where the checkpoint's own fingerprint takes no sample
    weights.write_bytes(data)
    Kept.open(Checkpoint.open(folder), cpu, folder=tmp_path / "kept").get(0, make)
    assert make.calls == 2


def test_the_oracle_asks_reference_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    checkpoint = Checkpoint.open(write_checkpoint(tmp_path / "tiny", TINY))
    case = Cases(checkpoint).rows(4, GREEDY)
    end = (checkpoint.config.codec_eos_id, *[0] * 15)

    def ask(frames: int) -> tuple[object, ...]:
        oracle = Oracle(BackendRegistry.installed(), checkpoint, torch.device("cpu"))
        codes = oracle.codes(case, frames)
        ended = oracle.follow(case, [None, codes[0], end])
        logits = oracle.logits(case, codes[:2])
        oracle.close()
        return codes, ended.codes, ended.logits.talker.tolist(), logits.predictor.tolist()

    OracleClock.take()
    first = ask(3)
    assert OracleClock.take() > 0
    assert ask(3) == first
    assert OracleClock.take() == 0
    assert first[1][1:] == [first[0][0], None]  # type: ignore[index]
    assert ask(2)[0] == first[0][:2]  # type: ignore[index]
    assert ask(4)[0][:3] == first[0]  # type: ignore[index]
