"""Turns settings into slots: which backends may serve this engine, and in what order."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import torch

from megatalker.checkpoint import Checkpoint
from megatalker.engine.slot import Option, Slot
from megatalker.errors import SettingsError
from megatalker.interfaces import CodecBackend, LoadContext, TalkerBackend
from megatalker.plugins import BackendRegistry, computing_dtype, probe
from megatalker.plugins.checked import CheckedCodec, CheckedTalker, load_codec, load_talker
from megatalker.plugins.options import own_settings
from megatalker.settings import Settings

SpecT = TypeVar("SpecT", TalkerBackend, CodecBackend)


def talker_slot(
    registry: BackendRegistry, settings: Settings, checkpoint: Checkpoint, device: torch.device
) -> Slot[CheckedTalker]:
    """The place of the talker decoder; nothing is loaded yet.

    Raises:
        BackendNotFoundError, BackendUnavailableError: a backend named in the settings does not exist or cannot run
            here, or ``auto`` finds none.
        SettingsError: a backend's own settings are wrong, or stand under a name that no backend has.
    """
    first = registry.choose_talker(settings.backend, checkpoint, device, settings)
    named = partial(registry.choose_talker, checkpoint=checkpoint, device=device, settings=settings)
    specs = _order(first, settings.fallbacks, named, registry.talkers)
    _check_names("backends", settings.backends, [spec.name for spec in registry.talkers])
    seeded = first.capabilities.seeded_sampling
    options = []
    for spec in specs:
        refusal = partial(_refusal, spec, checkpoint, device, settings, seeded)
        load = partial(load_talker, spec, checkpoint, _context(spec, device, settings))
        options.append(Option(spec.name, refusal, load))
    return Slot("talker", options, strict=settings.backend != "auto")


def codec_slot(
    registry: BackendRegistry, settings: Settings, checkpoint: Checkpoint, device: torch.device
) -> Slot[CheckedCodec]:
    """The place of the codec, as :func:`talker_slot`."""
    first = registry.choose_codec(settings.codec, checkpoint, device, settings)
    named = partial(registry.choose_codec, checkpoint=checkpoint, device=device, settings=settings)
    specs = _order(first, settings.codec_fallbacks, named, registry.codecs)
    _check_names("codecs", settings.codecs, [spec.name for spec in registry.codecs])
    options = []
    for spec in specs:
        refusal = partial(_refusal, spec, checkpoint, device, settings, False)
        load = partial(load_codec, spec, checkpoint, _context(spec, device, settings))
        options.append(Option(spec.name, refusal, load))
    return Slot("codec", options, strict=settings.codec != "auto")


def _context(spec: TalkerBackend | CodecBackend, device: torch.device, settings: Settings) -> LoadContext:
    return LoadContext(device, computing_dtype(spec, device, settings), own_settings(spec, settings))


def _order(
    first: SpecT, fallbacks: Sequence[str] | None, named: Callable[[str], SpecT], installed: Sequence[SpecT]
) -> list[SpecT]:
    others: Sequence[SpecT] = installed if fallbacks is None else [named(name) for name in fallbacks]
    order = [first]
    order.extend(spec for spec in others if spec.name != first.name)
    return order


def _refusal(
    spec: TalkerBackend | CodecBackend,
    checkpoint: Checkpoint,
    device: torch.device,
    settings: Settings,
    seeded: bool,
) -> str | None:
    if seeded and isinstance(spec, TalkerBackend) and not spec.capabilities.seeded_sampling:
        return "it does not follow the seed, so streams cannot move to it"
    return probe(spec, checkpoint, device, settings).reason


def _check_names(table: str, given: Mapping[str, object], installed: Sequence[str]) -> None:
    for name in given:
        if name not in installed:
            known = ", ".join(installed) or "none"
            raise SettingsError(f"setting {table}.{name}: no such backend is installed; installed: {known}")
