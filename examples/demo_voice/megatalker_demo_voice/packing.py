"""One file for each result: folders travel as uncompressed tar archives."""

import tarfile
from pathlib import Path


def pack(folder: Path, archive: Path) -> None:
    """Put the files of ``folder`` into ``archive``, under its name, replacing the archive in one step."""
    partial = archive.with_suffix(".partial")
    with tarfile.open(partial, "w") as tar:
        tar.add(folder, arcname=folder.name, filter=_anonymous)
    partial.rename(archive)


def unpacked(path: Path, scratch: Path) -> Path:
    """The folder itself, or the folder inside an archive, unpacked below ``scratch``.

    Raises:
        FileNotFoundError: there is neither.
    """
    if path.is_dir():
        return path
    if not path.is_file():
        raise FileNotFoundError(f"{str(path)!r} is neither a folder nor an archive made by an earlier stage")
    with tarfile.open(path) as tar:
        name = tar.getnames()[0].partition("/")[0]
        tar.extractall(scratch, filter="data")
    return scratch / name


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o755 if entry.isdir() else 0o644
    return entry
