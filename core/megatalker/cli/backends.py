"""``megatalker backends``: what is installed, what can run here, and why not."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.padding import Padding
from rich.text import Text

from megatalker.cli.console import stdout
from megatalker.cli.options import CheckpointOption, ConfigOption, DeviceOption, read_settings

if TYPE_CHECKING:
    from megatalker.interfaces import (
        Availability,
        CodecBackend,
        CodecCapabilities,
        TalkerBackend,
        TalkerCapabilities,
    )


def backends(
    checkpoint: CheckpointOption = None,
    device: DeviceOption = None,
    config: ConfigOption = None,
    names: Annotated[
        bool, typer.Option("--names", help="Print the names of the available talker backends only.")
    ] = False,
) -> None:
    """List the installed backends: name, summary, available or why not, rank, capabilities."""
    from megatalker.checkpoint import Checkpoint
    from megatalker.plugins import BackendRegistry, probe
    from megatalker.plugins.device import resolve_device

    settings = read_settings(config, checkpoint=checkpoint, device=device)
    opened = Checkpoint.open(settings.checkpoint)
    where = resolve_device(settings.device)
    registry = BackendRegistry.installed()
    if names:
        for talker in registry.talkers:
            if probe(talker, opened, where, settings).available:
                typer.echo(talker.name)
        return
    typer.echo(f"checkpoint {opened.name}, device {where}")
    kinds: list[tuple[str, Sequence[TalkerBackend | CodecBackend]]]
    kinds = [("talker backends", registry.talkers), ("codecs", registry.codecs)]
    for title, specs in kinds:
        stdout.print(f"\n[bold]{title}[/]")
        for spec in specs:
            answer = probe(spec, opened, where, settings)
            _show(spec, answer, registry.origin(spec))
    for plugin in registry.broken:
        typer.echo(f"broken plug-in {plugin.name}: {plugin.reason}")


def _show(spec: "TalkerBackend | CodecBackend", answer: "Availability", origin: str) -> None:
    """One backend as lines that wrap: nothing of a reason may be cut off, however narrow the terminal."""
    stdout.print(Text.assemble((spec.name, "bold cyan"), f"  {spec.summary}"))
    facts = Text(f"rank {spec.rank}, from {origin}: {describe(spec.capabilities)}")
    for line in (availability(answer), facts):
        stdout.print(Padding(line, (0, 0, 0, 4)))


def availability(answer: "Availability") -> Text:
    """``available``, or why not."""
    if answer.available:
        return Text("available", style="green", overflow="fold")
    return Text.assemble(("not here", "red"), f": {answer.reason}", overflow="fold")


def describe(capabilities: "TalkerCapabilities | CodecCapabilities") -> str:
    """One line of what a backend can do."""
    from megatalker.plugins.device import dtype_name

    parts = ["/".join(sorted(capabilities.devices))]
    parts.append("/".join(sorted(dtype_name(dtype) for dtype in capabilities.dtypes)))
    if isinstance(capabilities.max_streams, int):
        parts.append(f"{capabilities.max_streams} streams")
    talker = ("batch", "forced_codes", "seeded_sampling", "prefix_reuse", "batch_invariant", "exact_continuation")
    flags = (*talker, "encode", "chunk_invariant")
    parts.extend(flag.replace("_", " ") for flag in flags if getattr(capabilities, flag, False))
    return ", ".join(parts)
