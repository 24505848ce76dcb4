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
_HEAD = """<meta charset="utf-8"><meta name="viewport" content="width=device-width"><style>
:root{color-scheme:light dark;overflow-wrap:break-word}
body{font:16px system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem}div{overflow-x:auto}
table{border-collapse:collapse;width:100%;margin:1rem 0}
td,th{border:1px solid #8886;padding:.4rem;text-align:left;vertical-align:top}
audio{display:block;width:100%;min-width:14rem;max-width:20rem}
.worse{color:light-dark(#b00020,#ff8a80);font-weight:bold}.not-worse{color:light-dark(#1b5e20,#a5d6a7)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1rem}dt{font-weight:bold}
dd{margin:0;overflow-wrap:anywhere}
@media(max-width:40rem){.prompts th{display:none}.prompts td{display:block}
.prompts td[data-side]:before{content:attr(data-side);font-weight:bold}}</style>
<script>addEventListener("play",({target})=>document.querySelectorAll("audio").forEach(
player=>player===target||player.pause()),true)</script>"""


def page_lines(trial: QualityTrial, result: QualityResult) -> Iterator[str]:
    """Yield the lines of the page, which refers to no other file."""
    title = f"Quality of {escape(result.environment['checkpoint'])}"
    yield f'<!doctype html><html lang="en"><head><title>{title}</title>{_HEAD}</head>'
    sentences = [f"<p>{escape(side.sentence(result.prompts, result.seeds))}</p>" for side in result.sides]
    yield f"<body><main><h1>{title}</h1>{''.join(sentences)}"
    yield _table(result.rows())
    yield _table(result.fault_rows())
    yield "<h2>Prompts, worst first</h2><p>Each side plays its worst take.</p>"
    yield '<div tabindex="0"><table class="prompts"><tr><th>prompt</th>'
    yield "".join(f"<th>{escape(name)}</th>" for name in trial.sides) + "</tr>"
    for place, row in enumerate(result.worst):
        cells = [_cell(trial, name, row, play=place < PLAYED) for name in trial.sides]
        yield f"<tr><td>{escape(row['prompt'])}<br>{escape(row['text'])}</td>{''.join(cells)}</tr>"
    yield "</table></div><h2>Trial</h2>"
    facts = {"prompts": result.source, "licence": result.licence, "digest": result.digest}
    facts = {**result.judges, **facts, **result.environment, "command": result.command}
    yield "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items())
    yield "</dl></main></body></html>"


def _cell(trial: QualityTrial, side: str, row: Mapping[str, Any], *, play: bool) -> str:
    told = row["takes"][side]
    player = ""
    if play and told["seconds"]:
        pcm = trial.folder.recording(Take(side, row["index"], told["seed"]))
        file = io.BytesIO()
        soundfile.write(file, pcm, SAMPLE_RATE, format="MP3")
        content = base64.b64encode(file.getvalue()).decode()
        label = escape(f"{side}: {row['text']}", quote=True)
        player = f'<audio controls aria-label="{label}" src="data:audio/mpeg;base64,{content}"></audio>'
    units = {"errors": "%", "similarity": "", "opinion": ""}
    figures = [f"{name} {told[name]:.3g}{unit}" for name, unit in units.items() if name in told]
    faults = [name for name in ("runaway", "silent") if told[name]]
    heard = f"<br>{escape(told['heard'])}" if "heard" in told else ""
    return f'<td data-side="{escape(side)}">{player}{escape(", ".join(figures + faults))}{heard}</td>'


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *others = rows
    lines = ['<div tabindex="0"><table><tr>' + "".join(f"<th>{escape(cell)}</th>" for cell in head) + "</tr>"]
    for row in others:
        cells = [f'<td class="{escape(cell.replace(" ", "-"), quote=True)}">{escape(cell)}</td>' for cell in row]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return "\n".join([*lines, "</table></div>"])
