"""``evaluate``: puts talker and codec together and lets an independent recogniser judge what they say."""

import argparse
import json
import random
import shutil
import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from megatalker import Checkpoint, Engine, SamplingParams
from megatalker_conformance.intelligibility import DIGIT_STRINGS, SENTENCES, WORD_ROWS, Examiner, Pcm, Say
from megatalker_demo_voice.codec_export import load_codec
from megatalker_demo_voice.codec_model import TrainableCodec
from megatalker_demo_voice.espeak import Espeak, EspeakFiles
from megatalker_demo_voice.logs import logger
from megatalker_demo_voice.packing import unpacked
from megatalker_demo_voice.recipe import FALLING, VOICE
from megatalker_demo_voice.speakers import SPEAKERS
from megatalker_demo_voice.speech import FRAME, speak
from megatalker_demo_voice.talker_export import LANGUAGE
from megatalker_demo_voice.text import TextSource

_MAX_FRAMES = 600


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, help="receives checkpoint/ and evaluation.json")
    parser.add_argument(
        "--judge", default="voice", choices=("voice", "codec", "source"),
        help="the voice, espeak-ng through the codec, or espeak-ng itself",
    )  # fmt: skip
    parser.add_argument("--talker", type=Path, help="talker-NAME.tar; left out: judge --checkpoint")
    parser.add_argument("--codec", type=Path, help="codec-falling.tar")
    parser.add_argument("--checkpoint", type=Path, help="a whole checkpoint folder")
    parser.add_argument("--backend", default="compiled")
    parser.add_argument("--speakers", default=",".join(speaker.name for speaker in SPEAKERS))
    parser.add_argument("--items", type=int, default=20, help="digit strings, word rows and sentences for each speaker")
    parser.add_argument("--endings", type=int, default=100, help="texts whose end and duration are checked")
    parser.add_argument("--temperature", type=float, help="in place of the checkpoint's own, for both samplers")
    parser.add_argument("--greedy", action="store_true")
    parser.add_argument("--layout", default="auto", choices=("auto", "interleaved", "upfront"))


def run(options: argparse.Namespace) -> None:
    """See the module."""
    options.out.mkdir(parents=True, exist_ok=True)
    log = logger(options.out / "evaluate.log")
    espeak = Espeak(EspeakFiles.prepare(options.espeak, options.scratch / "espeak-evaluate"))
    if options.judge == "voice":
        result = _judge_voice(options, espeak, log)
    else:
        codec = None
        if options.judge == "codec":
            codec = load_codec(unpacked(options.codec, options.scratch / "judged"), VOICE, FALLING)
        result = {name: _judge(_original(espeak, codec, name), name, options, log) for name in _speakers(options)}
    (options.out / "evaluation.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def _judge_voice(options: argparse.Namespace, espeak: Espeak, log: Callable[[str], None]) -> dict[str, Any]:
    folder = options.checkpoint or assemble(options.talker, options.codec, options.out / "checkpoint", options.scratch)
    checkpoint = Checkpoint.open(folder)
    sampling = _sampling(checkpoint, options)
    result: dict[str, Any] = {"sampling": str(sampling), "bytes": _size(folder)}
    with Engine.open(
        checkpoint=checkpoint,
        backend=options.backend,
        codec="streaming",
        device="cpu",
        runaway_guard=False,
        short_speech="believe",
    ) as engine:
        engine.warmup()
        for name in _speakers(options):
            result[name] = _judge(_spoken(engine, name, sampling, options), name, options, log)
        if options.endings:
            result["endings"] = _endings(engine, espeak, sampling, options)
            log(json.dumps(result["endings"]))
    return result


def _speakers(options: argparse.Namespace) -> list[str]:
    names: list[str] = options.speakers.split(",")
    return names


def assemble(talker: Path, codec: Path, folder: Path, scratch: Path) -> Path:
    """A complete checkpoint from the results of the two trainings."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(unpacked(talker, scratch / "assemble"), folder)
    shutil.copytree(unpacked(codec, scratch / "assemble"), folder / "speech_tokenizer")
    (folder / "report.json").unlink(missing_ok=True)
    return folder


def _sampling(checkpoint: Checkpoint, options: argparse.Namespace) -> SamplingParams:
    sampling = checkpoint.sampling
    if options.temperature is not None:
        sampling = replace(sampling, temperature=options.temperature, predictor_temperature=options.temperature)
    if options.greedy:
        sampling = replace(sampling, do_sample=False, predictor_do_sample=False)
    return sampling


def _spoken(engine: Engine, speaker: str, sampling: SamplingParams, options: argparse.Namespace) -> Say:
    def say(text: str) -> Pcm:
        stream = engine.speak(
            text, voice=speaker, language=LANGUAGE, sampling=sampling, seed=options.seed,
            layout=options.layout, max_frames=_MAX_FRAMES,
        )  # fmt: skip
        return np.concatenate([chunk.pcm for chunk in stream])

    return say


def _original(espeak: Espeak, codec: TrainableCodec | None, speaker: str) -> Say:
    """espeak-ng, after a round trip through ``codec`` if there is one."""
    known = next(known for known in SPEAKERS if known.name == speaker)

    def say(text: str) -> Pcm:
        clip = speak(espeak, text, known)
        if clip is None:
            raise ValueError(f"espeak-ng says nothing for {text!r}")
        wave = torch.from_numpy(clip.samples).float().unsqueeze(0) / 32768
        if codec is not None:
            wave = codec.from_codes(codec.encode(wave)).wave.clamp(-1, 1)
        return wave[0].numpy()

    return say


def _judge(say: Say, speaker: str, options: argparse.Namespace, log: Callable[[str], None]) -> dict[str, Any]:
    examiner, out = Examiner(cache(say)), {}
    for name, exam, texts in (
        ("digits", examiner.digits, DIGIT_STRINGS),
        ("words", examiner.words, WORD_ROWS),
        ("sentences", examiner.sentences, SENTENCES),
    ):
        understood = exam(texts[: options.items])
        out[name] = {"share": round(understood.share, 4), "control": round(understood.control, 4)}
        log(f"{speaker} {name}: {out[name]}")
    return out


def _endings(engine: Engine, espeak: Espeak, sampling: SamplingParams, options: argparse.Namespace) -> dict[str, Any]:
    """Held-out texts of every kind: do they end by themselves, after how long, and how fast are they made?"""
    rng, source = random.Random(options.seed), TextSource(f"endings-{options.seed}")
    reasons: list[str] = []
    ratios, rtfs, firsts = [], [], []
    while len(reasons) < options.endings:
        text = source.held_out_utterance()
        speaker = rng.randrange(len(SPEAKERS))
        clip = speak(espeak, text, SPEAKERS[speaker])
        if clip is None:
            continue
        stream = engine.speak(
            text, voice=SPEAKERS[speaker].name, language=LANGUAGE, sampling=sampling, seed=len(reasons),
            layout=options.layout, max_frames=_MAX_FRAMES,
        )  # fmt: skip
        samples = sum(len(chunk.pcm) for chunk in stream)
        facts = stream.facts()
        reasons.append(str(facts.finish_reason))
        ratios.append(samples / FRAME / clip.frames)
        rtfs.append(facts.rtf or 0.0)
        firsts.append((facts.ttfc_s or 0.0) * 1000)
    return {
        "texts": len(reasons),
        "ended by itself": reasons.count("eos"),
        "duration ratio": _spread(ratios),
        "rtf": _spread(rtfs),
        "ttfc_ms": _spread(firsts),
    }


def _spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "median": round(statistics.median(ordered), 3),
        "5 %": round(ordered[len(ordered) // 20], 3),
        "95 %": round(ordered[-1 - len(ordered) // 20], 3),
    }


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
