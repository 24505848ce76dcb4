"""Bodies of requests: JSON as documented, and what clients of other servers send instead of it."""

import base64
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from fastapi import Request
from pydantic import BaseModel
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from megatalker.errors import InvalidRequestError
from megatalker.serving.protocol.leniency import M, read_fields, read_json
from megatalker.serving.server.logs import log_ignored

FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"


def body_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return FastAPI's ``openapi_extra`` for a route that reads this body by :func:`read_body`."""
    content = {"application/json": {"schema": model.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


async def read_body(request: Request, model: type[M], *, strict: bool) -> tuple[M, tuple[str, ...]]:
    """Return the body of a request, and the names of the fields in it that were left out.

    JSON is found under any content type. Forms are taken as well; a file in one is its content as a ``data:`` URL.

    Args:
        request: whose body was not read yet.
        model: what the body holds.
        strict: see :func:`~megatalker.serving.protocol.leniency.read_fields`.

    Raises:
        InvalidRequestError: it is neither, or holds something else.
        HTTPException: it did not come whole, or is too long.
    """
    try:
        given = await _given(request)
    except ClientDisconnect:
        raise HTTPException(400, "the body did not come whole") from None
    message, ignored = read_fields(model, given, strict=strict)
    log_ignored(ignored)
    return message, ignored


async def _given(request: Request) -> Mapping[str, Any]:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type == MULTIPART:
        async with request.form() as form:
            return {name: await _field(value) for name, value in form.items()}
    body = await request.body()
    if media_type == FORM and not body.lstrip().startswith(b"{"):  # as curl announces JSON
        return dict(parse_qsl(body.decode(errors="replace"), keep_blank_values=True))
    given = read_json(body) if body.strip() else {}
    if not isinstance(given, dict):
        raise InvalidRequestError(f"the body is {given!r:.60}: it should be an object")
    return given


async def _field(value: str | UploadFile) -> str:
    if isinstance(value, str):
        return value
    content = base64.b64encode(await value.read()).decode()
    return f"data:{value.content_type or 'application/octet-stream'};base64,{content}"
