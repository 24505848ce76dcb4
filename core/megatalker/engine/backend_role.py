"""The two roles of an engine, talker and codec: which backends may fill each, which does, which failed, who is next."""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import torch

from megatalker.checkpoint import Checkpoint
from megatalker.errors import describe_error
from megatalker.interfaces import CodecBackend, LoadContext, TalkerBackend
from megatalker.plugins import BackendRegistry, computing_dtype, probe
from megatalker.plugins.checked import CheckedCodec, CheckedTalker, load_codec, load_talker
from megatalker.plugins.options import own_settings, refuse_unknown_tables
from megatalker.plugins.registry import Kind
from megatalker.settings import Settings

InstanceT = TypeVar("InstanceT", CheckedTalker, CheckedCodec)
SpecT = TypeVar("SpecT", TalkerBackend, CodecBackend)
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BackendOption(Generic[InstanceT]):
    """A backend that may fill a role."""

    name: str
    refusal: Callable[[], str | None]
    """Asks whether it can run here: the reason why not, or ``None``."""
    load: Callable[[], InstanceT]


@dataclass(slots=True, eq=False)
class LoadedBackend(Generic[InstanceT]):
    """A backend in memory."""

    kind: Kind
    name: str
    instance: InstanceT
    warm: bool = False
    """From now on a call that takes long is a fault, not a compilation."""
    calls: int = 0
    """That succeeded."""
    refusals: int = 0
    """Requests that it has refused since its last frame."""
    preparing: str | None = None
    """Words for something that it prepares in the background; ``None``: nothing."""
    unprepared: str | None = None
    """Why it goes on without what it had prepared."""
    prepare_at: float = math.inf
    """When it is asked next about what it has prepared; infinite: before warm-up, and when nothing is left."""

    def close(self) -> None:
        """Free it, whatever state a failure left it in."""
        try:
            self.instance.close()
        except BaseException as error:  # it was given up already; its last words belong in the log only
            logger.warning("%s backend %s failed to close: %s", self.kind, self.name, describe_error(error))


@dataclass(slots=True)
class Accusation:
    """A backend failed in a call; it or one of the requests of that call is to blame."""

    reason: str
    doubtful: bool = False
    """One of those requests ended before it was tried again."""


@dataclass(slots=True, eq=False)
class BackendRole(Generic[InstanceT]):
    """One role. A backend that is to blame for a failure in it is never used again by this engine."""

    kind: Kind
    options: Sequence[BackendOption[InstanceT]]
    """In the order in which they serve."""
    strict: bool
    """The first was asked for by name: no other may stand in for it before it has served."""
    loaded: LoadedBackend[InstanceT] | None = None
    faulty: dict[str, str] = field(default_factory=dict)
    """Name -> why it was given up."""
    accused: dict[str, Accusation] = field(default_factory=dict)
    """By name, those that failed and may not be to blame; see :mod:`megatalker.engine.failover`."""
    latest_fault: str = ""
    """Why the backend before was taken out."""
    last: str = ""
    """Name of the backend that serves, or served last."""
    instance: InstanceT = field(init=False, repr=False)
    """That backend; not set before one was loaded. Only its facts may be asked for after it was given up."""

    def next(self) -> BackendOption[InstanceT] | None:
        """The first backend that is not faulty and can run, or ``None``; one that is accused only where there is no
        other. Logs why others are passed over.
        """
        opening = not self.last
        options = self.options[:1] if opening and self.strict else self.options
        for option in sorted(options, key=lambda option: option.name in self.accused):
            if option.name in self.faulty:
                continue
            reason = _refusal(option)
            if reason is None:
                return option
            logger.info("%s backend %s is passed over: %s", self.kind, option.name, reason)
        return None

    @property
    def has_substitute(self) -> bool:
        """Another backend could take over from the one that serves."""
        others = (option for option in self.options if option.name != self.last and option.name not in self.faulty)
        return any(_refusal(option) is None for option in others)

    def tell_left_out(self) -> None:
        """Log which fallbacks cannot run here, and why, before one is needed."""
        for option in self.options[1:]:
            reason = option.refusal()
            if reason is not None:
                logger.info("%s backend %s is left out of failover: %s", self.kind, option.name, reason)

    def fill(self, option: BackendOption[InstanceT], instance: InstanceT) -> str:
        """``instance`` serves from now on; returns the name of the backend that served before, if any."""
        self.loaded = LoadedBackend(self.kind, option.name, instance)
        self.instance = instance
        previous, self.last = self.last, option.name
        return previous

    def give_up(self, name: str, reason: str) -> None:
        """Mark a backend as faulty; what is loaded under this name serves no more."""
        logger.warning("%s backend %s is faulty and is used no more: %s", self.kind, name, reason)
        self.faulty[name] = reason
        self.take_out(name, reason)

    def take_out(self, name: str, reason: str) -> None:
        """Stop using what is loaded under this name."""
        if self.loaded is not None and self.loaded.name == name:
            self.loaded, self.latest_fault = None, reason

    def why_empty(self) -> str:
        """One line for the error of a role that nothing can fill."""
        refusals = {option.name: _refusal(option) for option in self.options if option.name not in self.faulty}
        reasons = self.faulty | {name: reason for name, reason in refusals.items() if reason is not None}
        failed = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        others = "no other can take over" if self.options[1:] else "no fallback is configured or installed"
        return f"no {self.kind} backend is left ({failed or 'none could run'}; {others})"


def talker_role(
    registry: BackendRegistry, settings: Settings, checkpoint: Checkpoint, device: torch.device
) -> BackendRole[CheckedTalker]:
    """The role of the talker decoder; nothing is loaded yet.

    Raises:
        BackendNotFoundError, BackendUnavailableError: a backend named in the settings does not exist or cannot run
            here, or ``auto`` finds none.
        SettingsError: a backend's own settings are wrong, or stand under a name that no backend has.
    """
    choose = partial(registry.choose_talker, checkpoint=checkpoint, device=device, settings=settings)
    specs = _order(choose, settings.backend, settings.fallbacks, registry.talkers)
    refuse_unknown_tables("backends", settings, [spec.name for spec in registry.talkers])
    seeded = specs[0].capabilities.seeded_sampling

    def refusal(spec: TalkerBackend) -> str | None:
        if seeded and not spec.capabilities.seeded_sampling:
            return "it does not follow the seed, so streams cannot move to it"
        return probe(spec, checkpoint, device, settings).reason

    def load(spec: TalkerBackend) -> CheckedTalker:
        talker = load_talker(spec, checkpoint, _context(spec, device, settings))
        checkpoint.release_pages()
        if talker.max_streams is not None and talker.max_streams < settings.max_streams:
            logger.warning(
                "talker backend %s holds %d streams at a time, max_streams is %d: the others wait",
                spec.name,
                talker.max_streams,
                settings.max_streams,
            )
        return talker

    role = BackendRole("talker", _options(specs, refusal, load), strict=settings.backend != "auto")
    role.tell_left_out()
    return role


def codec_role(
    registry: BackendRegistry, settings: Settings, checkpoint: Checkpoint, device: torch.device
) -> BackendRole[CheckedCodec]:
    """The role of the codec, as :func:`talker_role`."""
    choose = partial(registry.choose_codec, checkpoint=checkpoint, device=device, settings=settings)
    specs = _order(choose, settings.codec, settings.codec_fallbacks, registry.codecs)
    refuse_unknown_tables("codecs", settings, [spec.name for spec in registry.codecs])

    def refusal(spec: CodecBackend) -> str | None:
        return probe(spec, checkpoint, device, settings).reason

    def load(spec: CodecBackend) -> CheckedCodec:
        codec = load_codec(spec, checkpoint, _context(spec, device, settings))
        checkpoint.release_pages()
        return codec

    role = BackendRole("codec", _options(specs, refusal, load), strict=settings.codec != "auto")
    role.tell_left_out()
    return role


def _order(
    choose: Callable[[str], SpecT], first: str, fallbacks: Sequence[str] | None, installed: Sequence[SpecT]
) -> list[SpecT]:
    order = [choose(first)]
    others = installed if fallbacks is None else [choose(name) for name in fallbacks]
    order.extend(spec for spec in others if spec.name != order[0].name)
    return order


def _options(
    specs: Sequence[SpecT], refusal: Callable[[SpecT], str | None], load: Callable[[SpecT], InstanceT]
) -> list[BackendOption[InstanceT]]:
    return [BackendOption(spec.name, partial(refusal, spec), partial(load, spec)) for spec in specs]


def _refusal(option: BackendOption[Any]) -> str | None:
    """Return ``option.refusal()``; a backend that cannot be asked cannot run."""
    try:
        return option.refusal()
    except Exception as error:  # a stranger's backend may fail in any way
        return describe_error(error)


def _context(spec: TalkerBackend | CodecBackend, device: torch.device, settings: Settings) -> LoadContext:
    dtype, own = computing_dtype(spec, device, settings), own_settings(spec, settings)
    return LoadContext(device, dtype, own, settings.max_streams, early=settings.warmup == "first")
