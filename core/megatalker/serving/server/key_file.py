"""Keys that change while the server runs: it reads its settings file again when that changes."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from watchfiles import awatch

from megatalker.errors import SettingsError
from megatalker.serving.server.keyring import Keyring
from megatalker.settings import Settings

logger = logging.getLogger(__name__)


@asynccontextmanager
async def following(keyring: Keyring, file: Path | None) -> AsyncIterator[None]:
    """Meanwhile the keys are those of ``[server.keys]`` in this settings file, which need not exist yet.

    A file that cannot be used, or is gone, changes nothing, and the log says so.
    """
    if file is None:
        yield
        return
    stop = asyncio.Event()
    task = asyncio.create_task(_follow(keyring, file.absolute(), stop))
    try:
        yield
    finally:
        stop.set()
        await task


async def _follow(keyring: Keyring, file: Path, stop: asyncio.Event) -> None:
    known = await _read_again(keyring, file, None)  # it may have changed since the settings were read
    # The folder, and whatever changes in it: editors and ConfigMaps put another file in place of the first. And now and
    # then without a change: some file systems tell of none.
    async for _ in awatch(file.parent, recursive=False, watch_filter=None, stop_event=stop, yield_on_timeout=True):
        known = await _read_again(keyring, file, known)


async def _read_again(keyring: Keyring, file: Path, known: bytes | None) -> bytes | None:
    """Take the keys of a file whose content is not what is ``known`` of it; returns its content."""
    content = await asyncio.to_thread(_content, file)
    if content != known:
        try:
            settings = await asyncio.to_thread(Settings.read, file)
            keyring.replace(settings.server.keys)
        except SettingsError as error:
            logger.error("the keys stay as they were: %s", error)
        else:
            logger.info("read %d keys from %s", len(settings.server.keys), file)
    return content


def _content(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except OSError:
        return None
