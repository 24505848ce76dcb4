"""Keys and tokens: who may use the server, and how its keys follow the settings file.

A key is 256 random bits, so its plain SHA-256 says nothing about it: slow hashes are for passwords that people choose.
"""

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Collection, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from pathlib import Path

from fastapi import APIRouter
from itsdangerous import BadSignature, SignatureExpired, URLSafeTimedSerializer
from pydantic import BaseModel
from starlette.requests import HTTPConnection

from megatalker.errors import SettingsError
from megatalker.serving.background import BackgroundHealth, RecoverableError, polling
from megatalker.serving.server.callers import ANONYMOUS, Caller, current_request
from megatalker.serving.server.problems import AuthenticationError, error_responses
from megatalker.serving.server.usage import KeyUsage
from megatalker.settings import KeySettings, ServerSettings, Settings, key_names
from megatalker.settings.files import MOST_BYTES, read_regular_file, read_until_stable
from megatalker.settings.values import check_keys

KEY_PREFIX = "mt-"
"""A prefix of every key, by which scanners of repositories find keys that leak."""
SUBPROTOCOL = "megatalker"
"""The subprotocol that a browser offers along with its token, and that the server then accepts."""
TOKEN_SUBPROTOCOL = "megatalker.token."
OWNER = "api_key"
"""The caller with the key of the setting ``api_key``."""


def new_key() -> str:
    """Return a key that nobody can guess."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def hash_key(key: str) -> str:
    """Return the hash of a key, as a settings file keeps it."""
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


class Keyring:
    """Tells callers by what they send.

    Args:
        settings: the server's.
        usage: where it is counted what keys use; by default in this process.

    Raises:
        SettingsError: two names have one key, or a name means another caller
            (:func:`~megatalker.settings.check_keys`).
    """

    def __init__(self, settings: ServerSettings, usage: KeyUsage | None = None) -> None:
        self._usage = usage or KeyUsage()
        self._owner = {} if settings.api_key is None else {hash_key(settings.api_key.get_secret_value()): Caller(OWNER)}
        self._by_hash: Mapping[str, Caller] = {}
        self._by_name: Mapping[str, Caller] = {}
        self._anonymous: Caller | None = Caller(ANONYMOUS)
        self.replace(settings.keys)
        secret = secrets.token_bytes() if settings.token_secret is None else settings.token_secret.get_secret_value()
        self._signer = URLSafeTimedSerializer(secret, salt="megatalker.websocket")
        self.token_lifetime_s = settings.token_lifetime_s

    def replace(self, keys: Mapping[str, KeySettings]) -> None:
        """Accept these keys from now on, besides the setting ``api_key``. A key that stays keeps its counts. The first
        key closes a server that was open to everybody; the removal of the last one does not open it.

        Raises:
            SettingsError: as the class; nothing is changed then.
        """
        check_keys(keys)
        before = self._by_hash
        self._by_hash = self._owner | {
            key.hash: self._caller(name, key, before.get(key.hash)) for name, key in keys.items()
        }
        if self._by_hash:
            self._anonymous = None
        everybody = [*self._by_hash.values(), *([] if self._anonymous is None else [self._anonymous])]
        self._by_name = {caller.name: caller for caller in everybody}
        for caller in before.values():
            caller.removed = caller not in everybody

    def keep_only(self, names: Collection[str]) -> list[str]:
        """Forget every key of ``[server.keys]`` with another name; returns the names of the removed keys."""
        gone = [caller for caller in self._by_hash.values() if caller.name not in {*names, OWNER}]
        self._by_hash = {digest: caller for digest, caller in self._by_hash.items() if caller not in gone}
        for caller in gone:
            caller.removed = True
        self._by_name = {name: caller for name, caller in self._by_name.items() if caller not in gone}
        return [caller.name for caller in gone]

    def caller(self, connection: HTTPConnection) -> Caller:
        """Return the caller of a request.

        Raises:
            AuthenticationError: no key, or one that opens nothing.
        """
        if connection.scope["type"] == "websocket" and (token := _token(connection)) is not None:
            return self._token_bearer(token)
        if self._anonymous is not None:
            return self._anonymous
        scheme, _, key = connection.headers.get("authorization", "").partition(" ")
        caller = self._bearer(key.strip()) if scheme.lower() == "bearer" else None
        if caller is None:
            raise AuthenticationError("the API key is missing or wrong; send it as 'Authorization: Bearer KEY'")
        return caller

    def token(self, caller: Caller) -> str:
        """Return a token that opens WebSockets in this caller's name, and nothing else, for ``token_lifetime_s``."""
        token = self._signer.dumps(caller.name)
        return token if isinstance(token, str) else token.decode()

    def _caller(self, name: str, key: KeySettings, before: Caller | None) -> Caller:
        """Return the caller of a key: the one from before where there was one, with the new limits."""
        limits = key.model_dump(exclude={"hash"})
        if before is None or before.name != name:
            return Caller(name, self._usage, **limits)
        before.limit(**limits)
        return before

    def _bearer(self, key: str) -> Caller | None:
        """Compare with every key, each in constant time."""
        asked, found = hash_key(key), None
        for digest, caller in self._by_hash.items():
            if secrets.compare_digest(digest, asked) and key:
                found = caller
        return found

    def _token_bearer(self, token: str) -> Caller:
        try:
            caller = self._by_name.get(self._signer.loads(token, max_age=self.token_lifetime_s))
        except SignatureExpired:
            raise AuthenticationError(
                f"the token is older than {self.token_lifetime_s} s; get another from POST /v1/tokens"
            ) from None
        except BadSignature:
            caller = None
        if caller is None:
            raise AuthenticationError("this is no token of this server; get one from POST /v1/tokens")
        return caller


def _token(connection: HTTPConnection) -> str | None:
    offered = connection.headers.get("sec-websocket-protocol", "").split(",")
    tokens = [name.strip().removeprefix(TOKEN_SUBPROTOCOL) for name in offered if TOKEN_SUBPROTOCOL in name]
    return tokens[0] if tokens else connection.query_params.get("token")


logger = logging.getLogger(__name__)

NAME = "keys"
"""The name of this work in logs, in ``GET /ready`` and in metrics."""
SETTLE_S = 0.05
"""A file whose content is the same after this long is taken for written."""
MOST_LOOKS = 20


def follow_keys(keyring: Keyring, file: Path | None, health: BackgroundHealth) -> AbstractAsyncContextManager[None]:
    """Keep the keys equal to those of ``[server.keys]`` in this settings file, which need not exist yet.

    While it is gone or cannot be read, the keys stay as they are. Of a file in which something is wrong, names that it
    does not have are removed.
    """
    if file is None:
        return nullcontext()
    return polling(KeyFile(keyring, file.absolute()).look, NAME, health)


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
            RecoverableError: it cannot be used.
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
            raise RecoverableError("the settings file is wrong, and the keys stay as they were", error) from error
        self._taken = content
        logger.info("read %d keys from %s", len(settings.server.keys), self._file)

    def _read(self) -> bytes | None:
        """The content, once it stays the same; ``None`` while there has never been a file."""
        try:
            content: bytes | None = read_regular_file(self._file, MOST_BYTES)
            self._seen = True
            if content != self._taken:
                content = read_until_stable(partial(read_regular_file, self._file, MOST_BYTES), SETTLE_S, MOST_LOOKS)
            if content is not None:
                return content
        except FileNotFoundError:
            if not self._seen:
                return None
            raise RecoverableError(_GONE, f"{str(self._file)!r} does not exist") from None
        except OSError as error:
            raise RecoverableError(_GONE, error) from error
        raise RecoverableError(
            "the settings file is being written all the time, and the keys stay as they were", self._file
        )


_GONE = "the settings file cannot be read, and the keys stay as they were"


class Token(BaseModel):
    """A token, and how it is used."""

    token: str
    """The token, for ``?token=`` of the WebSocket's URL."""
    subprotocols: list[str]
    """The second argument of a browser's ``WebSocket``: so the token does not appear in logs."""
    expires_in: int
    """Seconds. A WebSocket that is open by then stays open."""


def token_routes(keyring: Keyring) -> APIRouter:
    """The route that gives tokens to holders of a key."""
    router = APIRouter()

    @router.post("/v1/tokens", responses=error_responses(429))
    async def tokens() -> Token:
        """A token in the name of the key that asks, with its limits. It opens WebSockets and nothing else."""
        caller = current_request().caller
        caller.count_request()
        token = keyring.token(caller)
        return Token(
            token=token,
            subprotocols=[SUBPROTOCOL, TOKEN_SUBPROTOCOL + token],
            expires_in=keyring.token_lifetime_s,
        )

    return router
