"""``megatalker keys``: the keys of a server, by name, in its settings file."""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from megatalker.cli.console import say_plainly, stdout
from megatalker.cli.options import ConfigOption, given, read_settings
from megatalker.errors import SettingsError, UnsupportedError

if TYPE_CHECKING:
    from tomlkit import TOMLDocument
    from tomlkit.items import Table as TomlTable

keys = typer.Typer(add_completion=False, no_args_is_help=True, help="Keys of a server, kept as hashes.")

NameArgument = Annotated[str, typer.Argument(help="Whose key it is; stands in logs and metrics.")]


@keys.command()
def add(
    name: NameArgument,
    max_streams: Annotated[int | None, typer.Option(min=1, help="Utterances at a time.")] = None,
    requests_per_minute: Annotated[int | None, typer.Option(min=1, help="Requests in a minute.")] = None,
    manage_voices: Annotated[bool, typer.Option("--manage-voices", help="It may add and remove voices.")] = False,
    config: ConfigOption = None,
) -> None:
    """Make a key, print it once, and store its hash. A server that runs with this settings file takes it at once."""
    try:
        from megatalker.serving.server.keyring import hash_key, new_key
    except ImportError as error:
        raise UnsupportedError(f"keys need {error.name}; pip install 'megatalker[server]'") from error
    path, document = _read(config)
    table = _keys(document)
    if name in table:
        raise SettingsError(f"{str(path)!r} has a key {name!r}; choose another name, or remove it first")
    key = new_key()
    own = given(max_streams=max_streams, requests_per_minute=requests_per_minute, manage_voices=manage_voices or None)
    table[name] = {"hash": hash_key(key), **own}
    _write(path, document)
    stdout.print(key, highlight=False, markup=False, soft_wrap=True)
    say_plainly(f"this is key {name!r}, shown this once; its hash is in {path}")


@keys.command("list")
def list_(config: ConfigOption = None) -> None:
    """Show the keys and their limits."""
    table = Table("key", "utterances at a time", "requests a minute", "manages voices")
    for name, own in read_settings(config).server.keys.items():
        limits = (own.max_streams, own.requests_per_minute)
        table.add_row(name, *("any" if limit is None else str(limit) for limit in limits), str(own.manage_voices))
    stdout.print(table)


@keys.command()
def remove(name: NameArgument, config: ConfigOption = None) -> None:
    """Forget a key. A server that runs with this settings file begins nothing more for it."""
    path, document = _read(config)
    table = _keys(document)
    if name not in table:
        raise SettingsError(f"{str(path)!r} has no key {name!r}; it has {', '.join(table) or 'none'}")
    del table[name]
    _write(path, document)
    say_plainly(f"removed key {name!r} from {path}")


def _read(config: Path | None) -> "tuple[Path, TOMLDocument]":
    """The file as it stands, comments included."""
    try:
        import tomlkit
    except ImportError as error:
        raise UnsupportedError(f"keys need {error.name}; pip install 'megatalker[server]'") from error
    from megatalker.settings import CONFIG_FILE

    path = config or Path(CONFIG_FILE)
    read_settings(path if path.exists() else None)  # refuses what is wrong with it, in the usual words
    try:
        return path, tomlkit.parse(path.read_text(encoding="utf-8") if path.exists() else "")
    except (OSError, ValueError) as error:
        raise SettingsError(f"settings file {str(path)!r} cannot be changed: {error}") from error


def _keys(document: "TOMLDocument") -> "TomlTable":
    from tomlkit import inline_table, table
    from tomlkit.items import InlineTable

    server = document.setdefault("server", table(is_super_table=True))
    own = inline_table() if isinstance(server, InlineTable) else table(is_super_table=True)
    keys: TomlTable = server.setdefault("keys", own)
    return keys


def _write(path: Path, document: "TOMLDocument") -> None:
    """Put a file in the place of the old one, once it is known that a server accepts it.

    Raises:
        SettingsError: a server would refuse the new file, or it cannot be written.
    """
    text = document.as_string()
    with tempfile.TemporaryDirectory() as folder:
        trial = Path(folder) / path.name
        trial.write_text(text, encoding="utf-8")
        try:
            read_settings(trial)
        except SettingsError as error:
            raise SettingsError(str(error).replace(repr(str(trial)), repr(str(path)))) from error
    try:
        _replace(path.resolve(), text)  # a link stays one
    except OSError as error:
        raise SettingsError(f"settings file {str(path)!r} cannot be written: {error.strerror}") from error


def _replace(path: Path, text: str) -> None:
    """At one moment, so that a server never reads half of it, with the owner and the mode that the file had."""
    new = path.with_name(f".{path.name}.new")
    try:
        new.unlink(missing_ok=True)
        new.touch(mode=0o600)
        new.write_text(text, encoding="utf-8")
        if path.exists():
            shutil.copystat(path, new)
            os.chown(new, path.stat().st_uid, path.stat().st_gid)
        new.replace(path)
    except OSError:  # a file mounted into a container cannot be replaced, nor one in a folder of somebody else
        path.write_text(text, encoding="utf-8")
    finally:
        with suppress(OSError):
            new.unlink(missing_ok=True)
