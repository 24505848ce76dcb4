"""Finds, checks and chooses backends. Built-ins and strangers register through the same entry-point group.

A plug-in is a module with this function, or with ``megatalker_judges`` (:mod:`megatalker.plugins.judges`), or both::

    @megatalker.hookimpl
    def megatalker_backends() -> list[TalkerBackend | CodecBackend]: ...

named in its distribution's metadata as ``[project.entry-points.megatalker]``.
"""

import importlib.metadata
import itertools
import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeVar

import pluggy
import torch

from megatalker.checkpoint import Checkpoint
from megatalker.errors import BackendNotFoundError, BackendUnavailableError, PluginError, describe_error
from megatalker.interfaces import API_VERSION, Availability, CodecBackend, TalkerBackend
from megatalker.plugins.device import dtype_name, resolve_dtype
from megatalker.plugins.judges import JudgeKind, SpeechJudge, checked_judge
from megatalker.plugins.options import own_settings, refuse_unknown_tables
from megatalker.settings import Settings

PROJECT = "megatalker"
logger = logging.getLogger(__name__)

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

CHANGES = "megatalker's CHANGELOG.md lists what each version changed"
Kind = Literal["talker", "codec"]
BackendT = TypeVar("BackendT", TalkerBackend, CodecBackend)
NamedT = TypeVar("NamedT")


class Hooks:
    """The hooks a plug-in may implement."""

    @staticmethod
    @hookspec
    def megatalker_backends() -> Iterable[TalkerBackend | CodecBackend]:
        """Return the backends this plug-in provides. Called again whenever another plug-in is registered, so it gives
        the same answer each time and loads nothing heavy.

        A wrapper (``hookimpl(wrapper=True)``) sees the answers of all plug-ins and may change them. Where backends rank
        equal, the answer that pluggy puts first comes first: ``tryfirst``, then by name of the entry point.
        """
        raise NotImplementedError

    @staticmethod
    @hookspec
    def megatalker_judges() -> Iterable[SpeechJudge]:
        """Return the judges of speech that this plug-in provides; called as :meth:`megatalker_backends`."""
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
        self._judges: dict[tuple[JudgeKind, str], SpeechJudge] = {}
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
        # Not pluggy's own loop over entry points, which ends at the first that cannot be imported. Backwards, because
        # pluggy asks the plug-in first that was registered last.
        entries = importlib.metadata.entry_points(group=PROJECT)
        for entry in sorted(entries, key=lambda entry: entry.name, reverse=True):
            try:
                registry.register(entry.load(), entry.name)
            except BaseException as error:  # a stranger's plug-in may fail in any way, and not take the others down
                _raise_if_interrupted(error)
                reason = f"{describe_error(error)}{_version_advice(error)}"
                logger.warning("plug-in %r is ignored: %s. Fix or uninstall it.", entry.name, reason)
                registry.broken.append(BrokenPlugin(entry.name, reason))
        return registry

    def register(self, plugin: object, name: str) -> None:
        """Add one plug-in.

        Raises:
            PluginError: its name is taken, it implements none of the hooks, returns something else than specifications,
                was written for another API version, or gives a backend a name that exists. The message
                names the plug-in and the fix. Nothing of the plug-in is registered then.
            Exception: any error of its hook. Nothing of the plug-in is registered then.
        """
        if self._manager.has_plugin(name):
            raise PluginError(f"a plug-in named {name!r} is registered already; rename one of them or uninstall it")
        try:
            self._manager.register(plugin, name)
            self._manager.check_pending()
        except (ValueError, pluggy.PluginValidationError) as error:
            if self._manager.has_plugin(name):
                self._manager.unregister(name=name)
            raise PluginError(f"plug-in {name!r} cannot be registered: {error}") from error
        try:
            if not self._manager.get_hookcallers(plugin):
                raise PluginError(
                    f"plug-in {name!r} has no function marked @megatalker.hookimpl named megatalker_backends "
                    "or megatalker_judges"
                )
            self._collect(name)
            self._collect_judges(name)
        except BaseException:
            self._manager.unregister(name=name)
            raise

    def _collect(self, added: str) -> None:
        """Ask all plug-ins for their backends. Those before ``added`` were valid, so a fault is of its making."""
        hook = self._manager.hook.megatalker_backends
        answers, asked = hook(), hook.get_hookimpls()
        if len(answers) < len(asked) and not any(impl.wrapper or impl.hookwrapper for impl in asked):
            raise PluginError(f"plug-in {added!r} returned None from megatalker_backends, expected a list")
        talkers: dict[str, TalkerBackend] = {}
        codecs: dict[str, CodecBackend] = {}
        origin: dict[tuple[Kind, str], str] = {}
        for spec in itertools.chain.from_iterable(answers):
            kind = _check(spec, added)
            if (kind, spec.name) in origin:
                raise PluginError(
                    f"plug-in {added!r}: the {kind} backend name {spec.name!r} is already taken by plug-in "
                    f"{origin[kind, spec.name]!r}; rename one of them or uninstall the other"
                )
            origin[kind, spec.name] = self._origin.get((kind, spec.name), added)
            if isinstance(spec, TalkerBackend):
                talkers[spec.name] = spec
            else:
                codecs[spec.name] = spec
        self._talkers, self._codecs, self._origin = talkers, codecs, origin

    def _collect_judges(self, added: str) -> None:
        """Ask all plug-ins for their judges; see :meth:`_collect`."""
        judges: dict[tuple[JudgeKind, str], SpeechJudge] = {}
        for judge in itertools.chain.from_iterable(self._manager.hook.megatalker_judges()):
            checked_judge(judge, added)
            if (judge.kind, judge.name) in judges:
                raise PluginError(
                    f"plug-in {added!r}: there is a {judge.kind} judge named {judge.name!r} already; "
                    "rename one of them or uninstall the other"
                )
            judges[judge.kind, judge.name] = judge
        self._judges = judges

    def judges(self, kind: JudgeKind) -> list[SpeechJudge]:
        """Judges of this kind, best rank first."""
        return sorted((judge for judge in self._judges.values() if judge.kind == kind), key=lambda judge: -judge.rank)

    def judge(self, kind: JudgeKind, name: str) -> SpeechJudge:
        """The judge of this kind and name; raises as :meth:`talker`."""
        known = {judge.name: judge for judge in self.judges(kind)}
        return self._get(kind, name, known)

    @property
    def talkers(self) -> list[TalkerBackend]:
        """Talker backends, best rank first; equal ranks in the order of the hook."""
        return _by_rank(self._talkers)

    @property
    def codecs(self) -> list[CodecBackend]:
        """Codec backends, as :attr:`talkers`."""
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

    def _get(self, kind: Kind | JudgeKind, name: str, known: dict[str, NamedT]) -> NamedT:
        if name in known:
            return known[name]
        broken = "".join(f"; plug-in {plugin.name!r} is broken: {plugin.reason}" for plugin in self.broken)
        noun = f"{kind} {'backend' if kind in ('talker', 'codec') else 'judge'}"
        raise BackendNotFoundError(
            f"{noun} {name!r} is not installed; installed: {', '.join(sorted(known)) or 'none'}{broken}. "
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
        """Choose a codec; see :meth:`choose_talker`."""
        return self._choose("codec", name, self._codecs, checkpoint, device, settings)

    def choose_encoder(self, checkpoint: Checkpoint, device: torch.device, settings: Settings) -> CodecBackend:
        """Choose the best available codec whose capabilities list ``encode``; see :meth:`choose_talker`."""
        encoders = {name: spec for name, spec in self._codecs.items() if spec.capabilities.encode}
        if not encoders:
            raise BackendUnavailableError(
                f"no installed codec encodes recordings; installed: {', '.join(sorted(self._codecs)) or 'none'}"
            )
        return self._choose("codec", "auto", encoders, checkpoint, device, settings)

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
    return sorted(known.values(), key=lambda spec: -spec.rank)


def _check(spec: object, plugin: str) -> Kind:
    """Return the kind of backend that ``plugin`` describes; raises ``PluginError`` when it cannot serve."""
    if not isinstance(spec, TalkerBackend | CodecBackend):
        raise PluginError(
            f"plug-in {plugin!r} returned {type(spec).__name__} from megatalker_backends, "
            "expected TalkerBackend or CodecBackend"
        )
    kind: Kind = "talker" if isinstance(spec, TalkerBackend) else "codec"
    if spec.api_version != API_VERSION:
        side = "plug-in" if spec.api_version < API_VERSION else "megatalker"
        raise PluginError(
            f"plug-in {plugin!r}: {kind} backend {spec.name!r} is written for API version {spec.api_version}, "
            f"this megatalker has {API_VERSION}; upgrade the {side} ({CHANGES})"
        )
    if not spec.name.isidentifier() or spec.name != spec.name.lower() or spec.name in ("auto", "all"):
        raise PluginError(
            f"plug-in {plugin!r}: {spec.name!r} cannot name a backend; "
            "expected a lower-case identifier other than 'auto' and 'all'"
        )
    return kind


def _raise_if_interrupted(error: BaseException) -> None:
    """Ctrl-C is meant for the program: Python raises it in the main thread only."""
    if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
        raise error


def _version_advice(error: BaseException) -> str:
    """Return advice for a plug-in that uses a name of an older or newer version of the contract."""
    if isinstance(error, ImportError) and (error.name or "").partition(".")[0] == PROJECT:
        return f"; if it is written for another API version than {API_VERSION}, upgrade one side ({CHANGES})"
    return ""


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
        answer: object = spec.probe(checkpoint, device, own)
    except BaseException as error:  # a stranger's probe may fail in any way; the reason is what the user needs
        _raise_if_interrupted(error)
        return Availability(f"its probe failed: {describe_error(error)}")
    if not isinstance(answer, Availability):
        return Availability(f"its probe returned {type(answer).__name__}, expected Availability")
    dtype = computing_dtype(spec, device, settings)
    if answer.available and dtype not in spec.capabilities.dtypes:
        known = ", ".join(sorted(dtype_name(known) for known in spec.capabilities.dtypes))
        return Availability(f"computes in {known}, not in {dtype_name(dtype)}; choose another dtype")
    return answer


def computing_dtype(spec: TalkerBackend | CodecBackend, device: torch.device, settings: Settings) -> torch.dtype:
    """Return the type a backend would compute in: the setting ``dtype``; float32 for codecs that offer it."""
    exact = isinstance(spec, CodecBackend) and torch.float32 in spec.capabilities.dtypes
    return torch.float32 if exact else resolve_dtype(settings.dtype, device)
