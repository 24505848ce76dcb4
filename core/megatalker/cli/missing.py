"""Options of a program can be shown where packages are missing that its work wants."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from pydantic_core.core_schema import CoreSchema, any_schema

MOST_MISSING = 50
"""Most missing packages before giving up: where more are missing, each repair only reveals another."""


@contextmanager
def stand_ins() -> Iterator["MissingPackages"]:
    """Within this context, imports through :meth:`MissingPackages.load` succeed though packages are missing.

    Only for showing help: what takes a missing package's place does nothing.
    """
    found, known = MissingPackages(), dict(sys.modules)
    sys.meta_path.insert(0, found)
    try:
        yield found
    finally:
        sys.meta_path.remove(found)
        for name in [name for name in sys.modules if name.partition(".")[0] in found.packages]:
            del sys.modules[name]
        sys.modules.update({name: module for name, module in known.items() if name not in sys.modules})


class MissingPackages(MetaPathFinder, Loader):
    """Finds modules of packages that are known to be missing: empty ones, that have every attribute."""

    def __init__(self) -> None:
        self.packages: set[str] = set()
        """Packages that were found missing."""

    def load(self, load: Callable[[], Any]) -> Any:
        """Call ``load``, once more for each package that it does not find, and return its result.

        Raises:
            ImportError: it fails in another way.
        """
        while True:
            try:
                return load()
            except ImportError as error:
                package = (error.name or "").partition(".")[0]
                if not package or package in self.packages or len(self.packages) >= MOST_MISSING:
                    raise
                self.packages.add(package)
                for name in [name for name in sys.modules if name.partition(".")[0] == package]:
                    del sys.modules[name]  # such as one whose import was forbidden

    def find_spec(self, fullname: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """The place of a module of a missing package."""
        missing = fullname.partition(".")[0] in self.packages
        return ModuleSpec(fullname, self, is_package=True) if missing else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """A module that has every attribute."""
        return _Anything(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is in it."""


class _Anything(ModuleType):
    def __getattr__(self, name: str) -> Any:
        return _attribute(name)


class _AnyClass(type):
    def __getattr__(cls, name: str) -> Any:
        return _attribute(name)

    def __getitem__(cls, _item: object) -> Any:
        return cls

    def __iter__(cls) -> Iterator[Any]:
        return iter(())

    def __or__(cls, _other: object) -> Any:
        return cls

    def __ror__(cls, _other: object) -> Any:
        return cls


def _attribute(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _AnyClass(name, (_Nothing,), {})


class _Nothing:
    def __init__(self, *_arguments: object, **_options: object) -> None:
        pass

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: object) -> CoreSchema:
        return any_schema()

    def __call__(self, *arguments: Any, **_options: Any) -> Any:
        """Return the function unchanged, when used as a decorator."""
        return arguments[0] if arguments else None
