"""Writes docs/settings.md from the settings' models: ``python website/settings_page.py`` (``make docs`` does)."""

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from roles import plain

from megatalker import BackendRegistry
from megatalker.settings import C2paSettings, KeySettings, RaySettings, ServerSettings, Settings
from megatalker_backends import plugin
from megatalker_pipecat.agent.settings import AgentSettings, EndpointSettings, HearingSettings

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"
HEAD = """\
# Settings

<!-- Written by website/settings_page.py from the models in the source; edit those. -->

Keyword arguments and command-line options win over environment variables, these over `megatalker.toml` in the working
directory (`--config FILE` names another). An unknown key is refused by name.

| where | how `compiled.max_streams` is written |
|---|---|
| Python | `Settings(backends={"compiled": {"max_streams": 4}})` |
| environment | `MEGATALKER_BACKENDS__COMPILED__MAX_STREAMS=4` |
| `megatalker.toml` | `max_streams = 4` below `[backends.compiled]` |

In the environment, lists and tables are JSON, or values with commas between them:
`MEGATALKER_SERVER__ALLOWED_ORIGINS=https://a.example.com,https://b.example.com`,
`MEGATALKER_SERVER__VOICE_ALIASES=alloy=mina,ash=otto`. White space and one pair of quotes around a value are dropped.
Variables with which Kubernetes and Docker tell where a service called megatalker is (its host, port) are no settings.

```toml title="megatalker.toml"
checkpoint = "demo"
backend = "auto"       # the best available; a name here is that backend or an error
language = "english"
max_streams = 8
max_ahead_s = 3.0      # no more than this ahead of playback
max_untaken_s = 20.0   # a stream waits for a consumer that has not taken this much

[backends.compiled]
max_streams = 8
```
"""
BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
KINDS = {"integer": "integer", "number": "number", "boolean": "`true` or `false`", "object": "table"}


def sections() -> Iterator[tuple[str, type[BaseModel]]]:
    """Title and model of every table."""
    yield "The engine", Settings
    yield "`[server]`", ServerSettings
    yield "`[server.keys.NAME]`", KeySettings
    yield "`[ray]`", RaySettings
    yield "`[c2pa]`", C2paSettings
    registry = BackendRegistry([("builtin", plugin)])
    for table, backends in (("backends", registry.talkers), ("codecs", registry.codecs)):
        yield from ((f"`[{table}.{one.name}]`", one.settings) for one in backends if one.settings.model_fields)
    yield "`[agent]`", AgentSettings
    yield "`[agent.stt]`", HearingSettings
    yield "`[agent.llm]`", EndpointSettings


def documented(model: type[BaseModel]) -> dict[str, str]:
    """The string below each field, those of base classes included."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if not issubclass(base, BaseModel) or base.__module__.startswith("pydantic"):
            continue
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(definition, ast.ClassDef)
        for field, after in zip(definition.body, definition.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                text = (
                    after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
                )
                found[field.target.id] = plain(" ".join(str(text).split())).replace("``", "`")
    return found


def kind(schema: Mapping[str, Any]) -> str:
    """Return the description of a value's type in a JSON schema."""
    if "anyOf" in schema:
        return ", or ".join(kind(one) for one in schema["anyOf"] if one.get("type") != "null")
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "$ref" in schema:
        return "text" if schema["$ref"].endswith("Language") else "table"
    if schema.get("type") == "array":
        return f"list of {kind(schema['items'])}"
    return KINDS.get(schema.get("type", ""), "text")


def bounds(annotation: Any) -> Iterator[str]:
    """Such as ``≥ 1``; JSON schemas lack those behind a validator of our own."""
    for part in (*getattr(annotation, "metadata", ()), *getattr(annotation, "__metadata__", ())):
        yield from bounds(part) if isinstance(part, FieldInfo) else ()
        yield from (f"{sign} {getattr(part, name):,g}" for name, sign in BOUNDS.items() if hasattr(part, name))
    for inner in get_args(annotation.annotation if isinstance(annotation, FieldInfo) else annotation):
        yield from bounds(inner)


def default(field: Any) -> str:
    """The value without the key."""
    value = field.get_default(call_default_factory=True)
    if field.is_required():
        return "must be given"
    if value is None or isinstance(value, SecretStr):
        return "none"
    if isinstance(value, BaseModel | dict):
        return "empty"
    return f"`{json.dumps(list(value) if isinstance(value, tuple) else value)}`"


def section(title: str, model: type[BaseModel]) -> str:
    """The table of one model."""
    texts, properties = documented(model), model.model_json_schema()["properties"]
    rows = []
    for name, field in model.model_fields.items():
        values = ", ".join([kind(properties[name]), *dict.fromkeys(bounds(field))])
        rows.append(f"| `{name}` | {values} | {default(field)} | {texts[name]} |")
    return "\n".join([f"## {title}", "", "| key | value | default | what |", "|---|---|---|---|", *rows])


def page() -> str:
    """The whole page."""
    return "\n\n".join([HEAD.strip(), *(section(*one) for one in sections())]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
