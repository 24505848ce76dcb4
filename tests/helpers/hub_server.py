"""Loopback servers that answer as the Hugging Face hub and as ModelScope do, for one repository each."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Repository:
    """The files of a folder, and what the server was asked for.

    Args:
        name: ``organisation/name``.
        folder: whose files, at any depth, it has.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        self.asked: list[tuple[str, str | None]] = []
        """File and ``Range`` of each request for content."""
        self.cut: dict[str, int] = {}
        """Bytes of a file after which the connection breaks, once."""
        self.pause: Callable[[str, int], None] = lambda name, sent: None
        """Called with a file's name and the bytes of it that were sent, between two blocks."""
        self.url = ""

    def sha256(self, name: str) -> str:
        return hashlib.sha256(self.files[name]).hexdigest()

    def identity(self, name: str) -> dict[str, str]:
        """Return ModelScope's identification of a file's content."""
        return {"Sha256": self.sha256(name), "Revision": COMMIT}

    def ranges(self, name: str) -> list[str | None]:
        return [asked for file, asked in self.asked if file == name]


class _Server(ThreadingHTTPServer):
    repository: Repository
    daemon_threads = True


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    block = 4096

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(address.query).items()}
        answer = self.find(unquote(address.path), query)
        if answer is None:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif isinstance(answer, str):
            self._file(answer)
        else:
            content = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    def find(self, path: str, query: dict[str, str]) -> str | dict[str, Any] | None:
        """A file's name, something for JSON, or nothing."""
        raise NotImplementedError

    def _file(self, name: str) -> None:
        repository = self.server.repository
        content, asked = repository.files[name], self.headers.get("Range")
        begin = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        self.send_response(206 if asked else 200)
        self.send_header("ETag", f'"{repository.sha256(name)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        if asked:
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - begin))
        self.end_headers()
        if self.command == "HEAD":
            return
        repository.asked.append((name, asked))
        end = repository.cut.pop(name, len(content))
        for start in range(begin, end, self.block):
            self.wfile.write(content[start : min(start + self.block, end)])
            repository.pause(name, min(start + self.block, end))
        if end < len(content):
            self.close_connection = True


class _HubHandler(_Handler):
    def find(self, path: str, query: dict[str, str]) -> str | dict[str, Any] | None:
        repository = self.server.repository
        listing, resolve = f"/api/models/{repository.name}", f"/{repository.name}/resolve/{COMMIT}/"
        if path in (listing, f"{listing}/revision/main"):
            siblings = [
                {"rfilename": name, "size": len(content), "blobId": repository.sha256(name)}
                for name, content in repository.files.items()
            ]
            return {"id": repository.name, "sha": COMMIT, "siblings": siblings}
        name = path.removeprefix(resolve)
        return name if path.startswith(resolve) and name in repository.files else None


class _ModelScopeHandler(_Handler):
    def find(self, path: str, query: dict[str, str]) -> str | dict[str, Any] | None:
        repository = self.server.repository
        listing = f"/api/v1/models/{repository.name}/repo"
        if query.get("Revision") != "master":
            return None
        if path == f"{listing}/files":
            folders = {str(Path(name).parent) for name in repository.files} - {"."}
            files = [{"Path": name, "Type": "tree", "Size": 0, "Sha256": ""} for name in folders]
            files += [
                {"Path": name, "Type": "blob", "Size": len(content), **repository.identity(name)}
                for name, content in repository.files.items()
            ]
            return {"Code": 200, "Success": True, "Data": {"Files": files}}
        return query["FilePath"] if path == listing and query.get("FilePath") in repository.files else None


@contextmanager
def _serving(repository: Repository, handler: type[_Handler]) -> Iterator[Repository]:
    server = _Server(("127.0.0.1", 0), handler)
    server.repository = repository
    repository.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, name="hub")
    thread.start()
    try:
        yield repository
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def hub(repository: Repository) -> Any:
    """A context in which ``repository.url`` is a hub, for ``HF_ENDPOINT``."""
    return _serving(repository, _HubHandler)


def modelscope(repository: Repository) -> Any:
    """The same for ``MODELSCOPE_DOMAIN``."""
    return _serving(repository, _ModelScopeHandler)
