"""``talker``: makes speech, turns it into codes, trains talkers on it, measures them and writes them."""

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from megatalker.checkpoint.template import role_ids
from megatalker.checkpoint.tokenizer import load_tokenizer
from megatalker_demo_voice.codec_export import load_codec
from megatalker_demo_voice.crowd import cast, everyone
from megatalker_demo_voice.espeak import EspeakFiles
from megatalker_demo_voice.lineage import store_difference, talker_weights
from megatalker_demo_voice.listener import SpeakerListener
from megatalker_demo_voice.logs import logger
from megatalker_demo_voice.packing import pack, unpacked
from megatalker_demo_voice.processes import Processes
from megatalker_demo_voice.recipe import CANDIDATES, FALLING, FLAT, TrainingRun
from megatalker_demo_voice.references import References
from megatalker_demo_voice.shards import ShardRequest
from megatalker_demo_voice.speakers import SPEAKERS, EspeakSpeaker
from megatalker_demo_voice.talker_data import TalkerData, TrainingLayout
from megatalker_demo_voice.talker_export import LANGUAGE, export_talker, parsed_config
from megatalker_demo_voice.talker_model import NO_CODE
from megatalker_demo_voice.talker_report import report_talker
from megatalker_demo_voice.talker_speech import CodedShard, code_shards, load_coded
from megatalker_demo_voice.talker_training import TalkerPlan, TalkerTrainer
from megatalker_demo_voice.tokens import encode_texts, write_tokenizer

_SHORT_SHARE = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, help="receives talker-NAME.tar and reports")
    parser.add_argument("--codec", type=Path, required=True, help="codec-falling.tar, or its folder")
    parser.add_argument("--flat-codec", type=Path, help="codec-flat.tar, for candidates with full codebooks")
    parser.add_argument("--candidates", default="voice", help=f"to train at once, of {', '.join(CANDIDATES)}")
    parser.add_argument("--crowd", type=int, default=0, help="made-up speakers to learn from, for a voice that clones")
    parser.add_argument("--start", type=Path, help="checkpoint folder to begin with, and to store a difference to")
    parser.add_argument("--minutes", type=float, default=8.0, help="of training, whatever the machine's speed")
    parser.add_argument("--hours", type=float, default=150.0, help="of speech to make")
    parser.add_argument("--check-minutes", type=float, default=20.0, help="of speech to measure on")
    parser.add_argument("--shard-minutes", type=float, default=20.0)
    parser.add_argument("--rows", type=int, default=16384, help="of a batch, in each process")
    parser.add_argument("--save-every", type=float, default=75.0, help="seconds between exports and reports")
    parser.add_argument("--no-capture", action="store_true", help="do not record steps as CUDA graphs")


def run(options: argparse.Namespace) -> None:
    """See the module."""
    processes = Processes.start(options.device)
    torch.set_float32_matmul_precision("high")
    options.out.mkdir(parents=True, exist_ok=True)
    candidates = [CANDIDATES[name] for name in options.candidates.split(",")]
    if {candidate.recipe.variant == "base" for candidate in candidates} != {options.crowd > 0}:
        raise ValueError("--crowd goes with the candidate base, and with no other")
    team, group = processes.team(len(candidates))
    candidate = candidates[team]
    log = logger(options.out / f"talker-{candidate.name}.log")
    train, check = coded_speech(options, processes, candidates, log)
    tokenizer_folder = options.scratch / f"tokenizer-{processes.rank}"
    write_tokenizer(tokenizer_folder)
    tokenizer = load_tokenizer(tokenizer_folder)
    config = parsed_config(candidate.recipe, tokenizer_folder)
    codec = "flat" if candidate.flat_codes else "falling"
    data, check_data = (
        TalkerData.build(
            torch.from_numpy(shard.codes[codec]),
            shard.frames.tolist(),
            encode_texts(tokenizer, shard.texts),
            [
                NO_CODE if options.crowd else config.speakers[SPEAKERS[speaker].name]
                for speaker in shard.speakers.tolist()
            ],
            shard.speakers.tolist(),
            processes.device,
        )
        for shard in (train, check)
    )
    listener = check_listener = None
    if options.crowd:
        listener, check_listener = (
            _listener(candidate, shard, cast(options.crowd, held_out=shard is check), processes.device)
            for shard in (train, check)
        )
        # what is learned is what is measured, on other voices
        check_listener.encoder = listener.encoder
        data = data.with_pairs()
    log(
        f"{len(data)} utterances, {len(data.codes) / 45_000:.1f} h, "
        f"{len(data.text) / len(data.codes):.2f} tokens a frame"
    )
    del train, check
    layout = TrainingLayout(config, role_ids(tokenizer), LANGUAGE, processes.device)
    plan = TalkerPlan(
        config=config,
        seconds=options.minutes * 60,
        rows=options.rows,
        highest_rate=candidate.highest_rate,
        damage=candidate.damage,
        kept_damage=candidate.kept_damage,
        seed=options.seed,
        state=options.scratch / f"talker-{candidate.name}.state",
        save_every=options.save_every,
        capture=processes.device.type == "cuda" and not options.no_capture,
        hasten=options.hasten,
    )
    start = talker_weights(options.start) if options.start else None
    trainer = TalkerTrainer(plan, data, layout, processes.device, log, group, start, listener)
    folder = options.scratch / f"talker-{candidate.name}"

    def watch(share: float) -> None:
        report = report_talker(trainer.talker, layout, check_data, config.codec_eos_id, check_listener)
        encoder = None if listener is None else listener.encoder
        export_talker(trainer.talker, candidate.recipe, tokenizer_folder, folder, encoder)
        if options.start is not None:
            store_difference(folder, options.start)
        (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        pack(folder, options.out / f"talker-{candidate.name}.tar")
        log(f"{candidate.name} at {share:.0%}: {json.dumps(report)}")

    trainer.run(watch)
    processes.stop()


def _listener(
    candidate: TrainingRun, shard: CodedShard, speakers: Sequence[EspeakSpeaker], device: torch.device
) -> SpeakerListener:
    references = References.build(shard.mels, shard.mel_speakers, len(speakers), device)
    return SpeakerListener(candidate.recipe, speakers, references)


def coded_speech(
    options: argparse.Namespace, processes: Processes, candidates: list[TrainingRun], log: Callable[[str], None]
) -> tuple[CodedShard, CodedShard]:
    """Codes to train on and to measure on; each process makes its share of them."""
    started = time.monotonic()
    where = EspeakFiles.prepare(options.espeak, options.scratch / f"espeak-{processes.rank}", everyone(options.crowd))
    speech, codes = options.scratch / "talker-speech", options.scratch / "talker-codes"
    count = max(1, round(options.hours * 60 / options.shard_minutes))
    requests = [
        ShardRequest(
            where, speech, f"talker-{options.seed}", index, options.shard_minutes, _SHORT_SHARE, crowd=options.crowd
        )
        for index in range(count)
    ]
    check = [
        ShardRequest(
            where,
            speech,
            f"talker-check-{options.seed}",
            0,
            options.check_minutes,
            _SHORT_SHARE,
            held_out=True,
            crowd=options.crowd,
        )
    ]
    wanted = {candidate.flat_codes for candidate in candidates}
    if True in wanted and options.flat_codec is None:
        raise ValueError("a candidate with full codebooks needs --flat-codec")
    codecs = {}
    for flat, name, path, sizes in (
        (False, "falling", options.codec, FALLING),
        (True, "flat", options.flat_codec, FLAT),
    ):
        if flat in wanted:
            folder = unpacked(path, options.scratch / f"codec-{processes.rank}")
            codecs[name] = load_codec(folder, candidates[0].recipe, sizes).place(processes.device)
    workers = options.processes or max(1, (os.cpu_count() or 1) // processes.count)
    mine = [*check, *requests][processes.rank :: processes.count]
    code_shards(mine, codecs, codes, workers, processes.device)
    processes.wait_for_all()
    log(f"speech made, coded or found in {time.monotonic() - started:.1f} s")
    return load_coded(requests, codes), load_coded(check, codes)
