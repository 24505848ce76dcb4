"""Keys and tokens: who may use the server.

A key is 256 random bits, so its plain SHA-256 says nothing about it: slow hashes are for passwords that people choose.
"""

import hashlib
import secrets
from collections.abc import Collection, Mapping

from itsdangerous import BadSignature, SignatureExpired, URLSafeTimedSerializer
from starlette.requests import HTTPConnection

from megatalker.serving.server.callers import ANONYMOUS, Caller
from megatalker.serving.server.problems import AuthenticationError
from megatalker.settings import KeySettings, ServerSettings
from megatalker.settings.values import check_keys

KEY_PREFIX = "mt-"
"""So that scanners of repositories find keys that leak."""
SUBPROTOCOL = "megatalker"
"""Which a browser names beside its token, and which the server then agrees to."""
TOKEN_SUBPROTOCOL = "megatalker.token."
OWNER = "api_key"
"""The caller with the key of the setting ``api_key``."""


def new_key() -> str:
    """A key that nobody can guess."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def hash_key(key: str) -> str:
    """As a settings file keeps it."""
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


class Keyring:
    """Tells callers by what they send.

    Raises:
        SettingsError: two names have one key, or a name means another caller
            (:func:`~megatalker.settings.check_keys`).
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._owner = {} if settings.api_key is None else {hash_key(settings.api_key.get_secret_value()): Caller(OWNER)}
        self._by_hash: Mapping[str, Caller] = {}
        self._by_name: Mapping[str, Caller] = {}
        self._anonymous: Caller | None = Caller(ANONYMOUS)
        self.replace(settings.keys)
        secret = secrets.token_bytes() if settings.token_secret is None else settings.token_secret.get_secret_value()
        self._signer = URLSafeTimedSerializer(secret, salt="megatalker.websocket")
        self.token_lifetime_s = settings.token_lifetime_s

    def replace(self, keys: Mapping[str, KeySettings]) -> None:
        """Take these from now on, besides the setting ``api_key``. Who keeps its key keeps its count. The first key
        closes a server that was open to everybody; the removal of the last one does not open it.

        Raises:
            SettingsError: as the class; nothing is changed then.
        """
        check_keys(keys)
        before = self._by_hash
        self._by_hash = self._owner | {key.hash: _caller(name, key, before.get(key.hash)) for name, key in keys.items()}
        if self._by_hash:
            self._anonymous = None
        everybody = [*self._by_hash.values(), *([] if self._anonymous is None else [self._anonymous])]
        self._by_name = {caller.name: caller for caller in everybody}
        for caller in before.values():
            caller.removed = caller not in everybody

    def keep_only(self, names: Collection[str]) -> list[str]:
        """Forget every key of ``[server.keys]`` with another name; returns the names of those that went."""
        gone = [caller for caller in self._by_hash.values() if caller.name not in {*names, OWNER}]
        self._by_hash = {digest: caller for digest, caller in self._by_hash.items() if caller not in gone}
        for caller in gone:
            caller.removed = True
        self._by_name = {name: caller for name, caller in self._by_name.items() if caller not in gone}
        return [caller.name for caller in gone]

    def caller(self, connection: HTTPConnection) -> Caller:
        """Who asks.

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
        """What opens WebSockets in this caller's name, and nothing else, for ``token_lifetime_s``."""
        token = self._signer.dumps(caller.name)
        return token if isinstance(token, str) else token.decode()

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


def _caller(name: str, key: KeySettings, before: Caller | None) -> Caller:
    """The same as before where it is, with the limits of now."""
    limits = key.model_dump(exclude={"hash"})
    if before is None or before.name != name:
        return Caller(name, **limits)
    before.limit(**limits)
    return before


def _token(connection: HTTPConnection) -> str | None:
    offered = connection.headers.get("sec-websocket-protocol", "").split(",")
    tokens = [name.strip().removeprefix(TOKEN_SUBPROTOCOL) for name in offered if TOKEN_SUBPROTOCOL in name]
    return tokens[0] if tokens else connection.query_params.get("token")
