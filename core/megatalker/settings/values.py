"""Types of settings: numbers with bounds, paths, secrets, names and hashes of keys."""

import hashlib
import ipaddress
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Protocol
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationInfo

from megatalker.errors import SettingsError


def _refuse_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("expected a number")
    return value


def _refuse_bool_and_float(value: object) -> object:
    if isinstance(value, bool | float):
        raise ValueError("expected an integer")
    return value


MOST = 10**9
"""Upper bound of every integer that has no smaller one: it fits into 32 bits wherever it is handed on."""


def _refuse_huge(value: int) -> int:
    if abs(value) > MOST:
        raise ValueError(f"expected at most {MOST}")
    return value


Integer = Annotated[int, BeforeValidator(_refuse_bool_and_float), AfterValidator(_refuse_huge)]
"""``true`` and ``4.0`` are no integers; the text ``"4"``, as the environment has it, is one."""
Positive = Annotated[Integer, Field(ge=1)]
LONGEST_S = 1e6
"""The longest time that may be asked for, eleven days: every clock and timer counts that far."""
Seconds = Annotated[float, BeforeValidator(_refuse_bool), Field(gt=0, le=LONGEST_S, allow_inf_nan=False)]
Deadline = Annotated[float, BeforeValidator(_refuse_bool), Field(gt=0, le=3600, allow_inf_nan=False)]
"""Seconds after which a backend's call counts as hung. At most an hour: a longer wait would never report a fault."""
Amount = Annotated[float, BeforeValidator(_refuse_bool), Field(ge=0, le=4096, allow_inf_nan=False)]
"""Processors or GPUs, parts of one included."""
Share = Annotated[float, BeforeValidator(_refuse_bool), Field(gt=0, le=1, allow_inf_nan=False)]
Bytes = Annotated[Integer, Field(ge=1024, le=1_000_000_000)]


def _as_word(value: object) -> object:
    return (
        {True: "on", False: "off", "true": "on", "false": "off"}.get(value, value)
        if isinstance(value, bool | str)
        else value
    )


Normalize = Annotated[Literal["off", "on"], BeforeValidator(_as_word)]
"""Truth values mean the same."""


Markup = Literal["none", "tags", "ssml"]


def _refuse_impossible_path(path: object) -> object:
    if isinstance(path, str):
        if not path.strip():
            raise ValueError("expected the path of a file or folder; leave it out for none")
        if "\0" in path or re.search("[\ud800-\udc7f\udd00-\udfff]", path):
            raise ValueError("expected a path without NUL characters and halves of characters")
    return path


SomePath = Annotated[Path, BeforeValidator(_refuse_impossible_path)]


def _check_proxy(value: str) -> str:
    if value != "*":
        try:
            ipaddress.ip_network(value)
        except ValueError:
            raise ValueError("expected an address such as 10.0.0.7, a network such as 10.0.0.0/8, or *") from None
    return value


Proxy = Annotated[str, AfterValidator(_check_proxy)]


def check_prefix(value: str) -> str:
    """The prefix of paths without a slash at its end."""
    prefix = value.rstrip("/")
    if not re.fullmatch(r"(/[A-Za-z0-9._~-]+)*", prefix):
        raise ValueError("expected a path such as /speech, of letters, digits and . _ ~ -")
    return prefix


def check_wyoming(value: str) -> str:
    """The address of a TCP socket."""
    try:
        parts = urlsplit(value)
        possible = parts.scheme == "tcp" and bool(parts.hostname) and parts.port is not None
    except ValueError:  # an impossible port, or half an IPv6 address
        possible = False
    if not possible or value != f"tcp://{parts.netloc}" or "@" in value:
        raise ValueError("expected an address such as tcp://0.0.0.0:10200; port 0 takes a free one")
    return value


SHORTEST_SECRET = 16
"""Characters of ``token_secret``: 64 bits in hexadecimal digits, the least that nobody tries out."""
RESERVED_KEY_NAMES = ("api_key", "anonymous")
"""Callers that have no entry in ``[server.keys]``: the one with the setting ``api_key``, and everybody."""
_HASH_OF_NOTHING = "sha256:" + hashlib.sha256(b"").hexdigest()


def _refuse_blank(secret: SecretStr, info: ValidationInfo) -> SecretStr:
    if not secret.get_secret_value().strip():
        variable = f"MEGATALKER_SERVER__{(info.field_name or '').upper()}"
        raise ValueError(f"it is empty; give it a value, or leave it out ({variable} in the environment included)")
    return secret


def _refuse_unsendable(secret: SecretStr) -> SecretStr:
    value = secret.get_secret_value()
    if not (value.isascii() and value.isprintable()) or " " in value:
        raise ValueError("expected printable ASCII characters without spaces or line ends: clients send it in a header")
    return secret


def _refuse_guessable(secret: SecretStr) -> SecretStr:
    value = secret.get_secret_value().strip()
    if len(value) < SHORTEST_SECRET:
        raise ValueError(
            f"it has {len(value)} characters, expected at least {SHORTEST_SECRET}: whoever guesses it can make tokens; "
            "make one with 'openssl rand -hex 32'"
        )
    if not value.isprintable():
        raise ValueError("expected printable characters")
    return secret


def _check_hash(value: str) -> str:
    if not re.fullmatch("sha256:[0-9a-f]{64}", value):
        raise ValueError(
            "expected 'sha256:' and 64 hexadecimal digits, as 'megatalker keys add NAME' writes them; a key itself "
            "never stands here"
        )
    if value == _HASH_OF_NOTHING:
        raise ValueError("it is the hash of an empty key; make a key with 'megatalker keys add NAME'")
    return value


Secret = Annotated[SecretStr, AfterValidator(_refuse_blank)]
Key = Annotated[Secret, AfterValidator(_refuse_unsendable)]
SigningSecret = Annotated[Secret, AfterValidator(_refuse_guessable)]
KeyHash = Annotated[str, AfterValidator(_check_hash)]


class Hashed(Protocol):
    """A key's settings."""

    @property
    def hash(self) -> str: ...


def check_keys(keys: Mapping[str, Hashed]) -> None:
    """Refuse keys that cannot be told apart, or whose names mean something else.

    Raises:
        SettingsError: two have the same hash, or a name is reserved, blank or looks like a key.
    """
    if len({key.hash for key in keys.values()}) < len(keys):
        raise SettingsError("two names of [server.keys] have the same hash; make a key of its own for each")
    for name in keys:
        if name in RESERVED_KEY_NAMES:
            raise SettingsError(f"a key cannot be named {name!r}, which means another caller; choose another name")
        if re.search(r"mt-[\w-]{40}", name):
            raise SettingsError("a name in [server.keys] is itself a key (it is not shown); name whose key it is")
        if not name.strip() or name != name.strip() or not name.isprintable() or len(name) > 100:
            raise SettingsError(
                f"a key cannot be named {name[:100]!r}; expected up to 100 printable characters, no blanks around them"
            )


def check_file(path: Path, *, must_exist: bool) -> None:
    """Refuse a path that is no regular file: pydantic-settings would pass over it without a word."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        if must_exist:
            raise SettingsError(f"settings file {str(path)!r} does not exist") from error
        return
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise SettingsError(f"settings file {str(path)!r} cannot be read: {why}") from error
    if not stat.S_ISREG(mode):
        found = "folder" if stat.S_ISDIR(mode) else "pipe, socket or device"
        raise SettingsError(f"settings file {str(path)!r} is a {found}, expected a file")
