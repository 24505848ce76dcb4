"""``megatalker verify``: its options. The checks themselves are brought along by another package, for they need the
official one: an entry point ``verify`` in the group ``megatalker.programs``.
"""

from pathlib import Path
from typing import Annotated

import typer

from megatalker.cli.console import say_plainly, stdout
from megatalker.cli.options import (
    BackendOption,
    CheckpointArgument,
    CodecOption,
    ConfigOption,
    DeviceOption,
    DtypeOption,
    prepare_file,
    read_settings,
)
from megatalker.cli.programs import load_program
from megatalker.cli.status import Status
from megatalker.cli.verify.order import FRAMES, PARTS, WORD_ERRORS, VerifyOptions, read_parts
from megatalker.errors import SettingsError


def verify(
    checkpoint: CheckpointArgument = "demo",
    ref_audio: Annotated[Path | None, typer.Option(help="A recording to clone (Base checkpoints).")] = None,
    ref_text: Annotated[str | None, typer.Option(help="Every word that is said in it.")] = None,
    frames: Annotated[int, typer.Option(min=8, help="Frames compared in each mode.")] = FRAMES,
    word_errors: Annotated[
        float, typer.Option(min=0, help="The largest word error rate of speech that is understood.")
    ] = WORD_ERRORS,
    recogniser: Annotated[
        str | None, typer.Option(help="Who listens, as MODULE:NAME.", show_default="pocketsphinx")
    ] = None,
    skip: Annotated[str | None, typer.Option(help=f"Parts to leave out, comma-separated: {', '.join(PARTS)}.")] = None,
    json: Annotated[Path | None, typer.Option("--json", help="File for the report card, for programs.")] = None,
    markdown: Annotated[Path | None, typer.Option("--markdown", help="The same, to paste into an issue.")] = None,
    backend: BackendOption = None,
    codec: CodecOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    config: ConfigOption = None,
) -> None:
    """Check a checkpoint on this machine against the official package, measure it, and print a report card.

    Exit status 1 if a check fails. What could not be run says why.
    """
    try:
        skipped = read_parts(skip) if skip else frozenset()
    except SettingsError as error:
        raise typer.BadParameter(str(error), param_hint="--skip") from error
    for wanted in filter(None, (json, markdown)):
        prepare_file(wanted)
    settings = read_settings(config, checkpoint=checkpoint, backend=backend, codec=codec, device=device, dtype=dtype)
    order = VerifyOptions(ref_audio, ref_text, frames, word_errors, recogniser, skipped)
    with Status() as status:
        status.stage("importing torch")
        from megatalker.checkpoint import Checkpoint
        from megatalker.checkpoint.hub import download_bar

        check = load_program("verify")
        status.stage(f"opening checkpoint {settings.checkpoint}")
        with download_bar() as progress:
            opened = Checkpoint.open(settings.checkpoint, progress=progress)
        card = check(opened, settings, order, status.stage)
    stdout.print(card.table())
    for path, text in ((json, card.json), (markdown, card.markdown)):
        if path is not None:
            path.write_text(text(), encoding="utf-8")
            say_plainly(f"wrote {path}")
    if not card.passed:
        raise typer.Exit(1)
