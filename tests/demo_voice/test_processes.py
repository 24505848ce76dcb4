import os
import subprocess
import sys
from pathlib import Path

import pytest

from waiting import PROCESS_S

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
from contextlib import suppress
from pathlib import Path
import torch
import torch.distributed as dist
from demo_voice_helpers import SMALL
from megatalker_demo_voice.processes import Processes
from megatalker_demo_voice.talker_data import TrainingLayout, TalkerData
from megatalker_demo_voice.talker_export import parsed_config
from megatalker_demo_voice.talker_training import TalkerPlan, TalkerTrainer
from megatalker.checkpoint.template import role_ids
from megatalker.checkpoint.tokenizer import load_tokenizer
from megatalker_demo_voice.tokens import encode_texts


def main(folder):
    processes = Processes.start("cpu")
    team, group = processes.team(1)
    tokenizer = load_tokenizer(folder)
    config = parsed_config(SMALL, folder)
    codes = torch.randint(0, 128, (20, 16), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    ids = encode_texts(tokenizer, ["One two.", "Three."])
    data = TalkerData.build(codes, [12, 8], ids, [1141, 1142], [0, 1], processes.device)
    layout = TrainingLayout(config, role_ids(tokenizer), "english", processes.device)
    plan = TalkerPlan(config, 2.0, 128, 1e-3, 0.2, 0.0, 0, folder / "state", 1e9, False)
    trainer = TalkerTrainer(plan, data, layout, processes.device, lambda line: None, group)
    before = torch.cat([parameter.detach().flatten() for parameter in trainer.talker.parameters()])
    trainer.run(lambda share: None)
    after = torch.cat([parameter.detach().flatten() for parameter in trainer.talker.parameters()])
    assert not torch.equal(before, after)
    others = [torch.empty_like(after) for _ in range(processes.count)]
    dist.all_gather(others, after)
    assert all(torch.equal(other, after) for other in others), "processes of a team must hold the same talker"
    processes.stop()


main(Path(sys.argv[1]))
threads = []
for name in Path("/proc/self/task").glob("*/comm"):
    with suppress(OSError):  # it has ended since
        threads.append(name.read_text())
assert not any("gloo" in thread for thread in threads), f"processes that stopped must leave no thread behind: {threads}"
"""


def test_two_processes_train_one_talker(tmp_path: Path) -> None:
    from megatalker_demo_voice.tokens import write_tokenizer

    write_tokenizer(tmp_path)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")]), *sys.path]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launch, str(program), str(tmp_path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PROCESS_S,
    )
    assert done.returncode == 0, done.stderr
