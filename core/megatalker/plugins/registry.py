"""Finds, checks and chooses backends. Built-ins and strangers register through the same entry-point group.

A plug-in is a module with one function::

    @megatalker.hookimpl
    def megatalker_backends() -> list[TalkerBackend | CodecBackend]: ...

named in its distribution's metadata as ``[project.entry-points.megatalker]``.
"""

import importlib.metadata
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeVar, cast

import pluggy
import torch

from megatalker.checkpoint import Checkpoint
from megatalker.errors import BackendNotFoundError, BackendUnavailableError, PluginError
from megatalker.interfaces import API_VERSION, Availability, CodecBackend, TalkerBackend
from megatalker.plugins.device import dtype_name, resolve_dtype
from megatalker.plugins.options import own_settings, refuse_unknown_tables
from megatalker.settings import Settings

PROJECT = "megatalker"
logger = logging.getLogger(__name__)

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

Kind = Literal["talker", "codec"]
BackendT = TypeVar("BackendT", TalkerBackend, CodecBackend)


class Hooks:
    """The hooks a plug-in may implement."""

    @staticmethod
    @hookspec
    def megatalker_backends() -> Iterable[TalkerBackend | CodecBackend]:
        """Return the backends this plug-in provides. Called once; must not load anything heavy."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class BrokenPlugin:
    """A plug-in that could not be imported or registered, and why."""

    name: str
    reason: str


class BackendRegistry:
    """The backends of one process's installed plug-ins. Cheap to make; holds no device memory."""

    def __init__(self, plugins: Iterable[tuple[str, object]] = ()) -> None:
        """Register ``plugins`` (name, module or object with hook implementations), in order.

        Use :meth:`installed` for the plug-ins of the environment.
        """
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(Hooks)
        self._talkers: dict[str, TalkerBackend] = {}
        self._codecs: dict[str, CodecBackend] = {}
        self._origin: dict[tuple[Kind, str], str] = {}
        self.broken: list[BrokenPlugin] = []
        for name, plugin in plugins:
            self.register(plugin, name)

    @classmethod
    def installed(cls) -> "BackendRegistry":
        """All plug-ins of the entry-point group ``megatalker``; a broken one is remembered in ``broken`` and warned
        about.
        """
        registry = cls()
        for entry in importlib.metadata.entry_points(group=PROJECT):
            try:
                registry.register(entry.load(), entry.name)
            except Exception as error:  # a stranger's plug-in may fail in any way, and must not take the others down
                reason = f"{type(error).__name__}: {error}"
                logger.warning("plug-in %r is ignored: %s. Fix or uninstall it.", entry.name, reason)
                registry.broken.append(BrokenPlugin(entry.name, reason))
        return registry

    def register(self, plugin: object, name: str) -> None:
        """Add one plug-in.

        Raises:
            PluginError: it has no ``megatalker_backends`` hook, returns something else than specifications, was
                written for
                another API version, or takes a name that exists. The message names the plug-in and the fix. Nothing of
                the
                plug-in is registered then.
        """
        try:
            self._manager.register(plugin, name)
            self._manager.check_pending()
        except (ValueError, pluggy.PluginValidationError) as error:
            if self._manager.has_plugin(name):
                self._manager.unregister(name=name)
            raise PluginError(f"plug-in {name!r} cannot be registered: {error}") from error
        callers = [impl for impl in self._manager.hook.megatalker_backends.get_hookimpls() if impl.plugin_name == name]
        try:
            if not callers:
                raise PluginError(
                    f"plug-in {name!r} has no function marked @megatalker.hookimpl named megatalker_backends"
                )
            self._add(name, list(cast("Iterable[object]", callers[0].function())))
        except BaseException:
            self._manager.unregister(name=name)
            raise

    def _add(self, plugin: str, backends: list[object]) -> None:
        fresh: list[tuple[Kind, TalkerBackend | CodecBackend]] = []
        for backend in backends:
            if isinstance(backend, TalkerBackend):
                fresh.append(("talker", backend))
            elif isinstance(backend, CodecBackend):
                fresh.append(("codec", backend))
            else:
                raise PluginError(
                    f"plug-in {plugin!r} returned {type(backend).__name__} from megatalker_backends, "
                    "expected TalkerBackend or CodecBackend"
                )
        seen = dict(self._origin)
        for kind, spec in fresh:
            if spec.api_version != API_VERSION:
                side = "plug-in" if spec.api_version < API_VERSION else "megatalker"
                raise PluginError(
                    f"plug-in {plugin!r}: {kind} backend {spec.name!r} is written for API version {spec.api_version}, "
                    f"this megatalker has {API_VERSION}; upgrade the {side}"
                )
            if not spec.name.isidentifier() or spec.name != spec.name.lower() or spec.name in ("auto", "all"):
                raise PluginError(
                    f"plug-in {plugin!r}: {spec.name!r} cannot name a backend; "
                    "expected a lower-case identifier other than 'auto' and 'all'"
                )
            if (kind, spec.name) in seen:
                raise PluginError(
                    f"plug-in {plugin!r}: the {kind} backend name {spec.name!r} is already taken by plug-in "
                    f"{seen[kind, spec.name]!r}; rename one of them or uninstall the other"
                )
            seen[kind, spec.name] = plugin
        for kind, spec in fresh:
            self._origin[kind, spec.name] = plugin
            if isinstance(spec, TalkerBackend):
                self._talkers[spec.name] = spec
            else:
                self._codecs[spec.name] = spec

    @property
    def talkers(self) -> list[TalkerBackend]:
        """Talker backends, best rank first."""
        return _by_rank(self._talkers)

    @property
    def codecs(self) -> list[CodecBackend]:
        """Codec backends, best rank first."""
        return _by_rank(self._codecs)

    def origin(self, spec: TalkerBackend | CodecBackend) -> str:
        """The name of the plug-in that provides this backend."""
        return self._origin["talker" if isinstance(spec, TalkerBackend) else "codec", spec.name]

    def talker(self, name: str) -> TalkerBackend:
        """The talker backend of this name.

        Raises:
            BackendNotFoundError: none is installed; the message lists those that are, and broken plug-ins.
        """
        return self._get("talker", name, self._talkers)

    def codec(self, name: str) -> CodecBackend:
        """The codec backend of this name; raises as :meth:`talker`."""
        return self._get("codec", name, self._codecs)

    def _get(self, kind: Kind, name: str, known: dict[str, BackendT]) -> BackendT:
        if name in known:
            return known[name]
        broken = "".join(f"; plug-in {plugin.name!r} is broken: {plugin.reason}" for plugin in self.broken)
        raise BackendNotFoundError(
            f"{kind} backend {name!r} is not installed; installed: {', '.join(sorted(known)) or 'none'}{broken}. "
            f"Install a distribution that registers it in the entry-point group {PROJECT!r}."
        )

    def choose_talker(
        self, name: str, checkpoint: Checkpoint, device: torch.device, settings: Settings
    ) -> TalkerBackend:
        """Resolve ``name``, or the best available talker backend for ``"auto"``, and log which and why.

        Raises:
            BackendNotFoundError: no such backend.
            BackendUnavailableError: it exists but cannot run here (or, for ``auto``, none can); with the reasons.
            SettingsError: the backend's own settings are wrong, or there are settings for one that is not installed.
        """
        return self._choose("talker", name, self._talkers, checkpoint, device, settings)

    def choose_codec(self, name: str, checkpoint: Checkpoint, device: torch.device, settings: Settings) -> CodecBackend:
        """As :meth:`choose_talker`, for codecs."""
        return self._choose("codec", name, self._codecs, checkpoint, device, settings)

    def _choose(
        self,
        kind: Kind,
        name: str,
        known: dict[str, BackendT],
        checkpoint: Checkpoint,
        device: torch.device,
        settings: Settings,
    ) -> BackendT:
        if not self.broken:  # whose backends' names are not known
            refuse_unknown_tables("backends" if kind == "talker" else "codecs", settings, known)
        if name != "auto":
            spec = self._get(kind, name, known)
            answer = probe(spec, checkpoint, device, settings)
            if not answer.available:
                raise BackendUnavailableError(f"{kind} backend {name!r} cannot run here: {answer.reason}")
            return spec
        reasons: list[str] = []
        for spec in _by_rank(known):
            answer = probe(spec, checkpoint, device, settings)
            if answer.available:
                skipped = f"; passed over {'; '.join(reasons)}" if reasons else ""
                logger.info("%s backend: %s, the best available on %s%s", kind, spec.name, device, skipped)
                return spec
            reasons.append(f"{spec.name}: {answer.reason}")
        raise BackendUnavailableError(
            f"no {kind} backend can run on {device}: {'; '.join(reasons) or 'none is installed'}"
        )


def _by_rank(known: dict[str, BackendT]) -> list[BackendT]:
    return sorted(known.values(), key=lambda spec: (-spec.rank, spec.name))


def probe(
    spec: TalkerBackend | CodecBackend, checkpoint: Checkpoint, device: torch.device, settings: Settings
) -> Availability:
    """Ask a backend whether it can run, with device and dtype checked for it and its exceptions turned into reasons.

    Raises:
        SettingsError: the backend's own settings are wrong.
    """
    own = own_settings(spec, settings)
    if device.type not in spec.capabilities.devices:
        return Availability(f"runs on {', '.join(sorted(spec.capabilities.devices))}, not on {device.type}")
    try:
        answer = spec.probe(checkpoint, device, own)
    except Exception as error:  # a stranger's probe may fail in any way; the reason is what the user needs
        return Availability(f"its probe failed: {type(error).__name__}: {error}")
    dtype = computing_dtype(spec, device, settings)
    if answer.available and dtype not in spec.capabilities.dtypes:
        known = ", ".join(sorted(dtype_name(known) for known in spec.capabilities.dtypes))
        return Availability(f"computes in {known}, not in {dtype_name(dtype)}; choose another dtype")
    return answer


def computing_dtype(spec: TalkerBackend | CodecBackend, device: torch.device, settings: Settings) -> torch.dtype:
    """What a backend would compute in: the setting ``dtype``. Codecs promise exactness: float32, if they can."""
    exact = isinstance(spec, CodecBackend) and torch.float32 in spec.capabilities.dtypes
    return torch.float32 if exact else resolve_dtype(settings.dtype, device)
