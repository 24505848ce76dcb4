"""Sources of settings besides keyword arguments: ``MEGATALKER_*`` variables and ``megatalker.toml``."""

import difflib
import ipaddress
import json
import logging
import os
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_settings import TomlConfigSettingsSource

from megatalker.errors import SettingsError, explain_validation
from megatalker.settings.files import MOST_BYTES, read_regular_file

ENV_PREFIX = "MEGATALKER_"
LISTS = "in the environment, write JSON, or values with commas between them (NAME=VALUE pairs for a table)"

logger = logging.getLogger(__name__)


class TomlFile(TomlConfigSettingsSource):
    """Names the file in its errors."""

    def _read_file(self, file_path: Path | Traversable) -> dict[str, Any]:
        try:
            return tomllib.loads(read_regular_file(Path(str(file_path)), MOST_BYTES).decode())
        except tomllib.TOMLDecodeError as error:  # its message names line and column
            raise SettingsError(f"settings file {str(file_path)!r} is not TOML: {error}") from error
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            raise SettingsError(f"settings file {str(file_path)!r} is not UTF-8 text (line {line})") from error
        except (ValueError, RecursionError) as error:  # a number of thousands of digits, or thousands of brackets
            raise SettingsError(f"settings file {str(file_path)!r} cannot be understood: {error}") from error
        except OSError as error:
            raise SettingsError(f"settings file {str(file_path)!r} cannot be read: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable that is meant as a setting."""

    name: str
    path: tuple[str, ...]
    value: Any

    def holds(self, path: Sequence[str | int]) -> bool:
        """The value at ``path`` of the settings, or a part of it, stands in this variable."""
        common = min(len(path), len(self.path))
        return tuple(path[:common]) == self.path[:common] and _reaches(self.value, path[common:])


def variables(model: type[BaseModel]) -> list[Variable]:
    """The environment's settings, a table before its keys, with values of the types that ``model`` wants.

    White space and one pair of quotes around a value are dropped: ``docker run --env-file`` hands them on.
    """
    links, found = _service_links(), []
    for name, text in os.environ.items():
        if name in links:
            logger.debug("%s tells where a service is, and is not a setting", name)
        elif name.upper().startswith(ENV_PREFIX):
            path = tuple(name[len(ENV_PREFIX) :].lower().split("__"))
            found.append(Variable(name, path, decode(_type_at(model, path), _unquoted(text))))
    return sorted(found, key=lambda variable: len(variable.path))


def environment(model: type[BaseModel]) -> dict[str, Any]:
    """The environment's settings, as nested tables."""
    tables: dict[str, Any] = {}
    for variable in variables(model):
        table, key = tables, variable.path[-1]
        for part in variable.path[:-1]:
            inner = table.setdefault(part, {})
            if not isinstance(inner, dict):
                whole = ENV_PREFIX + _upper(part)
                raise SettingsError(
                    f"{variable.name} and {whole} are both set, and {whole} is no table; keep one of them"
                )
            table = inner
        table[key] = variable.value
    return tables


def decode(wanted: Any, value: Any) -> Any:
    """Read a text where a list or a table is wanted; anything else stays as it is, for the model to judge.

    Lists are JSON, or values with commas or line breaks between them; tables are JSON, or ``NAME=VALUE`` pairs
    between which commas stand. A word that is allowed instead, such as ``auto``, stays that word.
    """
    kinds = list(_kinds(wanted))
    if not isinstance(value, str) or not kinds or value in _words(wanted):
        return value
    if value == "null":
        return None
    for text in (value, value[1:-1] if value[:1] in ("'", '"') else ""):
        if text[:1] in ("[", "{"):
            try:
                return json.loads(text)
            except (ValueError, RecursionError):
                continue
    parts = [_unquoted(part) for part in re.split(r"[,\n]", value) if part.strip()]
    if kinds == ["list"] and not value.startswith(("[", "{")):
        return parts
    if "table" in kinds and all("=" in part for part in parts):
        return {_unquoted(name): _unquoted(text) for name, _, text in (part.partition("=") for part in parts)}
    return value


def decode_table(model: type[BaseModel], table: Mapping[str, Any]) -> dict[str, Any]:
    """A table whose model :class:`~megatalker.settings.Settings` does not know: its texts are read as there."""
    return {key: decode(_type_at(model, (key,)), value) for key, value in table.items()}


def explain(
    error: ValidationError,
    model: type[BaseModel],
    given: Mapping[str, Any],
    *,
    table: str = "",
    known: Collection[str] = (),
) -> str:
    """Describe what is wrong with settings, and name the environment variable at fault.

    Args:
        error: pydantic's.
        model: that of all settings.
        given: values that win over the environment.
        table: what stands before each key.
        known: as for :func:`~megatalker.errors.explain_validation`.
    """
    read, texts = variables(model), []
    for fault in error.errors():
        text = explain_validation([fault], noun="setting", table=table, known=known)
        path = (*(table.split(".") if table else ()), *fault["loc"])
        holders = [variable.name for variable in read if variable.holds(path)] if not _reaches(given, path) else []
        if holders:
            text = f"environment variable {holders[-1]}: {text}"
            if fault["type"] == "extra_forbidden":
                close = difflib.get_close_matches(".".join(map(str, path)), known, n=1)
                text += "".join(f" In the environment it is {ENV_PREFIX}{_upper(name)}" for name in close)
            elif fault["type"] in ("dict_type", "list_type", "mapping_type", "model_type", "set_type", "tuple_type"):
                text += f"; {LISTS}"
        texts.append(text)
    return "; ".join(dict.fromkeys(texts))


def _upper(key: str) -> str:
    return key.upper().replace(".", "__")


def _unquoted(text: str) -> str:
    text = text.strip()
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" and text[0] not in text[1:-1]
    return text[1:-1] if quoted else text


def _reaches(value: Any, path: Sequence[str | int]) -> bool:
    for part in path:
        in_list = isinstance(value, list | tuple) and isinstance(part, int) and part < len(value)
        if not in_list and not (isinstance(value, Mapping) and part in value):
            return not isinstance(value, Mapping)  # beyond a plain value stand pydantic's names of a union's members
        value = value[part]
    return True


def _type_at(model: Any, path: Sequence[str]) -> Any:
    """The type that is wanted at ``path``; ``Any`` where nothing says so."""
    for part in path:
        for member in _members(model):
            if isinstance(member, type) and issubclass(member, BaseModel):
                model = member.model_fields[part].annotation if part in member.model_fields else Any
                break
            if _is(member, Mapping):
                model = get_args(member)[1] if get_args(member) else Any
                break
        else:
            return Any
    return model


def _members(wanted: Any) -> Iterator[Any]:
    """The types of a union, or the one type there is; without annotations, and without ``None``."""
    if get_origin(wanted) is Annotated:
        yield from _members(get_args(wanted)[0])
    elif get_origin(wanted) in (Union, UnionType):
        for member in get_args(wanted):
            yield from _members(member)
    elif wanted is not type(None):
        yield wanted


def _kinds(wanted: Any) -> Iterator[str]:
    """``list``, ``table`` or ``text``, for each type of a union without its words; nothing for a single plain type."""
    types = [one for one in _members(wanted) if get_origin(one) is not Literal]
    kinds = ["table" if _is_table(one) else "list" if _is_list(one) else "text" for one in types]
    yield from kinds if kinds != ["text"] else ()


def _words(wanted: Any) -> Iterator[Any]:
    """The words that a type allows, such as ``auto``."""
    for one in _members(wanted):
        yield from get_args(one) if get_origin(one) is Literal else ()


def _is_table(wanted: Any) -> bool:
    return _is(wanted, Mapping) or _is(wanted, BaseModel)


def _is_list(wanted: Any) -> bool:
    return _is(wanted, Collection) and not _is(wanted, str | bytes)


def _is(wanted: Any, kind: Any) -> bool:
    origin = get_origin(wanted) or wanted
    return isinstance(origin, type) and issubclass(origin, kind)


# ---- service links

_PROTOCOLS = "TCP|UDP|SCTP"
_SERVICE = r"MEGATALKER(?:_\w+)??"


def _service_links() -> set[str]:
    """Variables that Kubernetes (``enableServiceLinks``) and Docker (``--link``) make for services called megatalker,
    or megatalker and something else. They are known by their names and their values.
    """
    upper = {name: name.upper() for name in os.environ if name.upper().startswith(ENV_PREFIX)}
    found = set()
    for name, shouted in upper.items():
        for pattern, says in _LINKS:
            if re.fullmatch(_SERVICE + pattern, shouted) and says(os.environ[name]):
                found.add(name)
    aliases = [upper[name].removesuffix("NAME") + "ENV_" for name in found if upper[name].endswith("_NAME")]
    return found | {name for name, shouted in upper.items() if shouted.startswith(tuple(aliases))}


def _is_address(text: str) -> bool:
    try:
        return not ipaddress.ip_address(text.strip("[]")).is_unspecified  # which a server binds, and no service has
    except ValueError:
        return False


def _is_port(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,5}", text) is not None


def _is_url(text: str) -> bool:
    parts = re.fullmatch(rf"(?i:{_PROTOCOLS})://(.+):[0-9]{{1,5}}", text)
    return parts is not None and _is_address(parts[1])


_LINKS: tuple[tuple[str, Callable[[str], bool]], ...] = (
    (r"_SERVICE_HOST", _is_address),
    (r"_SERVICE_PORT(?:_\w+)?", _is_port),
    (rf"_PORT(?:_[0-9]+_(?:{_PROTOCOLS}))?(?:_START|_END)?", _is_url),
    (rf"_PORT_[0-9]+_(?:{_PROTOCOLS})_ADDR", _is_address),
    (rf"_PORT_[0-9]+_(?:{_PROTOCOLS})_PORT(?:_START|_END)?", _is_port),
    (rf"_PORT_[0-9]+_(?:{_PROTOCOLS})_PROTO", lambda text: re.fullmatch(rf"(?i:{_PROTOCOLS})", text) is not None),
    (r"_NAME", lambda text: re.fullmatch(r"/[^/\s]+/[^/\s]+", text) is not None),
)
"""The end of a name, and what its value must be."""
