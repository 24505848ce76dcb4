"""``codec``: makes speech, trains the codec on it, measures it and writes it in the official layout."""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from megatalker_demo_voice.codec_data import CodecData
from megatalker_demo_voice.codec_export import export_codec, load_codec
from megatalker_demo_voice.codec_report import report_codec
from megatalker_demo_voice.codec_training import CodecPlan, CodecTrainer
from megatalker_demo_voice.crowd import cast, everyone
from megatalker_demo_voice.espeak import EspeakFiles
from megatalker_demo_voice.lineage import store_difference
from megatalker_demo_voice.logs import logger
from megatalker_demo_voice.packing import pack, unpacked
from megatalker_demo_voice.recipe import FALLING, FLAT, VOICE
from megatalker_demo_voice.shards import Shard, ShardRequest, make_shards
from megatalker_demo_voice.spectral import SpectralLoss


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, required=True, help="receives codec-NAME.tar, reports and the state of the run"
    )
    parser.add_argument("--minutes", type=float, default=8.0, help="of training, whatever the machine's speed")
    parser.add_argument("--flat-minutes", type=float, default=0.0, help="then train a codec with full codebooks, too")
    parser.add_argument("--refine", type=Path, help="codec-NAME.tar: train its decoder on, and leave its codes alone")
    parser.add_argument("--crowd", type=int, default=0, help="made-up speakers to learn from, for a voice that clones")
    parser.add_argument("--start", type=Path, help="finished codec to begin with, and to store a difference to")
    parser.add_argument("--hours", type=float, default=15.0, help="of speech to make")
    parser.add_argument("--clips", type=int, default=16, help="of each batch")
    parser.add_argument("--frames", type=int, default=96, help="of each clip; 80 ms each")
    parser.add_argument("--rate", type=float, default=1e-3, help="highest learning rate")
    parser.add_argument(
        "--least-steps", type=int, default=3500, help="smaller batches where there is no time for these"
    )
    parser.add_argument("--check-clips", type=int, default=60)
    parser.add_argument("--shard-minutes", type=float, default=10.0)


def run(options: argparse.Namespace) -> None:
    """See the module."""
    options.out.mkdir(parents=True, exist_ok=True)
    log = logger(options.out / "codec.log")
    device = torch.device(options.device)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    shards, check = speech_for_codec(options, log)
    data = CodecData.gather(shards, device)
    del shards
    log(f"{data.hours:.2f} h of speech, {data.phonemes.shape[1]} phonemes, on {device}")
    loss = SpectralLoss().to(device)
    if options.refine is not None:
        refined = CodecTrainer(_plan(options, "refined", options.minutes), data, loss, device, log)
        refined.refine(load_codec(unpacked(options.refine, options.scratch / "codec-to-refine"), VOICE, FALLING))
        _train(refined, "refined", options, loss, check, log)
        return
    trainer = CodecTrainer(_plan(options, "falling", options.minutes), data, loss, device, log)
    if options.start is not None:
        trainer.start_from(load_codec(unpacked(options.start, options.scratch / "codec-to-start"), VOICE, FALLING))
    _train(trainer, "falling", options, loss, check, log)
    if options.flat_minutes:
        flat = CodecTrainer(_plan(options, "flat", options.flat_minutes), data, loss, device, log)
        flat.continue_from(trainer.codec)
        _train(flat, "flat", options, loss, check, log)


def speech_for_codec(options: argparse.Namespace, log: Callable[[str], None]) -> tuple[list[Shard], Shard]:
    """Shards to train on, half of them with varied rate and pitch, and one to measure on."""
    started = time.monotonic()
    where = EspeakFiles.prepare(options.espeak, options.scratch / "espeak", everyone(options.crowd))
    folder, minutes = options.scratch / "codec-speech", min(options.shard_minutes, options.hours * 60)
    count = max(1, round(options.hours * 60 / minutes))
    requests = [
        ShardRequest(
            where,
            folder,
            f"codec-{options.seed}",
            index,
            minutes,
            short_share=0.1,
            vary=index % 2 == 1,
            crowd=options.crowd,
        )
        for index in range(count)
    ]
    requests.append(
        ShardRequest(where, folder, f"check-{options.seed}", 0, minutes, held_out=True, crowd=options.crowd)
    )
    shards = [Shard.load(path) for path in make_shards(requests, options.processes or os.cpu_count() or 1)]
    log(f"speech made or found in {time.monotonic() - started:.1f} s")
    return shards[:-1], shards[-1]


def _plan(options: argparse.Namespace, name: str, minutes: float) -> CodecPlan:
    return CodecPlan(
        recipe=VOICE,
        sizes=FLAT if name == "flat" else FALLING,
        seconds=minutes * 60,
        clips=options.clips,
        frames=options.frames,
        highest_rate=options.rate,
        least_steps=round(options.least_steps * minutes / options.minutes),
        seed=options.seed,
        state=options.out / f"codec-{name}.state",
        hasten=options.hasten,
    )


def _train(
    trainer: CodecTrainer, name: str, options: argparse.Namespace, loss: torch.nn.Module, check: Shard, log: Any
) -> None:
    trainer.run()
    device = torch.device(options.device)
    folder = options.scratch / f"codec-{name}"
    export_codec(trainer.codec, VOICE, folder)
    if options.start is not None:
        store_difference(folder, unpacked(options.start, options.scratch / "codec-to-start"))
    pack(folder, options.out / f"codec-{name}.tar")
    sizes = FLAT if name == "flat" else FALLING
    shipped = load_codec(folder, VOICE, sizes).place(device)
    speakers = cast(options.crowd, held_out=True)
    report = report_codec(shipped, loss, check, speakers, device, options.check_clips)
    (options.out / f"codec-{name}.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    log(f"{name}: {json.dumps(report)}")
