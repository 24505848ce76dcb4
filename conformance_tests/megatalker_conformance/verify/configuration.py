"""Keys of the checkpoint's configuration files that the code does not honour."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from megatalker.cli.verify.card import Check
from megatalker_conformance.verify.subject import VerifySubject


def configuration(subject: VerifySubject) -> Iterator[Check]:
    """Report keys that nothing reads, and keys that are known to change nothing. Keys that would change the speech
    were refused when the checkpoint was opened.
    """
    checkpoint = subject.checkpoint
    for name, keys in (
        ("keys that are not honoured: the official package may compute something else", checkpoint.unhonoured_keys),
        ("keys without effect on speech", checkpoint.idle_keys),
    ):
        yield Check("configuration", name, "info", _by_file(keys) or "none", {"keys": len(keys)})


def _by_file(keys: Sequence[str]) -> str:
    pairs = [key.split(": ", 1) for key in keys]
    files = groupby(pairs, key=lambda pair: pair[0])
    return "; ".join(f"{file}: {', '.join(key for _, key in group)}" for file, group in files)
