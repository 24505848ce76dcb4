"""Plug-ins that a setting names: each is an object that a distribution's metadata names in an entry-point group.

None is imported before it is asked for.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, Protocol, TypeVar

from megatalker.errors import PluginError, SettingsError, UnsupportedError, describe_error, suggest


class NamedPlugin(Protocol):
    """The part of a plug-in that its group reads."""

    @property
    def name(self) -> str: ...

    @property
    def api_version(self) -> int: ...


PluginType = TypeVar("PluginType", bound=NamedPlugin)
ModelType = TypeVar("ModelType")


@dataclass(frozen=True, slots=True)
class PluginGroup(Generic[PluginType]):
    """The plug-ins of one entry-point group."""

    kind: str
    """The setting that names one, and the word for one in messages."""
    group: str
    plugin_type: type[PluginType]
    api_version: int
    off: str
    """The setting's value that stands for no plug-in."""

    def names(self) -> list[str]:
        """Return the names of the installed plug-ins."""
        return sorted({entry.name for entry in entry_points(group=self.group)})

    def find(self, name: str) -> PluginType:
        """Return the plug-in of this name.

        Raises:
            SettingsError: none is installed under this name.
            PluginError: it cannot be imported, or is none.
        """
        for entry in entry_points(group=self.group, name=name):
            return self._checked(entry)
        raise SettingsError(
            f"setting {self.kind!r} is {name!r:.60}, and no installed package brings it along (an entry point in the "
            f"group {self.group!r}){suggest(name, [self.off, *self.names()])}"
        )

    def open(self, name: str, load: Callable[[], ModelType]) -> ModelType:
        """Load the model of the plug-in of this name.

        Raises:
            UnsupportedError: a package or weights that it needs are missing.
            PluginError: it fails in another way.
        """
        try:
            return load()
        except UnsupportedError:
            raise
        except Exception as error:  # a stranger's plug-in may fail in any way
            raise PluginError(f"{self.kind} {name!r} cannot be loaded: {describe_error(error)}") from error

    def _checked(self, entry: EntryPoint) -> PluginType:
        try:
            plugin = entry.load()
        except Exception as error:
            raise PluginError(f"{self.kind} {entry.name!r} cannot be imported: {describe_error(error)}") from error
        if not isinstance(plugin, self.plugin_type) or plugin.name != entry.name:
            raise PluginError(
                f"{entry.value!r} is {plugin!r:.80}, expected {self.plugin_type.__name__} with the name {entry.name!r}"
            )
        if plugin.api_version != self.api_version:
            raise PluginError(
                f"{self.kind} {entry.name!r} is written for API version {plugin.api_version}, this megatalker has "
                f"{self.api_version}; upgrade one of them"
            )
        return plugin
