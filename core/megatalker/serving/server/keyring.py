"""Keys and tokens: who may use the server.

A key is 256 random bits, so its plain SHA-256 says nothing about it: slow hashes are for passwords that people choose.
"""

import hashlib
import secrets
from collections.abc import Mapping

from itsdangerous import BadSignature, SignatureExpired, URLSafeTimedSerializer
from starlette.requests import HTTPConnection

from megatalker.errors import SettingsError
from megatalker.serving.server.callers import ANONYMOUS, Caller
from megatalker.serving.server.problems import AuthenticationError
from megatalker.settings import KeySettings, ServerSettings

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
        SettingsError: two names have one key, or a name means another caller.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._by_hash = {keys.hash: _caller(name, keys) for name, keys in settings.keys.items()}
        if len(self._by_hash) < len(settings.keys):
            raise SettingsError("two names of [server.keys] have the same hash; make a key of its own for each")
        for name in (OWNER, ANONYMOUS):
            if name in settings.keys:
                raise SettingsError(f"a key cannot be named {name!r}, which means another caller; choose another name")
        if settings.api_key is not None:
            self._by_hash[hash_key(settings.api_key.get_secret_value())] = Caller(OWNER)
        self._anonymous = None if self._by_hash else Caller(ANONYMOUS)
        callers = [*self._by_hash.values(), *([] if self._anonymous is None else [self._anonymous])]
        self._by_name: Mapping[str, Caller] = {caller.name: caller for caller in callers}
        secret = secrets.token_bytes() if settings.token_secret is None else settings.token_secret.get_secret_value()
        self._signer = URLSafeTimedSerializer(secret, salt="megatalker.websocket")
        self.token_lifetime_s = settings.token_lifetime_s

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
        # a look-up by hash: its time tells about the hash at most, from which no key can be made
        caller = self._by_hash.get(hash_key(key.strip())) if scheme.lower() == "bearer" else None
        if caller is None:
            raise AuthenticationError("the API key is missing or wrong; send it as 'Authorization: Bearer KEY'")
        return caller

    def token(self, caller: Caller) -> str:
        """What opens WebSockets in this caller's name, and nothing else, for ``token_lifetime_s``."""
        token = self._signer.dumps(caller.name)
        return token if isinstance(token, str) else token.decode()

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


def _caller(name: str, keys: KeySettings) -> Caller:
    return Caller(
        name,
        max_streams=keys.max_streams,
        requests_per_minute=keys.requests_per_minute,
        manage_voices=keys.manage_voices,
    )


def _token(connection: HTTPConnection) -> str | None:
    offered = connection.headers.get("sec-websocket-protocol", "").split(",")
    tokens = [name.strip().removeprefix(TOKEN_SUBPROTOCOL) for name in offered if TOKEN_SUBPROTOCOL in name]
    return tokens[0] if tokens else connection.query_params.get("token")
