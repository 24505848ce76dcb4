"""``card``: writes the model card of a voice from what the other stages measured."""

import argparse
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from megatalker_demo_voice.recipe import FALLING, FLAT
from megatalker_demo_voice.speakers import SPEAKERS

_TEMPLATE = Path(__file__).with_name("card.md")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, help="receives MODEL_CARD.md")
    parser.add_argument("--evaluation", type=Path, required=True, help="evaluation.json of the voice")
    parser.add_argument("--codec-evaluation", type=Path, required=True, help="evaluation.json of --judge codec")
    parser.add_argument("--source-evaluation", type=Path, required=True, help="evaluation.json of --judge source")
    parser.add_argument("--codec-report", type=Path, required=True, help="codec-falling.json")
    parser.add_argument("--talker", type=Path, required=True, help="talker-NAME.tar")
    parser.add_argument("--flat-talker", type=Path, help="talker-flat.tar, for the comparison of heads")
    parser.add_argument("--limit", action="append", default=[], help="a sentence on what this voice does badly")
    parser.add_argument("--training", default="", help="a sentence about the machine and the minutes that it took")


def run(options: argparse.Namespace) -> None:
    """See the module."""
    evaluation, codec, talker = _read(options.evaluation), _read(options.codec_report), _report(options.talker)
    judged = {
        "espeak-ng itself": _read(options.source_evaluation),
        "through the codec": _read(options.codec_evaluation),
        "**the voice**": evaluation,
    }
    endings = evaluation["endings"]
    text = Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        megabytes=f"{evaluation['bytes'] / 1e6:.1f}",
        speakers=", ".join(f"`{speaker.name}`" for speaker in SPEAKERS),
        training=options.training,
        limits="".join(f"- {limit}\n" for limit in options.limit),
        understood=_understood(judged),
        texts=endings["texts"],
        ended=endings["ended by itself"],
        duration=_range(endings["duration ratio"]),
        rtf=_range(endings["rtf"]),
        ttfc=_range(endings["ttfc_ms"]),
        sampling=evaluation["sampling"],
        losses=_losses(talker["code_0"]),
        heads=_heads(talker["heads"], _report(options.flat_talker)["heads"] if options.flat_talker else None),
        spectral=codec["spectral_loss"]["all"],
        spectral_few=codec["spectral_loss"]["4 codes"],
        pitch=f"{codec['pitch_kept']:.0%}",
        used=" ".join(str(round(value)) for value in codec["codes_used"]),
    )
    (options.out / "MODEL_CARD.md").write_text(text, encoding="utf-8")


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _report(archive: Path) -> Any:
    with tarfile.open(archive) as tar:
        member = next(name for name in tar.getnames() if name.endswith("/report.json"))
        file = tar.extractfile(member)
        assert file is not None
        return json.load(file)


def _understood(judged: Mapping[str, Any]) -> str:
    rows = []
    for what, result in judged.items():
        for speaker in SPEAKERS:
            shares = [result[speaker.name][exam] for exam in ("digits", "words", "sentences")]
            digits, words = (f"{share['share']:.1%} ({share['control']:.0%})" for share in shares[:2])
            told = f"{shares[2]['share']:.0%} ({shares[2]['control']:.0%})"
            rows.append(f"| {what} | {speaker.name} | {digits} | {words} | {told} |")
    return "\n".join(rows)


def _losses(losses: Mapping[str, Mapping[str, float]]) -> str:
    return "\n".join(
        f"| {name} | {values['right']:.2f} | {values['wrong']:.2f} | {values['gap']:.2f} |"
        for name, values in losses.items()
    )


def _heads(heads: Mapping[str, Sequence[float]], flat: Mapping[str, Sequence[float]] | None) -> str:
    rows = []
    for index, size in enumerate(FALLING):
        ours = [f"{heads[fact][index]:.2f}" for fact in ("top", "perplexity", "accuracy")]
        before = [f"{flat[fact][index]:.2f}" if flat else "-" for fact in ("top", "perplexity")]
        rows.append(f"| {index} | {size} | {' | '.join(ours)} | {FLAT[index]} | {' | '.join(before)} |")
    return "\n".join(rows)


def _range(spread: Mapping[str, float]) -> str:
    return f"{spread['median']} ({spread['5 %']} to {spread['95 %']})"
