"""``megatalker read`` and ``megatalker batch``: their options."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from megatalker.cli.console import say_plainly
from megatalker.cli.options import (
    BackendOption,
    CheckpointOption,
    CodecOption,
    ConfigOption,
    DeviceOption,
    DtypeOption,
    LanguageOption,
    LexiconOption,
    NormalizeOption,
    RefAudioOption,
    RefTextOption,
    on_or_off,
    read_settings,
)
from megatalker.cli.say.formats import Format
from megatalker.cli.status import Status

OutOption = Annotated[Path | None, typer.Option("--out", "-o", help="Folder.", show_default="named like the file")]
FormatOption = Annotated[Format, typer.Option("--format", help="Of the files.")]
StreamsOption = Annotated[
    int | None,
    typer.Option(min=1, max=4096, help="Parts that are spoken at a time.", show_default="4; on a GPU 32"),
]
SeedOption = Annotated[int, typer.Option(min=0, help="Same seed, same speech.")]
CaptionsOption = Annotated[
    Literal["srt", "vtt"] | None,
    typer.Option(help="Captions beside each file; times are estimates without an aligner."),
]
VoiceOption = Annotated[str | None, typer.Option(help="Speaker name, a voice file, or a mix: robin:0.6+mina:0.4.")]


def read(
    book: Annotated[Path, typer.Argument(help="A book: .txt, .md or .epub.")],
    out: OutOption = None,
    format_: FormatOption = Format.MP3,
    voice: VoiceOption = None,
    language: LanguageOption = None,
    instruct: Annotated[str | None, typer.Option(help="Style, where the checkpoint takes one.")] = None,
    ref_audio: RefAudioOption = None,
    ref_text: RefTextOption = None,
    seed: SeedOption = 0,
    streams: StreamsOption = None,
    captions: CaptionsOption = None,
    normalize: NormalizeOption = None,
    lexicon: LexiconOption = None,
    checkpoint: CheckpointOption = None,
    backend: BackendOption = None,
    codec: CodecOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    config: ConfigOption = None,
) -> None:
    """Read BOOK aloud into a folder, a file for each chapter, many parts at a time.

    The same command goes on where it was interrupted, by Ctrl-C or a crash, and makes the same files as without.
    """
    settings = read_settings(config, checkpoint=checkpoint, backend=backend, codec=codec, device=device, dtype=dtype)
    with Status() as status:
        status.stage("importing torch")
        from megatalker.cli.read.book import read_book
        from megatalker.cli.read.run import FolderOrder, book_files, speak_folder
        from megatalker.cli.say.speaking import VoiceOrder

        status.stage(f"reading {book.name}")
        found = read_book(book)
        order = FolderOrder(
            out=out or book.with_suffix(""),
            format=format_,
            captions=captions,
            streams=streams,
            voice=VoiceOrder(voice, ref_audio, ref_text, None),
            language=language,
            instruct=instruct,
            normalize=on_or_off(normalize),
            lexicon=lexicon,
        )
        report = speak_folder(order, settings, status, lambda options, _: book_files(found, options, seed, format_))
    say_plainly(report)


def batch(
    file: Annotated[Path, typer.Argument(help='JSON lines: {"input": "Hello.", "voice": "robin", "id": "hello"}.')],
    out: OutOption = None,
    format_: FormatOption = Format.WAV,
    voice: VoiceOption = None,
    language: LanguageOption = None,
    seed: SeedOption = 0,
    streams: StreamsOption = None,
    captions: CaptionsOption = None,
    checkpoint: CheckpointOption = None,
    backend: BackendOption = None,
    codec: CodecOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    config: ConfigOption = None,
) -> None:
    """Speak each line of FILE into a file of its own, many at a time.

    Fields of a line: input (the text), id (name of the file), voice, language, instruct and seed; what is missing is
    taken from the options. The same command goes on where it was interrupted.
    """
    settings = read_settings(config, checkpoint=checkpoint, backend=backend, codec=codec, device=device, dtype=dtype)
    with Status() as status:
        status.stage("importing torch")
        from megatalker.cli.read.lines import line_files, read_lines
        from megatalker.cli.read.run import FolderOrder, speak_folder
        from megatalker.cli.say.speaking import VoiceOrder

        lines = read_lines(file)
        order = FolderOrder(
            out=out or file.with_suffix(""),
            format=format_,
            captions=captions,
            streams=streams,
            voice=VoiceOrder(voice, None, None, None),
            language=language,
        )
        report = speak_folder(order, settings, status, partial(line_files, lines, seed=seed, kind=format_))
    say_plainly(report)
