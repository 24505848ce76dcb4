"""``megatalker inspect``: a checkpoint's shapes and sizes, and which backends accept it."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from megatalker.cli.backends import availability
from megatalker.cli.console import stdout
from megatalker.cli.options import CheckpointArgument, DeviceOption, read_settings

if TYPE_CHECKING:
    import torch

    from megatalker.checkpoint import Checkpoint
    from megatalker.settings import Settings


def inspect(
    checkpoint: CheckpointArgument = "demo",
    device: DeviceOption = None,
    streams: Annotated[int, typer.Option(min=1, max=2048, help="Streams to have room for.")] = 1,
    gpu_memory: Annotated[
        float | None, typer.Option(min=0.5, max=1024, help="GB of a GPU, which need not be here: streams that fit.")
    ] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Speak two seconds: is it real time here?")] = False,
) -> None:
    """Show a checkpoint's shapes and sizes, which backends accept it and why not, and what it takes here."""
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
    stdout.print(_memory(opened, settings, where, streams))
    if gpu_memory is not None:
        stdout.print(_gpu(opened, settings, gpu_memory))
    if measure:
        _measure(opened, settings)


def _memory(checkpoint: "Checkpoint", settings: "Settings", device: "torch.device", streams: int) -> Table:
    from megatalker.cli.fitting import fittings
    from megatalker.plugins.device import resolve_dtype
    from megatalker.plugins.memory import available_bytes

    room = available_bytes(device)
    left = "" if room is None else f", {_size(room)} left"
    title = f"memory on {device} besides Python and torch{left}"
    table = Table("talker", "weights", "loaded", "a stream, 1 min", f"{streams} streams", "fits", title=title)
    for one in fittings(checkpoint, device, resolve_dtype(settings.dtype, device), settings, streams):
        whole = one.need.load_bytes + streams * one.need.stream_bytes
        missing = None if room is None else whole - room
        fits = "unknown" if missing is None else "yes" if missing <= 0 else f"no, {missing:,} bytes are missing"
        table.add_row(
            one.talker, one.weights, _size(one.need.load_bytes), _size(one.need.stream_bytes), _size(whole), fits
        )
    return table


def _gpu(checkpoint: "Checkpoint", settings: "Settings", gigabytes: float) -> Table:
    from megatalker.cli.fitting import streams_that_fit

    table = Table(
        "talker", "weights", "streams", title=f"on a GPU of {gigabytes:g} GB, each having spoken for a minute"
    )
    for name, weights, streams, missing in streams_that_fit(checkpoint, settings, int(gigabytes * 1e9)):
        table.add_row(name, weights, str(streams) if streams else f"none: {missing:,} bytes are missing")
    return table


def _measure(checkpoint: "Checkpoint", settings: "Settings") -> None:
    from megatalker.cli.fitting import measure

    backend, factor, first_s, loaded_s = measure(checkpoint, settings)
    verdict = "real time" if factor < 1 else "slower than real time"
    stdout.print(
        f"measured: {verdict}, RTF {factor:.2f} with {backend}, uncompiled; first chunk {first_s * 1e3:.0f} ms, "
        f"loaded in {loaded_s:.1f} s",
        soft_wrap=True,
    )


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


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
