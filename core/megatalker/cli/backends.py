"""``megatalker backends``: what is installed, what can run here, and why not."""

from typing import Annotated

import torch
import typer
from rich.table import Table

from megatalker.checkpoint import Checkpoint
from megatalker.cli.console import stdout
from megatalker.cli.options import CheckpointOption, ConfigOption, DeviceOption, read_settings
from megatalker.interfaces import Capabilities, CodecBackend, TalkerBackend
from megatalker.plugins import BackendRegistry, probe
from megatalker.plugins.device import dtype_name, resolve_device
from megatalker.settings import Settings


def backends(
    checkpoint: CheckpointOption = None,
    device: DeviceOption = None,
    config: ConfigOption = None,
    names: Annotated[
        bool, typer.Option("--names", help="Print the names of the available talker backends only.")
    ] = False,
) -> None:
    """List the installed backends: name, summary, available or why not, rank, capabilities."""
    settings = read_settings(config, checkpoint=checkpoint, device=device)
    opened = Checkpoint.open(settings.checkpoint)
    where = resolve_device(settings.device)
    registry = BackendRegistry.installed()
    if names:
        for spec in registry.talkers:
            if probe(spec, opened, where, settings).available:
                stdout.print(spec.name)
        return
    stdout.print(f"checkpoint {opened.name}, device {where}")
    stdout.print(_table("talker backends", registry, registry.talkers, opened, where, settings))
    stdout.print(_table("codecs", registry, registry.codecs, opened, where, settings))
    for plugin in registry.broken:
        stdout.print(f"[red]broken plug-in {plugin.name}[/]: {plugin.reason}")


def _table(
    title: str,
    registry: BackendRegistry,
    specs: list[TalkerBackend] | list[CodecBackend],
    checkpoint: Checkpoint,
    device: torch.device,
    settings: Settings,
) -> Table:
    table = Table("name", "summary", "here", "rank", "capabilities", "from", title=title, title_justify="left")
    for spec in specs:
        answer = probe(spec, checkpoint, device, settings)
        here = "[green]available[/]" if answer.available else f"[red]no[/]: {answer.reason}"
        table.add_row(spec.name, spec.summary, here, str(spec.rank), describe(spec.capabilities), registry.origin(spec))
    return table


def describe(capabilities: Capabilities) -> str:
    """One line of what a backend can do."""
    parts = ["/".join(sorted(capabilities.devices))]
    parts.append("/".join(sorted(dtype_name(dtype) for dtype in capabilities.dtypes)))
    if capabilities.max_streams is not None:
        parts.append(f"{capabilities.max_streams} streams")
    flags = ("batch", "forced_codes", "seeded_sampling", "prefix_reuse", "encode", "chunk_invariant")
    parts.extend(flag.replace("_", " ") for flag in flags if getattr(capabilities, flag))
    return ", ".join(parts)
