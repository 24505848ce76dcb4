"""Trials of damaged and of healthy copies, on the demo voice: ``python tests/helpers/quality_damage.py FOLDER RESULT``.

The official package speaks once, in ``FOLDER/control``; each copy is one trial against that speech. Damages are made to
a copy of the checkpoint that only our side reads, or to what our side is asked to say. Killed, it goes on. With
``--similarity none`` only word errors are compared, which takes a third of the time.
"""

import argparse
import json
import random
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from safetensors.torch import load_file, save_file

from megatalker.checkpoint import Checkpoint
from megatalker.cli.bench.report import environment
from megatalker.cli.console import say_plainly
from megatalker.cli.verify.quality_options import CONTROL, QualityOptions
from megatalker.settings import Settings
from megatalker_conformance.quality import trial as trials
from megatalker_conformance.quality.sides import SpeakAll, Task, engine_side
from megatalker_conformance.quality.trial import QualityTrial
from megatalker_conformance.quality.verdict import judge_trial

Side = Callable[..., AbstractContextManager[SpeakAll]]
BLOCK = 32
"""Weights that share a scale in 4 bits."""
HEALTHY = range(11, 31)
"""Other seeds, each of which is a trial of its own with the whole checkpoint: no two share a take of ours."""


def scaled_json(name: str, factor: float, *keys: str) -> Callable[[Path], None]:
    """Return a damage that multiplies numbers of a JSON file, by dotted keys."""

    def damage(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        for key in keys:
            *tables, last = key.split(".")
            table = content
            for each in tables:
                table = table[each]
            table[last] = table[last] * factor
        (folder / name).write_text(json.dumps(content))

    return damage


def louder_layer(folder: Path) -> None:
    path = folder / "speech_tokenizer" / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in sorted(tensors) if name.startswith("decoder.") and tensors[name].ndim == 3)
    tensors[name] = tensors[name] * 1.05
    save_file(tensors, path, {"format": "pt"})


def bad_scales(folder: Path) -> None:
    """Round the talker's matrices to 4 bits, with each block's scale taken from the block before it."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name, tensor in tensors.items():
        if name.startswith("talker.model.layers.") and tensor.ndim == 2:
            blocks = tensor.float().reshape(-1, BLOCK)
            scale = blocks.abs().amax(1, keepdim=True).clamp_min(1e-8) / 7
            rounded = (blocks / scale).round().clamp(-8, 7) * scale.roll(1, 0)
            tensors[name] = rounded.reshape(tensor.shape).to(tensor.dtype)
    save_file(tensors, path, {"format": "pt"})


SPOILED: dict[str, Callable[[Path], None]] = {
    "rotary base of the talker off by 1 %": scaled_json("config.json", 1.01, "talker_config.rope_theta"),
    "one layer of the codec scaled by 1.05": louder_layer,
    "temperature 10 % higher": scaled_json("generation_config.json", 1.1, "temperature", "subtalker_temperature"),
    "a repetition penalty of 1.05 where the checkpoint has none": scaled_json(
        "generation_config.json", 1.05, "repetition_penalty"
    ),
    "4 bits with the scales of other blocks": bad_scales,
}


def on_a_copy(folder: Path, damage: Callable[[Path], None]) -> Side:
    """Our side, on a damaged copy of the checkpoint."""

    @contextmanager
    def side(checkpoint: Checkpoint, *others: Any) -> Iterator[SpeakAll]:
        if folder.exists():
            shutil.rmtree(folder)
        shutil.copytree(checkpoint.folder, folder)
        damage(folder)
        with engine_side(Checkpoint.open(folder), *others) as speak_all:
            yield speak_all

    return side


def dropping_words(share: float) -> Side:
    """Our side, which leaves out this share of words."""

    def shortened(task: Task) -> Task:
        prompt, seed = task
        chance = random.Random(seed)
        kept = [word for word in prompt.text.split() if chance.random() >= share]
        return replace(prompt, text=" ".join(kept) or prompt.text), seed

    @contextmanager
    def side(*place: Any) -> Iterator[SpeakAll]:
        with engine_side(*place) as speak_all:
            yield lambda tasks: speak_all([shortened(task) for task in tasks])

    return side


def run(options: QualityOptions, name: str, seeds: Sequence[int], side: Side = engine_side) -> dict[str, Any]:
    """Run one trial against the speech of the control, which ``options`` name, and return its figures."""
    control, own = options.out, options.out.with_name(name.partition(",")[0].replace(" ", "_").replace("%", "percent"))
    checkpoint, settings = Checkpoint.open("demo"), Settings.read(device="cpu")
    if not own.exists():
        first = QualityTrial.open(checkpoint, settings, options)
        first.speak(CONTROL, _say)
        first.judge(CONTROL, _say)
        for part in ("takes", *(f"judged/{judge.name}" for judge in first.judges.values())):
            shutil.copytree(control / part / CONTROL, own / part / CONTROL)
        shutil.copy(control / "trial.json", own / "trial.json")
    trial = QualityTrial.open(checkpoint, settings, replace(options, out=own, own_seeds=seeds))
    with mock.patch.object(trials, "engine_side", side):
        trial.run(_say)
    result = judge_trial(trial)
    (found,) = json.loads(result.json())["sides"]
    figures = [{key: value for key, value in each.items() if key != "prompts"} for each in found["comparisons"]]
    return {"copy": name, "seeds": list(seeds), "verdict": found["verdict"], "comparisons": figures}


def main() -> None:
    """Run all trials, and write the result after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=2, help="takes of the official package")
    parser.add_argument("--similarity", default="resemblyzer")
    parser.add_argument("--only", default="", help="beginning of the names of copies")
    asked = parser.parse_args()
    judges = {"recogniser": "pocketsphinx", "similarity": asked.similarity}
    options = QualityOptions(asked.folder / "control", size=asked.size, seeds=asked.seeds, **judges)
    command = " ".join(["python tests/helpers/quality_damage.py FOLDER RESULT", *sys.argv[3:]])
    rows = []
    trials_of_all: list[tuple[str, Sequence[int], Side]] = [
        *((name, (1,), on_a_copy(asked.folder / "copy", damage)) for name, damage in SPOILED.items()),
        ("2 % of words dropped", (1,), dropping_words(0.02)),
        *((f"5 % of words dropped, seed {seed}", (seed,), dropping_words(0.05)) for seed in range(1, 11)),
        *((f"healthy, seed {seed}", (seed,), engine_side) for seed in HEALTHY),
    ]
    for name, seeds, side in trials_of_all:
        if not name.startswith(asked.only):
            continue
        rows.append(run(options, name, seeds, side))
        say_plainly(f"{name}: {rows[-1]['verdict']}")
        card: dict[str, Any] = {
            "command": command,
            "prompts": asked.size,
            "official seeds": [*range(1, options.seeds + 1)],
        }
        card |= {"environment": environment(torch.device("cpu"), checkpoint="demo"), "trials": rows}
        asked.result.write_text(json.dumps(card, indent=1) + "\n")


def _say(stage: str, done: int, total: int) -> None:
    if done % 50 == 0:
        say_plainly(f"{stage}: {done} of {total}")


if __name__ == "__main__":
    main()
