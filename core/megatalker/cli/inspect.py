"""``megatalker inspect``: a checkpoint's shapes and sizes, and which backends accept it."""

from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.table import Table

from megatalker.cli.backends import availability
from megatalker.cli.console import stdout
from megatalker.cli.options import CheckpointArgument, DeviceOption, read_settings

if TYPE_CHECKING:
    from megatalker.checkpoint import Checkpoint


def inspect(
    checkpoint: CheckpointArgument = "demo",
    device: DeviceOption = None,
) -> None:
    """Show a checkpoint's shapes and sizes, and which backends accept it and why not."""
    from megatalker.checkpoint import Checkpoint
    from megatalker.plugins import BackendRegistry, probe
    from megatalker.plugins.device import resolve_device

    opened = Checkpoint.open(checkpoint)
    settings = read_settings(None, device=device)
    where = resolve_device(settings.device)
    config = opened.config
    stdout.print(f"[bold]{opened.name}[/]  {opened.folder}", soft_wrap=True)
    stdout.print(f"{config.variant}, size {config.size}, fingerprint {opened.fingerprint}", soft_wrap=True)
    stdout.print(_shapes(opened))
    stdout.print(_sizes(opened))
    stdout.print(f"speakers: {', '.join(config.speakers) or 'none'}")
    stdout.print(f"languages: auto, {', '.join(config.languages)}")
    stdout.print(f"sampling: {opened.sampling}, max_new_tokens={opened.max_new_tokens}")
    registry = BackendRegistry.installed()
    table = Table("kind", "backend", f"on {where}", title="accepted by", title_justify="left")
    for kind, specs in (("talker", registry.talkers), ("codec", registry.codecs)):
        for spec in specs:
            table.add_row(kind, spec.name, availability(probe(spec, opened, where, settings)))
    stdout.print(table)


def _shapes(checkpoint: "Checkpoint") -> Table:
    talker, predictor = asdict(checkpoint.config.talker), asdict(checkpoint.config.predictor)
    table = Table("shape", "talker", "code predictor", title="decoder stacks", title_justify="left")
    for name, value in talker.items():
        table.add_row(name, f"{value:g}", f"{predictor[name]:g}")
    return table


def _sizes(checkpoint: "Checkpoint") -> Table:
    table = Table("part", "tensors", "parameters", "stored", title="sizes", title_justify="left")
    groups: dict[str, list[tuple[int, int]]] = {}
    for name in checkpoint.tensor_names():
        part = "code predictor" if ".code_predictor." in name else name.split(".")[0].replace("_", " ")
        tensor = checkpoint.tensor(name)
        groups.setdefault(part, []).append((tensor.numel(), tensor.numel() * tensor.element_size()))
    for name in checkpoint.codec_tensor_names():
        tensor = checkpoint.codec_tensor(name)
        part = f"codec {name.split('.')[0]}"
        groups.setdefault(part, []).append((tensor.numel(), tensor.numel() * tensor.element_size()))
    for part, rows in sorted(groups.items()):
        count, size = (sum(column) for column in zip(*rows, strict=True))
        table.add_row(part, str(len(rows)), f"{count:,}", f"{size / 2**20:.1f} MiB")
    return table
