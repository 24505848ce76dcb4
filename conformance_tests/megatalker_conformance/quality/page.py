"""The report to listen to: one HTML file with players, the sides next to each other, the worst prompts first."""

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

import soundfile

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker_conformance.quality.result import QualityResult
from megatalker_conformance.quality.store import Take
from megatalker_conformance.quality.trial import QualityTrial

PLAYED = 20
"""Prompts with players; the others are listed without, so that the file stays small."""
_STYLE = """body{font:16px system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color:#222;
background:#fff}
table{border-collapse:collapse;width:100%;margin:1rem 0}td,th{border:1px solid #ccc;padding:.4rem;text-align:left;
vertical-align:top}audio{width:16rem}.worse{color:#b00020;font-weight:bold}.not-worse{color:#1b5e20}dt{font-weight:bold}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}.worse{color:#ff8a80}.not-worse{color:#a5d6a7}}"""


def write_page(trial: QualityTrial, result: QualityResult) -> str:
    """Return the page, which refers to no other file."""
    return "\n".join(_page(trial, result)) + "\n"


def _page(trial: QualityTrial, result: QualityResult) -> Iterator[str]:
    title = f"Quality of {escape(result.environment['checkpoint'])}"
    yield f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
    yield f"<style>{_STYLE}</style></head>"
    yield f"<body><h1>{title}</h1><p>{escape(result.sentence)}</p>"
    yield _table(result.rows())
    yield _table(result.fault_rows())
    facts = {"prompts": result.source, "licence": result.licence, "digest": result.digest}
    yield _facts({**result.judges, **facts, **result.environment, "command": result.command})
    yield "<h2>Prompts, worst first</h2><p>Of each side the take with most errors.</p>"
    yield "<table><tr><th>prompt</th>" + "".join(f"<th>{escape(name)}</th>" for name in trial.sides) + "</tr>"
    for place, row in enumerate(result.worst):
        cells = [_cell(trial, name, row, play=place < PLAYED) for name in trial.sides]
        yield f"<tr><td>{escape(row['prompt'])}<br>{escape(row['text'])}</td>{''.join(cells)}</tr>"
    yield "</table></body></html>"


def _cell(trial: QualityTrial, side: str, row: Mapping[str, Any], *, play: bool) -> str:
    told = row["takes"][side]
    player = ""
    if play:
        pcm = trial.folder.recording(Take(side, row["index"], told["seed"]))
        file = io.BytesIO()
        soundfile.write(file, pcm, SAMPLE_RATE, format="MP3")
        content = base64.b64encode(file.getvalue()).decode()
        label = escape(f"{side}: {row['text']}", quote=True)
        player = (
            f'<audio controls preload="none" aria-label="{label}" src="data:audio/mpeg;base64,{content}"></audio><br>'
        )
    figures = [f"{name} {told[name]:.3g}" for name in ("errors", "similarity", "opinion") if name in told]
    faults = [name for name in ("runaway", "silent") if told[name]]
    heard = f"<br>{escape(told['heard'])}" if "heard" in told else ""
    return f"<td>{player}{escape(', '.join(figures + faults))}{heard}</td>"


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *others = rows
    lines = ["<table><tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + "</tr>"]
    for row in others:
        cells = [f'<td class="{escape(cell.replace(" ", "-"), quote=True)}">{escape(cell)}</td>' for cell in row]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return "\n".join([*lines, "</table>"])


def _facts(facts: Mapping[str, str]) -> str:
    return (
        "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items()) + "</dl>"
    )
