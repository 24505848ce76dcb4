"""``python -m megatalker_demo_voice STAGE``: each stage of the recipe is one command."""

import argparse
from pathlib import Path

import torch

from megatalker_demo_voice import (
    card_command,
    clones_command,
    codec_command,
    evaluate_command,
    spectrogram_command,
    talker_command,
)

_STAGES = {
    "codec": codec_command,
    "talker": talker_command,
    "evaluate": evaluate_command,
    "clones": clones_command,
    "card": card_command,
    "spectrogram": spectrogram_command,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="megatalker_demo_voice", description=__doc__)
    stages = parser.add_subparsers(dest="stage", required=True)
    for name, module in _STAGES.items():
        stage = stages.add_parser(name, help=(module.__doc__ or "").splitlines()[0])
        stage.add_argument("--espeak", type=Path, help="folder made by portable_espeak.sh; default: the installed one")
        stage.add_argument("--scratch", type=Path, default=Path("scratch"), help="for speech, which may be deleted")
        stage.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
        stage.add_argument("--processes", type=int, help="to make speech with; default: one for each core")
        stage.add_argument("--seed", type=int, default=0)
        stage.add_argument("--hasten", action="store_true", help="bfloat16, and talkers compiled: faster on CPUs")
        module.add_arguments(stage)
    options = parser.parse_args()
    torch.set_flush_denormal(True)  # silence is exactly zero, and numbers next to it are slow on CPUs
    _STAGES[options.stage].run(options)


if __name__ == "__main__":
    main()
