"""``megatalker voices``: the recorded voices in a folder, which a server clones and serves by name."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from megatalker.cli.console import say_plainly, stdout
from megatalker.cli.options import CheckpointOption, ConfigOption, make_folder, read_settings
from megatalker.errors import InvalidRequestError, SettingsError

voices = typer.Typer(add_completion=False, no_args_is_help=True, help="Recorded voices in a folder.")

NameArgument = Annotated[str, typer.Argument(help="What requests call the voice.")]
FolderOption = Annotated[
    Path | None, typer.Option("--voices-dir", help="The folder.", show_default="setting server.voices_dir")
]


@voices.command()
def add(
    name: NameArgument,
    ref_audio: Annotated[
        Path, typer.Option(help="A recording (WAV, FLAC, OGG, MP3, M4A, WebM), 3 to 15 s of clear speech.")
    ],
    ref_text: Annotated[
        str | None, typer.Option(help="Every word that is said in it; without, only how it sounds is cloned.")
    ] = None,
    summary: Annotated[str, typer.Option(help="A few words about the voice.")] = "",
    voices_dir: FolderOption = None,
    config: ConfigOption = None,
) -> None:
    """Check a recording and put it into the folder. A server that watches the folder serves it at once."""
    from megatalker.voices.folder import Manifest, Recording, add_recording
    from megatalker.voices.names import tidy_name
    from megatalker.voices.reference_checks import reference_warnings

    folder, longest_s = _folder(voices_dir, config)
    make_folder(folder)
    try:
        content = ref_audio.read_bytes()
    except OSError as error:
        raise InvalidRequestError(f"{str(ref_audio)!r} cannot be read: {error.strerror}") from error
    words = None if ref_text is None else ref_text.strip()
    manifest = Manifest(summary=summary, in_context=words is not None)
    add_recording(folder, name, Recording(manifest, content, words), longest_s)
    for warning in reference_warnings(content, words):
        say_plainly(f"warning: {warning}")
    say_plainly(f"added voice {tidy_name(name)!r} to {folder}")


@voices.command()
def mix(
    name: NameArgument,
    parts: Annotated[str, typer.Argument(metavar="MIX", help="Voices and weights, such as robin:0.6+mina:0.4.")],
    checkpoint: CheckpointOption = None,
    voices_dir: FolderOption = None,
    config: ConfigOption = None,
) -> None:
    """Mix speakers of the checkpoint, or cloned voices of the folder, into a voice file in the folder."""
    from megatalker.checkpoint import Checkpoint
    from megatalker.voices.cache import VoiceCache
    from megatalker.voices.folder import add_voice_file
    from megatalker.voices.library import VoiceLibrary
    from megatalker.voices.mixing import mix_parts

    folder, longest_s = _folder(voices_dir, config)
    make_folder(folder)
    opened = Checkpoint.open(read_settings(config, checkpoint=checkpoint).checkpoint)
    if mix_parts(parts) is None:
        raise InvalidRequestError(f"{parts!r} names one voice; expected several, such as robin:0.6+mina:0.4")
    library = VoiceLibrary(folder, opened, VoiceCache(1, 1.0), longest_s)
    try:
        library.refuse_speaker(name)
        voice = library.get(parts)
    finally:
        library.close()
    if voice is None or voice.kind != "mix":
        raise InvalidRequestError(f"{parts!r} is one voice; expected several, such as robin:0.6+mina:0.4")
    path = add_voice_file(folder, name, voice.to_bytes())
    say_plainly(f"mixed {voice.mixed_from} into {path}")


@voices.command("list")
def list_(voices_dir: FolderOption = None, config: ConfigOption = None) -> None:
    """Show the voices of the folder."""
    from megatalker.voices.folder import read_recording, voices_in

    folder, _ = _folder(voices_dir, config)
    table = Table("voice", "kind", "summary")
    for name, path in voices_in(folder).items():
        if path.is_dir():
            manifest = read_recording(path).manifest
            table.add_row(name, "in context" if manifest.in_context else "speaker only", manifest.summary)
        else:
            table.add_row(name, "voice file", "")
    stdout.print(table)


@voices.command()
def show(name: NameArgument, voices_dir: FolderOption = None, config: ConfigOption = None) -> None:
    """Show what is kept of a voice, and check its recording."""
    from megatalker.checkpoint.config import SAMPLE_RATE
    from megatalker.voices import Voice
    from megatalker.voices.folder import find_voice, read_recording
    from megatalker.voices.reference_checks import read_good_reference, reference_warnings

    folder, longest_s = _folder(voices_dir, config)
    path = find_voice(folder, name)
    if path is None:
        raise InvalidRequestError(f"there is no voice {name!r} in {str(folder)!r}")
    table = Table(show_header=False)
    table.add_row("path", str(path))
    if path.is_dir():
        recording = read_recording(path)
        samples = read_good_reference(recording.reference, recording.transcript, longest_s)
        table.add_row("summary", recording.manifest.summary)
        warnings = reference_warnings(recording.reference, recording.transcript)
        verdict = "; ".join(warnings) or "good"
        table.add_row("recording", f"{len(samples) / SAMPLE_RATE:.1f} s, {verdict}")
        table.add_row("transcript", recording.transcript or "none: only how the speaker sounds is cloned")
    else:
        voice = Voice.load(path)
        table.add_row("kind", voice.kind if voice.mixed_from is None else f"{voice.kind} of {voice.mixed_from}")
        table.add_row("checkpoint", voice.checkpoint_fingerprint or "any")
    stdout.print(table)


@voices.command()
def remove(name: NameArgument, voices_dir: FolderOption = None, config: ConfigOption = None) -> None:
    """Delete a voice and all that is kept of it."""
    from megatalker.voices.folder import remove_voice

    folder, _ = _folder(voices_dir, config)
    remove_voice(folder, name)
    say_plainly(f"removed voice {name!r} from {folder}")


def _folder(asked: Path | None, config: Path | None) -> tuple[Path, float]:
    """The folder, and how long a recording may be."""
    settings = read_settings(config)
    folder = asked or settings.server.voices_dir
    if folder is None:
        raise SettingsError("no folder of voices is named; give --voices-dir, or set server.voices_dir")
    return folder, settings.max_reference_s
