"""The model card of a voice that clones, and the folder in which it is shipped."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

from megatalker.checkpoint.difference import DIFFERENCE

_TEMPLATE = Path(__file__).with_name("clones_card.md")
_SHIPPED = ("config.json", DIFFERENCE, f"speech_tokenizer/{DIFFERENCE}")


def ship(checkpoint: Path, folder: Path) -> int:
    """Copy what a checkpoint differs by from its parent; returns the bytes."""
    for name in _SHIPPED:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(checkpoint / name, folder / name)
    return sum((folder / name).stat().st_size for name in _SHIPPED)


def write_card(
    folder: Path, judged: Mapping[str, Any], codec_report: Path, size: int, voices: int, training: str
) -> None:
    """Write ``MODEL_CARD.md`` from what ``clones`` and ``codec`` measured."""
    codec = json.loads(codec_report.read_text(encoding="utf-8"))
    text = Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        megabytes=f"{size / 1e6:.1f}",
        voices=voices,
        training=training,
        rows="\n".join(_row(name, result) for name, result in judged.items()),
        pitch=f"{codec['pitch_kept']:.0%}",
        spectral=codec["spectral_loss"]["all"],
    )
    (folder / "MODEL_CARD.md").write_text(text, encoding="utf-8")


def _row(name: str, result: Mapping[str, Any]) -> str:
    alike = result["likeness"]
    cells = [f"{alike['own']:.1f} (at most {alike['worst']:.1f})", f"{alike['others']:.1f}"]
    cells += [f"{alike[fact]:.0%}" for fact in ("nearest", "control")]
    for exam in ("digits", "words", "sentences"):
        cells.append(f"{result[exam]['share']:.1%} ({result[exam]['control']:.0%})" if exam in result else "")
    return f"| {name} | {' | '.join(cells)} |"
