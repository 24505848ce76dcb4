"""Options shared by several commands, and the settings they make."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from megatalker.errors import InvalidRequestError

if TYPE_CHECKING:
    from megatalker.settings import Settings

CHECKPOINTS = "demo, a folder in the official layout, a hub id, or modelscope:ID."
CheckpointOption = Annotated[str | None, typer.Option(help=CHECKPOINTS, show_default="demo")]
CheckpointArgument = Annotated[str, typer.Argument(help=CHECKPOINTS)]
BackendOption = Annotated[
    str | None, typer.Option(help="Talker backend, see `megatalker backends`.", show_default="auto")
]
CodecOption = Annotated[str | None, typer.Option(help="Codec backend.", show_default="auto")]
DeviceOption = Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:N or mps.", show_default="auto")]
DtypeOption = Annotated[str | None, typer.Option(help="auto, float32, bfloat16 or float16.", show_default="auto")]
LanguageOption = Annotated[str | None, typer.Option(help="auto, english, en-US, ...")]
RefAudioOption = Annotated[Path | None, typer.Option(help="Clone this voice (Base checkpoints: demo-base).")]
RefTextOption = Annotated[str | None, typer.Option(help="What is said in --ref-audio; clones more closely.")]
NormalizeOption = Annotated[
    bool | None,
    typer.Option(
        "--normalize/--no-normalize", help="Write numbers, dates and the like out in words.", show_default="off"
    ),
]
LexiconOption = Annotated[Path | None, typer.Option(help="File of words and respellings.")]
ConfigOption = Annotated[Path | None, typer.Option("--config", help="Settings file.", show_default="megatalker.toml")]


def on_or_off(flag: bool | None) -> Literal["on", "off"] | None:
    """Return a switch of the command line as a setting's word; ``None`` where it was not given."""
    return None if flag is None else "on" if flag else "off"


def given(**options: Any) -> dict[str, Any]:
    """The options that the user gave."""
    return {name: value for name, value in options.items() if value is not None}


def read_settings(config: Path | None, **options: Any) -> "Settings":
    """Settings from all sources, with the given command-line options on top.

    Raises:
        SettingsError: see :meth:`Settings.read`.
    """
    from megatalker.settings import Settings

    return Settings.read(config, **given(**options))


def make_folder(folder: Path) -> None:
    """Have a folder that can be written to. Asked for before anything is measured whose results it should hold.

    Raises:
        InvalidRequestError: nothing can be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InvalidRequestError(
            f"the folder {str(folder)!r} cannot be written to: {error.strerror}; name another"
        ) from error


def prepare_file(file: Path) -> None:
    """Make the folder of a file; see :func:`make_folder`."""
    make_folder(file.parent)
    if file.is_dir():
        raise InvalidRequestError(f"{str(file)!r} is a folder, expected a file to write; name one in it")
