"""``megatalker verify``: its options. The checks themselves are brought along by another package, for they need the
official one: an entry point ``verify`` in the group ``megatalker.programs``.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

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
from megatalker.cli.verify.quality import run_quality
from megatalker.cli.verify.quality_options import FOLDER, FORMS, SEEDS, SIZE, QualityOptions, read_forms, read_size
from megatalker.errors import SettingsError

QUALITY = "With --quality"
T = TypeVar("T")


def verify(
    checkpoint: CheckpointArgument = "demo",
    ref_audio: Annotated[Path | None, typer.Option(help="A recording to clone (Base checkpoints).")] = None,
    ref_text: Annotated[str | None, typer.Option(help="Every word that is said in it.")] = None,
    frames: Annotated[int, typer.Option(min=8, help="Frames compared in each mode.")] = FRAMES,
    word_errors: Annotated[
        float, typer.Option(min=0, help="The largest word error rate of speech that is understood.")
    ] = WORD_ERRORS,
    recogniser: Annotated[
        str | None,
        typer.Option(
            help="What listens, as MODULE:NAME; with --quality a judge's NAME or NAME:MODEL.",
            show_default="pocketsphinx, or the best judge",
        ),
    ] = None,
    skip: Annotated[str | None, typer.Option(help=f"Parts to leave out, comma-separated: {', '.join(PARTS)}.")] = None,
    json: Annotated[Path | None, typer.Option("--json", help="File for the report card, for programs.")] = None,
    markdown: Annotated[Path | None, typer.Option("--markdown", help="The same, to paste into an issue.")] = None,
    quality: Annotated[
        bool, typer.Option("--quality", help="Compare our speech with the official package's, prompt by prompt.")
    ] = False,
    prompts: Annotated[
        str | None,
        typer.Option(
            help="seed-tts-eval, seed-tts-eval/zh, a folder, meta.lst or a file of texts.",
            show_default="loose English words",
            rich_help_panel=QUALITY,
        ),
    ] = None,
    size: Annotated[str, typer.Option(help="How many prompts, or all.", rich_help_panel=QUALITY)] = str(SIZE),
    seeds: Annotated[
        int, typer.Option(min=1, max=100, help="Takes of a prompt on each side.", rich_help_panel=QUALITY)
    ] = SEEDS,
    compare: Annotated[
        str | None,
        typer.Option(
            help=f"Faster forms to compare, too, comma-separated: {', '.join(FORMS)}.", rich_help_panel=QUALITY
        ),
    ] = None,
    similarity: Annotated[
        str | None,
        typer.Option(
            help="Judge of voices: NAME, NAME:MODEL or none.", show_default="the best judge", rich_help_panel=QUALITY
        ),
    ] = None,
    opinion: Annotated[
        str, typer.Option(help="Judge of how it sounds, for information.", rich_help_panel=QUALITY)
    ] = "none",
    digest: Annotated[
        str | None, typer.Option(help="SHA-256 that the prompts must have.", rich_help_panel=QUALITY)
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder of recordings and reports; a run goes on there.", rich_help_panel=QUALITY)
    ] = FOLDER,
    backend: BackendOption = None,
    codec: CodecOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    config: ConfigOption = None,
) -> None:
    """Check a checkpoint on this machine against the official package, measure it, and print a report card.

    Exit status 1 if a check fails, or with --quality if a form is worse. What could not be run says why.
    """
    skipped = _read("--skip", read_parts, skip) if skip else frozenset()
    few, forms = _read("--size", read_size, size), _read("--compare", read_forms, compare) if compare else ()
    if quality:
        _refuse("goes without --quality only", ("--skip", skip), ("--markdown", markdown))
    wanted_of_trial = ("--prompts", prompts), ("--compare", compare), ("--similarity", similarity), ("--digest", digest)
    if not quality:
        _refuse("needs --quality", *wanted_of_trial)
    for wanted in filter(None, (json, markdown)):
        prepare_file(wanted)
    settings = read_settings(config, checkpoint=checkpoint, backend=backend, codec=codec, device=device, dtype=dtype)
    if quality:
        trial = QualityOptions(
            out=out,
            prompts=prompts,
            size=few,
            seeds=seeds,
            digest=digest,
            ref_audio=ref_audio,
            ref_text=ref_text,
            compare=forms,
            recogniser=recogniser,
            similarity=similarity,
            opinion=opinion,
        )
        if not run_quality(settings, trial, json):
            raise typer.Exit(1)
        return
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


def _read(option: str, read: Callable[[str], T], text: str) -> T:
    try:
        return read(text)
    except SettingsError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def _refuse(reason: str, *options: tuple[str, object]) -> None:
    """Refuse options that were given and have no meaning here."""
    for name, value in options:
        if value is not None:
            raise typer.BadParameter(reason, param_hint=name)
