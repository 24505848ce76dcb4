"""``clones``: clones voices that training never heard, judges what they say, and compares voice prints."""

import argparse
import json
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from megatalker import Checkpoint, Engine
from megatalker.voices import Voice, VoiceCloner
from megatalker_conformance.intelligibility import DIGIT_STRINGS, SENTENCES, WORD_ROWS, Examiner, Pcm, Say
from megatalker_demo_voice.clones_card import ship, write_card
from megatalker_demo_voice.crowd import HELD_OUT, cast, everyone
from megatalker_demo_voice.espeak import Espeak, EspeakFiles
from megatalker_demo_voice.evaluate_command import assemble
from megatalker_demo_voice.likeness import VoicePrint
from megatalker_demo_voice.logs import logger
from megatalker_demo_voice.speakers import EspeakSpeaker
from megatalker_demo_voice.speech import speak
from megatalker_demo_voice.talker_export import LANGUAGE

REFERENCE = "Three green boats waited near the old harbor until the morning rain was over."
PRINTED = (
    "The small boat sailed slowly across the quiet lake before the storm.",
    "Seven brown horses were standing near the old wooden gate.",
)
"""Sentences that clones say to be compared: not those of the reference."""
_LONGEST = 200
MODES = {"x-vector": False, "in-context": True}
"""Whether the reference's words and codes go into the prompt."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, help="receives checkpoint/ and clones.json")
    parser.add_argument("--talker", type=Path, help="talker-base.tar; left out: judge --checkpoint")
    parser.add_argument("--codec", type=Path, help="codec-falling.tar")
    parser.add_argument("--checkpoint", default="demo-base", help="name or folder")
    parser.add_argument("--ship", type=Path, help="folder that receives what is shipped, and its card")
    parser.add_argument("--codec-report", type=Path, help="codec-falling.json, for the card")
    parser.add_argument("--training", default="", help="a sentence about the machine and the minutes, for the card")
    parser.add_argument("--backend", default="compiled")
    parser.add_argument("--voices", type=int, default=16, help=f"made-up speakers to clone, of {HELD_OUT}")
    parser.add_argument("--items", type=int, default=20, help="digit strings, word rows and sentences, for each mode")


def run(options: argparse.Namespace) -> None:
    """See the module."""
    if options.ship is not None and None in (options.talker, options.codec, options.codec_report):
        raise ValueError("--ship needs what training left: --talker, --codec and --codec-report")
    options.out.mkdir(parents=True, exist_ok=True)
    log = logger(options.out / "clones.log")
    espeak = Espeak(EspeakFiles.prepare(options.espeak, options.scratch / "espeak-clones", everyone(1)))
    checkpoint = Checkpoint.open(
        assemble(options.talker, options.codec, options.out / "checkpoint", options.scratch)
        if options.talker
        else options.checkpoint
    )
    speakers = cast(1, held_out=True)[: options.voices]
    recorded = {speaker.name: recording(espeak, speaker, REFERENCE) for speaker in speakers}
    voices: dict[str, dict[str, Voice]] = {mode: {} for mode in MODES}
    with VoiceCloner(checkpoint) as cloner:
        for name, samples in recorded.items():
            for mode, in_context in MODES.items():
                text = REFERENCE if in_context else None
                voices[mode][name] = cloner.clone(samples, reference_text=text)
    prints = {name: VoicePrint.of(samples) for name, samples in recorded.items()}
    with Engine.open(
        checkpoint=checkpoint,
        backend=options.backend,
        codec="streaming",
        device="cpu",
        runaway_guard=False,
        short_speech="believe",
    ) as engine:
        engine.warmup()
        result = {mode: _judged(engine, cloned, prints, options, log) for mode, cloned in voices.items()}
    spoken = {speaker.name: _print(partial(recording, espeak, speaker)) for speaker in speakers}
    result["espeak-ng itself"] = {"likeness": likeness(spoken, prints)}
    log(json.dumps(result["espeak-ng itself"]))
    (options.out / "clones.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if options.ship is not None:
        size = ship(checkpoint.folder, options.ship)
        write_card(options.ship, result, options.codec_report, size, len(speakers), options.training)


def recording(espeak: Espeak, speaker: EspeakSpeaker, text: str) -> Pcm:
    """``[samples]`` float32 at 24 kHz."""
    clip = speak(espeak, text, speaker)
    if clip is None:
        raise ValueError(f"espeak-ng says nothing for {text!r}")
    samples: Pcm = clip.samples.astype(np.float32) / np.float32(32768)
    return samples


def likeness(clones: Mapping[str, VoicePrint], references: Mapping[str, VoicePrint]) -> dict[str, Any]:
    """How unlike clones are to their own references and to those of others, and how often their own is nearest.

    The control compares each clone with the reference of the next voice in its place.
    """
    names = list(references)
    unlike = np.array([[clones[name].unlike(references[other]) for other in names] for name in names])
    own = unlike.diagonal()
    nearest = unlike.argmin(1)
    following = np.roll(np.arange(len(names)), -1)
    return {
        "own": round(float(own.mean()), 2),
        "worst": round(float(own.max()), 2),
        "others": round(float((unlike.sum() - own.sum()) / max(1, len(names) * (len(names) - 1))), 2),
        "nearest": round(float((nearest == np.arange(len(names))).mean()), 3),
        "control": round(float((nearest == following).mean()), 3),
    }


def _judged(
    engine: Engine, cloned: Mapping[str, Voice], prints: Mapping[str, VoicePrint], options: argparse.Namespace,
    log: Callable[[str], None],
) -> dict[str, Any]:  # fmt: skip
    def said(name: str, text: str) -> Pcm:
        stream = engine.speak(text, voice=cloned[name], language=LANGUAGE, seed=options.seed, max_frames=_LONGEST)
        return np.concatenate([chunk.pcm for chunk in stream])

    names, out = list(cloned), {}
    # the voices take turns, so that each mode is judged by all of them
    texts = [*(f"{row}." for row in DIGIT_STRINGS), *(f"{row.capitalize()}." for row in WORD_ROWS), *SENTENCES]
    examiner = Examiner(cache(lambda text: said(names[texts.index(text) % len(names)], text)))
    for exam, rows in (("digits", DIGIT_STRINGS), ("words", WORD_ROWS), ("sentences", SENTENCES)):
        understood = getattr(examiner, exam)(rows[: options.items])
        out[exam] = {"share": round(understood.share, 4), "control": round(understood.control, 4)}
        log(f"{exam}: {out[exam]}")
    clones = {name: _print(partial(said, name)) for name in names}
    out["likeness"] = likeness(clones, prints)
    out["semitones"] = {name: round(clones[name].semitones - prints[name].semitones, 2) for name in names}
    log(json.dumps(out["likeness"]))
    return out


def _print(say: Say) -> VoicePrint:
    return VoicePrint.of(np.concatenate([say(text) for text in PRINTED]))
