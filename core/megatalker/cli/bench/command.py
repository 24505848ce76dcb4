"""``megatalker bench``: decode, prefill, codec, TTFC, RTF, chunk gaps and more of one or more backends."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from megatalker.cli.bench.metrics import judge, read_requirements
from megatalker.cli.console import say_plainly, stdout
from megatalker.cli.options import (
    BackendOption,
    CheckpointOption,
    CodecOption,
    ConfigOption,
    DeviceOption,
    DtypeOption,
    make_folder,
    read_settings,
)
from megatalker.cli.status import Status
from megatalker.errors import SettingsError


def bench(
    context: typer.Context,
    compare: Annotated[str | None, typer.Option(help="Talker backends, comma-separated, measured in turns.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for bench.json and bench.png.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Times that everything is measured; medians are shown.")] = 3,
    frames: Annotated[int, typer.Option(min=8, help="Frames of each utterance and decode measurement.")] = 50,
    require: Annotated[
        str | None,
        typer.Option(help="Bounds on medians, such as 'ttfc<=90ms,rtf<=0.3,frame<=2ms'; exit status 1 if not met."),
    ] = None,
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
    try:
        bounds = read_requirements(require) if require else []
    except SettingsError as error:
        raise typer.BadParameter(str(error), param_hint="--require") from error
    if out is not None:
        make_folder(out)
    with Status() as status:
        status.stage("importing torch")
        from megatalker.cli.bench.comparison import plot, table
        from megatalker.cli.bench.measure import measure
        from megatalker.cli.bench.report import save

        settings = read_settings(
            config, checkpoint=checkpoint, backend=backend, codec=codec, device=device, dtype=dtype
        )
        names = [name.strip() for name in compare.split(",")] if compare else [settings.backend]
        report = measure(settings, names, rounds=rounds, frames=frames, progress=status.stage)
    stdout.print(table(report))
    if out is not None:
        for path in save(report, out, "bench", partial(plot, report)):
            stdout.print(f"wrote {path}", highlight=False, soft_wrap=True)
    verdicts, met = judge(bounds, report.medians)
    for line in verdicts:
        say_plainly(line)
    if not met:
        raise typer.Exit(1)
