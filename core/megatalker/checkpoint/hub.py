"""Downloads published checkpoints from the Hugging Face hub into its usual cache."""

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from megatalker.errors import CheckpointError

__all__ = [
    "POLL_SECONDS",
    "DownloadProgress",
    "ProgressCallback",
    "RemoteFile",
    "broken_off",
    "download",
    "download_bar",
    "needed",
    "refuse_others",
]

_PATTERNS = ("*.json", "*.txt", "*.safetensors", "speech_tokenizer/*.json", "speech_tokenizer/*.safetensors")
_REQUIRED = ("config.json", "speech_tokenizer/config.json")
POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class DownloadProgress:
    """Progress of a download, in bytes; as a string, one line to show."""

    repository: str
    done: int
    total: int

    def __str__(self) -> str:
        return f"downloading {self.repository}: {self.done / 1e9:.2f} of {self.total / 1e9:.2f} GB"


ProgressCallback = Callable[[DownloadProgress], None]
"""Called some times a second while a download runs, from any thread, and once at its end; not for cached files."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository."""

    name: str
    size: int
    blob: str
    """Identifier of a file's content: its name in the hub's cache, or its SHA-256 on ModelScope."""


def download(repository: str, progress: ProgressCallback | None = None) -> Path:
    """The local folder of a hub repository; downloads the files that a checkpoint needs and that are not cached yet.

    Without a network (or with ``HF_HUB_OFFLINE=1``) the cached files are used. ``HF_ENDPOINT`` names a mirror.

    Args:
        repository: hub id, ``organisation/name``.
        progress: see :data:`ProgressCallback`.

    Raises:
        CheckpointError: there is no such repository, it asks for a login or a licence, it is not a Qwen3-TTS
            checkpoint, or there is neither a network nor a cached copy. The message says what to do.
    """
    # heavy, and needed for hub ids only
    from huggingface_hub import snapshot_download

    files = _list_files(repository)
    if files is None:
        return _cached(repository)
    with _no_hub_bars(), _reported(repository, files, progress):
        try:
            return Path(snapshot_download(repository, allow_patterns=[file.name for file in files]))
        except OSError as error:
            raise broken_off(repository, error) from error


def broken_off(repository: str, error: Exception) -> CheckpointError:
    """Return the error for a download that cannot be finished."""
    return CheckpointError(
        f"the download of {repository!r} broke off: {error}. Check the network and the free space of the disk, "
        "and run the same command again; it continues where it stopped"
    )


@contextlib.contextmanager
def download_bar() -> Iterator[ProgressCallback]:
    """A :data:`ProgressCallback` that draws a progress bar in the terminal; draws nothing until it is called."""
    with contextlib.ExitStack() as stack:
        bar = Progress(TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())

        def show(state: DownloadProgress) -> None:
            if not bar.tasks:
                bar.add_task(state.repository)
                stack.enter_context(bar)
            bar.update(bar.task_ids[0], completed=state.done, total=state.total)

        yield show


def _list_files(repository: str) -> list[RemoteFile] | None:
    """The files to download, or ``None`` without a network."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError
    from requests.exceptions import ConnectionError as NoConnectionError
    from requests.exceptions import Timeout

    page = f"{constants.ENDPOINT}/{repository}"
    try:
        info = HfApi().model_info(repository, files_metadata=True, timeout=20)
    except GatedRepoError as error:
        raise CheckpointError(
            f"{repository!r} asks for its terms to be accepted first: do that on {page}, then run 'hf auth login'"
        ) from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(
            f"there is no folder and no hub repository {repository!r}, or it is private. Check the spelling on {page}; "
            "for a private one run 'hf auth login'"
        ) from error
    except (NoConnectionError, Timeout, ConnectionError):  # the last one also stands for HF_HUB_OFFLINE
        return None
    except HfHubHTTPError as error:
        raise CheckpointError(f"the hub refused to list {repository!r}: {error}. Try again later") from error
    wanted = [_file(item) for item in info.siblings or () if needed(item.rfilename)]
    refuse_others(repository, [file.name for file in wanted])
    return wanted


def refuse_others(repository: str, names: Collection[str]) -> None:
    """Raises:
    CheckpointError: a repository with these files holds no checkpoint.
    """
    missing = set(_REQUIRED) - set(names)
    if missing:
        raise CheckpointError(
            f"{repository!r} is not a Qwen3-TTS checkpoint: it has no {' and no '.join(sorted(missing))}. "
            "Use one such as Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice, not a conversion for transformers' own port"
        )


def needed(name: str) -> bool:
    """Whether a checkpoint's file is read by anything."""
    return any(name.count("/") == pattern.count("/") and fnmatch(name, pattern) for pattern in _PATTERNS)


def _file(item: Any) -> RemoteFile:
    return RemoteFile(item.rfilename, item.size or 0, item.lfs.sha256 if item.lfs else item.blob_id)


def _cached(repository: str) -> Path:
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(repository, local_files_only=True))
    except LocalEntryNotFoundError as error:
        raise CheckpointError(
            f"{repository!r} is not in the local cache and the hub cannot be reached (no network, or HF_HUB_OFFLINE is "
            f"set). Go online, or run 'hf download {repository}' on a machine that is and copy the folder here; where "
            f"{constants.ENDPOINT} alone cannot be reached, name a mirror with HF_ENDPOINT, or take "
            f"'modelscope:{repository}'"
        ) from error


@contextlib.contextmanager
def _no_hub_bars() -> Iterator[None]:
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


@contextlib.contextmanager
def _reported(repository: str, files: list[RemoteFile], progress: ProgressCallback | None) -> Iterator[None]:
    """Watch the files grow in the cache: the hub library reports whole files only."""
    folder = _blob_folder(repository)
    total = sum(file.size for file in files)
    if progress is None or _present(folder, files) == total:
        yield
        return
    stopped = threading.Event()

    def watch() -> None:
        while not stopped.wait(POLL_SECONDS):
            progress(DownloadProgress(repository, _present(folder, files), total))

    with ThreadPoolExecutor(1, "megatalker-download") as pool:
        watching = pool.submit(watch)
        try:
            yield
        finally:
            stopped.set()
        watching.result()  # raises what the callback raised
    progress(DownloadProgress(repository, total, total))


def _blob_folder(repository: str) -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}" / "blobs"


def _present(folder: Path, files: list[RemoteFile]) -> int:
    return sum(max(_size(folder / file.blob), _size(folder / f"{file.blob}.incomplete")) for file in files)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
