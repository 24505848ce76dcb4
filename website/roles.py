"""Docstrings name other things by roles of reStructuredText; Markdown shows the bare name."""

import re
from typing import Any

import griffe

ROLE = re.compile(r":\w+:`~?([\w.]+)`")


def plain(text: str) -> str:
    """``:class:`~megatalker.Voice``` as ```Voice```."""
    return ROLE.sub(lambda found: f"`{found[1].rpartition('.')[2]}`", text)


class Roles(griffe.Extension):
    """Applies :func:`plain` to every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called with each object that was read."""
        if obj.docstring is not None:
            obj.docstring.value = plain(obj.docstring.value)
