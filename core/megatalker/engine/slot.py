"""The two places of an engine, for a talker decoder and for a codec: what is loaded, what failed, who is next."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from megatalker.interfaces import CodecCapabilities, TalkerCapabilities
from megatalker.plugins.checked import CheckedCodec, CheckedTalker

Kind = Literal["talker", "codec"]
InstanceT = TypeVar("InstanceT", CheckedTalker, CheckedCodec)
logger = logging.getLogger(__name__)

WARM_CALLS = 8
"""Successful calls after which a backend that was never warmed up is taken to have compiled what it compiles."""


@dataclass(frozen=True, slots=True)
class Option(Generic[InstanceT]):
    """A backend that may be loaded into a slot."""

    name: str
    refusal: Callable[[], str | None]
    """Asks whether it can run here: the reason why not, or ``None``."""
    load: Callable[[], InstanceT]


@dataclass(slots=True, eq=False)
class Loaded(Generic[InstanceT]):
    """A backend in memory."""

    kind: Kind
    name: str
    instance: InstanceT
    warm: bool = False
    """From now on a call that takes long is a fault, not a compilation."""
    _calls: int = 0

    def note_call(self) -> None:
        """A call succeeded."""
        self._calls += 1
        self.warm = self.warm or self._calls >= WARM_CALLS

    def close(self) -> None:
        """Free it, whatever state a failure left it in."""
        try:
            self.instance.close()
        except BaseException as error:  # it was given up already; its last words belong in the log only
            logger.warning("%s backend %s failed to close: %s: %s", self.kind, self.name, type(error).__name__, error)


@dataclass(slots=True, eq=False)
class Slot(Generic[InstanceT]):
    """One place. A backend that failed here once is never used again by this engine."""

    kind: Kind
    options: Sequence[Option[InstanceT]]
    """In the order in which they serve."""
    strict: bool
    """The first was asked for by name: no other may stand in for it when it cannot be loaded at the start."""
    loaded: Loaded[InstanceT] | None = None
    faulty: dict[str, str] = field(default_factory=dict)
    """Name -> why it was given up."""
    last: str = ""
    """Name of the backend that serves, or served last."""
    capabilities: TalkerCapabilities | CodecCapabilities | None = None
    """Of that backend."""

    def next(self) -> Option[InstanceT] | None:
        """The first backend that has not failed and can run, or ``None``. Logs why others are passed over."""
        opening = not self.last
        for option in self.options[:1] if opening and self.strict else self.options:
            if option.name in self.faulty:
                continue
            reason = option.refusal()
            if reason is None:
                return option
            logger.info("%s backend %s is passed over: %s", self.kind, option.name, reason)
        return None

    def fill(self, option: Option[InstanceT], instance: InstanceT) -> str:
        """``instance`` serves from now on; returns the name of the backend that served before, if any."""
        self.capabilities = instance.capabilities
        self.loaded = Loaded(self.kind, option.name, instance)
        previous, self.last = self.last, option.name
        return previous

    def give_up(self, name: str, reason: str) -> None:
        """Mark a backend as faulty; what is loaded under this name serves no more."""
        self.faulty[name] = reason
        if self.loaded is not None and self.loaded.name == name:
            self.loaded = None

    def why_empty(self) -> str:
        """One line for the error of a slot that nothing can fill."""
        failed = "; ".join(f"{name}: {reason}" for name, reason in self.faulty.items())
        others = "no other can take over" if self.options[1:] else "no fallback is configured or installed"
        return f"no {self.kind} backend is left ({failed or 'none could run'}; {others})"
