"""Downloads published checkpoints from ModelScope, over its plain HTTP interface, into a folder of our own.

Facts: https://modelscope.cn/docs (``repo/files`` lists a repository, ``repo`` gives a file and honours ``Range``).
"""

import hashlib
import http.client
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from megatalker.checkpoint.cache import cache_folder
from megatalker.checkpoint.hub import (
    POLL_SECONDS,
    DownloadProgress,
    ProgressCallback,
    RemoteFile,
    broken_off,
    needed,
    refuse_others,
)
from megatalker.errors import CheckpointError

__all__ = ["PREFIX", "download_from_modelscope"]

PREFIX = "modelscope:"
"""Prefix of an id that is looked up on ModelScope."""
_SITE = "https://www.modelscope.cn"
_LIST = ".megatalker.json"
"""Name of the list of the folder's files, with their SHA-256, or their revision where the site lists none. Files of the
list that exist are complete and have that content.
"""
_BLOCK = 2**20
_TIMEOUT_S = 30
_BROKEN = (OSError, http.client.HTTPException)


def download_from_modelscope(repository: str, progress: ProgressCallback | None = None) -> Path:
    """The local folder of a ModelScope repository, as :func:`megatalker.checkpoint.hub.download` of a hub's.

    Files lie below ``$XDG_CACHE_HOME/megatalker/modelscope``, by default ``~/.cache``. ``MODELSCOPE_DOMAIN`` names
    another site, or a mirror by its URL. Without a network (or with ``HF_HUB_OFFLINE=1``) the files that lie there are
    used.

    Raises:
        CheckpointError: as there, or a file does not have the SHA-256 that the site lists.
    """
    folder = cache_folder("modelscope", repository)
    files = _list_files(repository)
    if files is None:
        return _cached(repository, folder)
    _expect(files, folder)
    missing = [file for file in files if not (folder / file.name).is_file()]
    report = _Report(repository, files, missing, progress)
    for file in missing:
        try:
            for size in _fetch(repository, file, folder):
                report.add(size)
        except _BROKEN as error:
            raise broken_off(f"{PREFIX}{repository}", error) from error
    if missing:
        report.finish()
    return folder


class _Report:
    """Tells about bytes, some times a second."""

    def __init__(
        self,
        repository: str,
        files: Sequence[RemoteFile],
        missing: Sequence[RemoteFile],
        progress: ProgressCallback | None,
    ) -> None:
        self._repository, self._progress = repository, progress
        self._total = sum(file.size for file in files)
        self._done = self._total - sum(file.size for file in missing)
        self._told = 0.0

    def add(self, size: int) -> None:
        self._done += size
        if self._progress is not None and time.monotonic() - self._told >= POLL_SECONDS:
            self._told = time.monotonic()
            self._progress(DownloadProgress(self._repository, self._done, self._total))

    def finish(self) -> None:
        if self._progress is not None:
            self._progress(DownloadProgress(self._repository, self._total, self._total))


def _address(repository: str, what: str, **query: str) -> str:
    site = os.environ.get("MODELSCOPE_DOMAIN") or _SITE
    site = site.rstrip("/") if "://" in site else f"https://{site}"
    return f"{site}/api/v1/models/{urllib.parse.quote(repository)}/{what}?{urllib.parse.urlencode(query)}"


def _list_files(repository: str) -> list[RemoteFile] | None:
    """The files to download, or ``None`` without a network."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return None
    address = _address(repository, "repo/files", Revision="master", Recursive="true")
    try:
        with urllib.request.urlopen(address, timeout=_TIMEOUT_S) as answer:
            listed = json.load(answer)["Data"]["Files"]
            files = [_file(item) for item in listed if item["Type"] == "blob" and needed(item["Path"])]
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.NOT_FOUND:
            raise CheckpointError(
                f"there is no ModelScope repository {repository!r}, or it is private. Check the spelling on "
                f"{_SITE}/models/{repository}"
            ) from error
        raise CheckpointError(f"ModelScope refused to list {repository!r}: {error}. Try again later") from error
    except _BROKEN:
        return None
    except (ValueError, LookupError, TypeError) as error:
        raise CheckpointError(
            f"{address} answers something else than a list of files ({type(error).__name__}: {error}); "
            "check MODELSCOPE_DOMAIN"
        ) from error
    refuse_others(repository, [file.name for file in files])
    return files


def _file(item: Any) -> RemoteFile:
    return RemoteFile(item["Path"], int(item["Size"]), item.get("Sha256") or f"revision {item['Revision']}")


def _fetch(repository: str, file: RemoteFile, folder: Path) -> Iterator[int]:
    """Write one file, from where an earlier attempt stopped; the sizes of what is there and of what comes.

    Raises:
        OSError, HTTPException: the connection broke, or the disk is full.
        CheckpointError: the file is another than the site lists.
    """
    target = folder / file.name
    part = _part(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    have = part.stat().st_size if part.is_file() else 0
    address = _address(repository, "repo", Revision="master", FilePath=file.name)
    if have < file.size or not file.size:
        request = urllib.request.Request(address, headers={"Range": f"bytes={have}-"} if have else {})
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            resumed = answer.status == http.HTTPStatus.PARTIAL_CONTENT
            with part.open("ab" if resumed else "wb") as out:
                yield out.tell()
                while block := answer.read1(_BLOCK):
                    out.write(block)
                    yield len(block)
    else:
        yield have
    found = part.stat().st_size
    if found < file.size:
        raise ConnectionError(f"{file.name} ended after {found} of {file.size} bytes")
    with part.open("rb") as whole:
        digest = hashlib.file_digest(whole, "sha256").hexdigest()
    if digest != file.blob and not file.blob.startswith("revision "):  # listed without a digest
        part.unlink()
        raise CheckpointError(
            f"{file.name} of {repository!r} has the SHA-256 {digest}, but ModelScope lists {file.blob}; it was damaged "
            "on the way, or has just changed. Run the same command again"
        )
    part.replace(target)


def _part(target: Path) -> Path:
    return target.with_name(f"{target.name}.incomplete")


def _expect(files: Sequence[RemoteFile], folder: Path) -> None:
    """Note which files belong into the folder, after removing those that have become others."""
    folder.mkdir(parents=True, exist_ok=True)
    before = _listed(folder)
    for file in files:
        if before.get(file.name) != file.blob:
            (folder / file.name).unlink(missing_ok=True)
            _part(folder / file.name).unlink(missing_ok=True)
    new = folder / f"{_LIST}.new"
    new.write_text(json.dumps({file.name: file.blob for file in files}, indent=1) + "\n", encoding="utf-8")
    new.replace(folder / _LIST)


def _listed(folder: Path) -> dict[str, str]:
    try:
        content = json.loads((folder / _LIST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _cached(repository: str, folder: Path) -> Path:
    names = _listed(folder)
    if names and all((folder / name).is_file() for name in names):
        return folder
    raise CheckpointError(
        f"{PREFIX}{repository} has not been downloaded whole to {folder}, and ModelScope cannot be reached (no "
        "network, or HF_HUB_OFFLINE is set). Go online, or copy the folder of the checkpoint here and name it instead"
    )
