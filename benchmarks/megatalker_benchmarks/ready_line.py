"""The line by which ``megatalker serve`` says in its log that it is ready."""

import re
from collections.abc import Iterable

READY = re.compile(r" ready at (?P<url>http\S+): (?P<what>.*)")


def wait_until_ready(log: Iterable[str]) -> re.Match[str]:
    """Read lines until one says that the server is ready: its groups are ``url`` and ``what`` is served.

    Raises:
        RuntimeError: the log ended before; it is in the message.
    """
    lines = []
    for line in log:
        lines.append(line)
        if found := READY.search(line):
            return found
    raise RuntimeError("the server ended before it was ready:\n" + "".join(lines))
