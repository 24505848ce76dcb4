"""``megatalker bench``: decode, prefill, codec, TTFC, RTF and chunk gaps of one or more backends."""

from pathlib import Path
from typing import Annotated

import typer

from megatalker.cli.console import stdout
from megatalker.cli.options import (
    BackendOption,
    CheckpointOption,
    CodecOption,
    ConfigOption,
    DeviceOption,
    DtypeOption,
    read_settings,
)
from megatalker.cli.status import Status


def bench(
    context: typer.Context,
    compare: Annotated[str | None, typer.Option(help="Talker backends, comma-separated, measured in turns.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for bench.json and bench.png.")] = None,
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    frames: Annotated[int, typer.Option(min=8, help="Frames of each utterance and decode measurement.")] = 50,
    checkpoint: CheckpointOption = None,
    backend: BackendOption = None,
    codec: CodecOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    config: ConfigOption = None,
) -> None:
    """Measure backends on this machine: a table, and with --out JSON and a plot. Further measurements by name."""
    if context.invoked_subcommand is not None:
        return
    with Status() as status:
        status.stage("importing torch")
        from megatalker.cli.bench.measure import measure
        from megatalker.cli.bench.report import save, table

        settings = read_settings(
            config, checkpoint=checkpoint, backend=backend, codec=codec, device=device, dtype=dtype
        )
        names = [name.strip() for name in compare.split(",")] if compare else [settings.backend]
        report = measure(settings, names, rounds=rounds, frames=frames, progress=status.stage)
    stdout.print(table(report))
    if out is not None:
        for path in save(report, out):
            stdout.print(f"wrote {path}", highlight=False, soft_wrap=True)
