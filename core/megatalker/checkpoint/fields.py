"""Typed reading of a checkpoint's JSON files: every value is what the code takes it for, or the error names it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megatalker.errors import CheckpointError

LARGEST = 2**24
"""Largest size or id: more than any checkpoint has, and small enough to compute with."""
_REQUIRED: Any = object()


class Table:
    """A JSON object of a configuration file. Each method reads one key.

    Args:
        file: what errors call the file.
        content: the parsed object.
        name: the object's own place in the file, such as ``talker_config``; empty for the whole.

    Raises:
        CheckpointError: from every method: the key is missing (and has no ``default``), or its value is of another
            type or outside its range; the message names file, key and value, and what was expected.
    """

    def __init__(self, file: Path | str, content: Mapping[str, Any], name: str = "") -> None:
        self.file = file
        self._content = content
        self._name = name
        self._read: set[str] = set()
        self._idle: set[str] = set()
        self._tables: dict[str, Table] = {}

    def has(self, key: str) -> bool:
        """Whether there is a value that is not null."""
        self._read.add(key)
        return self._content.get(key) is not None

    def integer(self, key: str, least: int = 0, most: int = LARGEST, default: int = _REQUIRED) -> int:
        """An integer from ``least`` to ``most``."""
        value = self._get(key, default)
        if not _is_integer(value, least, most):
            raise self.fault(key, f"an integer from {least} to {most}")
        return int(value)

    def number(self, key: str) -> float:
        """A finite number above 0."""
        value = self._get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < LARGEST**4:
            raise self.fault(key, "a number above 0")
        return float(value)

    def flag(self, key: str, default: bool = _REQUIRED) -> bool:
        """``true`` or ``false``."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.fault(key, "true or false")
        return value

    def text(self, key: str, *choices: str) -> str:
        """A string; one of ``choices``, if there are any."""
        value = self._get(key)
        if not isinstance(value, str) or (choices and value not in choices):
            raise self.fault(key, " or ".join(map(repr, choices)) or "a string")
        return value

    def integers(self, key: str, least: int = 1, most: int = LARGEST) -> tuple[int, ...]:
        """A list of integers from ``least`` to ``most``."""
        value = self._get(key)
        if not isinstance(value, list) or not all(_is_integer(item, least, most) for item in value):
            raise self.fault(key, f"a list of integers from {least} to {most}")
        return tuple(value)

    def ids(self, key: str) -> dict[str, int]:
        """Names in lower case and their ids."""
        table = self.table(key)
        return {name.lower(): table.integer(name) for name in table._content}

    def names(self, key: str) -> dict[str, str]:
        """Names in lower case and what they are given, without those given ``false``."""
        table = self.table(key)
        table.skip(*table._content)
        return {name.lower(): table.text(name) for name in table._content if table._content[name] is not False}

    def table(self, key: str) -> "Table":
        """The object below ``key``."""
        value = self._get(key)
        if not isinstance(value, dict):
            raise self.fault(key, "an object")
        return self._tables.setdefault(key, Table(self.file, value, self._path(key)))

    def demand(self, key: str, expected: object) -> None:
        """Refuse any value of ``key`` but ``expected``, which is also what its absence means."""
        self._read.add(key)
        value = self._content.get(key, expected)
        if type(value) is not type(expected) or value != expected:
            raise self.fault(key, repr(expected))

    def demand_all(self, key: str, expected: str) -> None:
        """Refuse a list of ``key`` with anything but ``expected`` in it; null and absence mean the same."""
        if self.has(key):
            value = self._content[key]
            if not isinstance(value, list) or not value or any(item != expected for item in value):
                raise self.fault(key, f"a list of {expected!r}")

    def skip(self, *keys: str) -> None:
        """Take these as read: they are read elsewhere."""
        self._read.update(keys)

    def ignore(self, *keys: str) -> None:
        """Mark these keys as read: their values change nothing here."""
        self._idle.update(keys)
        self._read.update(keys)

    def ignored(self) -> list[str]:
        """Keys of the file that :meth:`ignore` was called with."""
        inner = [path for table in self._tables.values() for path in table.ignored()]
        return [self._path(key) for key in self._content if key in self._idle] + inner

    def unread(self) -> list[str]:
        """Keys of the file that no method has read."""
        inner = [path for table in self._tables.values() for path in table.unread()]
        return [self._path(key) for key in self._content if key not in self._read] + inner

    def fault(self, key: str, expected: str) -> CheckpointError:
        """The error to raise when the value of ``key`` is not ``expected``."""
        found = repr(self._content[key])
        found = found if len(found) <= 60 else f"{found[:57]}..."
        return CheckpointError(
            f"{self.file}: {self._path(key)} is {found}, expected {expected}; "
            "correct that file, or take it from an official 12 Hz checkpoint"
        )

    def _get(self, key: str, default: object = _REQUIRED) -> Any:
        self._read.add(key)
        value = self._content.get(key, default)
        if value is _REQUIRED:
            raise CheckpointError(
                f"{self.file}: {self._path(key)} is missing, but the official file of a 12 Hz checkpoint has it; "
                "download it again"
            )
        return value

    def _path(self, key: str) -> str:
        return f"{self._name}.{key}" if self._name else key


def _is_integer(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
