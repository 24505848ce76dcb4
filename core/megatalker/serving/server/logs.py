"""The log of a server: one line for each record, as text or as JSON, with the fields of events."""

import json
import logging
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from megatalker.serving.server.callers import RequestContext

CURRENT: "ContextVar[RequestContext]" = ContextVar("megatalker_call")
"""The request that is being served."""


def configure_logging(log_format: Literal["text", "json"]) -> None:
    """Everything that this process logs goes to standard error in this format, one line each."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(handlers=[handler], force=True)


class TextFormatter(logging.Formatter):
    """``time LEVEL logger: message key=value ...``; a value with blanks or control characters is quoted."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - of the library
        pairs = (f"{name}={_plain(value)}" for name, value in _fields(record).items())
        return " ".join((super().formatMessage(record), *pairs))


class JsonFormatter(logging.Formatter):
    """One object a line: ``time`` (UTC), ``level``, ``logger``, ``message`` and the fields of the event."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """Return the fields of an event, and the request that is being served, wherever a line comes from."""
    fields: dict[str, object] = dict(getattr(record, "fields", {}))
    call = CURRENT.get(None)
    if call is not None:
        fields.setdefault("request_id", call.id)
    return fields


def _plain(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if text.isprintable() and not set(text) & set(' "=') else json.dumps(text)
