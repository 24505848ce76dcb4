"""``megatalker detect``: marks of synthetic speech in a file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from megatalker.cli.console import stdout

if TYPE_CHECKING:
    from megatalker.serving.detection import Findings, WatermarkFinding


def detect(
    file: Annotated[Path, typer.Argument(help="An audio file.")],
    watermark: Annotated[
        list[str] | None, typer.Option(help="Look for this watermark; may be repeated.", show_default="all installed")
    ] = None,
    download: Annotated[
        bool, typer.Option("--download", help="Let detectors download weights that they lack.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Look in FILE for marks of synthetic speech: metadata, a signed manifest (C2PA), watermarks.

    Without a mark, nothing is known: speech that nobody marked may be synthetic, too.
    """
    import json
    from dataclasses import asdict

    from megatalker.serving.detection import inspect_file

    found = inspect_file(file, watermark, download=download)
    if as_json:
        typer.echo(json.dumps(asdict(found)))
        return
    lines = [f"metadata: {'says that it is synthetic' if found.comment else 'no mark'}"]
    lines.append(f"c2pa: {_manifest(found)}")
    lines += [f"watermark {one.name}: {_told(one)}" for one in found.watermarks]
    lines += ["watermark: no detector is installed"] if not found.watermarks else []
    for line in lines:
        stdout.print(line, highlight=False, markup=False, soft_wrap=True)


def _manifest(found: "Findings") -> str:
    if found.manifest_unread is not None:
        return f"not looked for: {found.manifest_unread}"
    if found.manifest is None:
        return "no manifest"
    one = found.manifest
    says = "says that it is synthetic" if one.synthetic else "does not say that it is synthetic"
    problems = f" ({', '.join(one.problems)})" if one.problems else ""
    return f"{one.state} manifest of {one.generator}, signed by {one.signer}, {says}{problems}"


def _told(finding: "WatermarkFinding") -> str:
    if finding.unavailable is not None:
        return f"not looked for: {finding.unavailable}"
    if not finding.found:
        return f"no mark (confidence {finding.confidence:.2f})"
    return f"found in {finding.marked} of {finding.pieces} pieces (confidence {finding.confidence:.2f})"
