"""Keys that change while the server runs: it looks at its settings file again and again.

It looks, and is not told: what tells of changes runs out of watches, does not know network file systems, and loses a
folder that is replaced. A removed key must not go on working by any of that.
"""

import asyncio
import logging
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path

from megatalker.errors import SettingsError
from megatalker.serving.background import BackgroundHealth, Trouble, looking
from megatalker.serving.server.keyring import Keyring
from megatalker.settings import Settings, key_names
from megatalker.settings.values import check_file
from megatalker.voices.files import read_until_stable

logger = logging.getLogger(__name__)

NAME = "keys"
"""What this work is called in logs, in ``GET /ready`` and in metrics."""
SETTLE_S = 0.05
"""A file whose content is the same after this long is taken for written."""
MOST_LOOKS = 20


def following(keyring: Keyring, file: Path | None, health: BackgroundHealth) -> AbstractAsyncContextManager[None]:
    """Meanwhile the keys are those of ``[server.keys]`` in this settings file, which need not exist yet.

    While it is gone or cannot be read, the keys stay as they are. Of a file in which something is wrong, names that it
    does not have are removed.
    """
    if file is None:
        return nullcontext()
    return looking(KeyFile(keyring, file.absolute()).look, NAME, health)


class KeyFile:
    """A settings file, and the keys of a server that follow it."""

    def __init__(self, keyring: Keyring, file: Path) -> None:
        self._keyring, self._file = keyring, file
        self._taken: bytes | None = None
        """The content whose keys are in use."""
        self._seen = False
        """There was a file."""

    async def look(self) -> None:
        """Take the keys of a file that has changed.

        Raises:
            Trouble: it cannot be used.
        """
        content = await asyncio.to_thread(self._read)
        if content is None or content == self._taken:
            return
        try:
            settings = await asyncio.to_thread(Settings.read, self._file)
            self._keyring.replace(settings.server.keys)
        except SettingsError as error:
            removed = self._keyring.keep_only(await asyncio.to_thread(key_names, self._file))
            if removed:
                logger.warning("removed the keys %s, which are not in %s", ", ".join(removed), self._file)
            raise Trouble("the settings file is wrong, and the keys stay as they were", error) from error
        self._taken = content
        logger.info("read %d keys from %s", len(settings.server.keys), self._file)

    def _read(self) -> bytes | None:
        """The content, once it stays the same; ``None`` while there has never been a file."""
        try:
            check_file(self._file, must_exist=self._seen)
            content: bytes | None = self._file.read_bytes()
            self._seen = True
            if content != self._taken:
                content = read_until_stable(self._file.read_bytes, SETTLE_S, MOST_LOOKS)
            if content is not None:
                return content
        except FileNotFoundError:
            if not self._seen:
                return None
            raise Trouble(_GONE, f"{str(self._file)!r} does not exist") from None
        except (SettingsError, OSError) as error:
            raise Trouble(_GONE, error) from error
        raise Trouble("the settings file is being written all the time, and the keys stay as they were", self._file)


_GONE = "the settings file cannot be read, and the keys stay as they were"
