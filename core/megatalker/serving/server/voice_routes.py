"""``/v1/voices``: which voices there are, and adding and removing those that the server keeps."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import APIRouter, Form, Response, UploadFile
from watchfiles import DefaultFilter, awatch

from megatalker.errors import InvalidRequestError
from megatalker.serving.server.callers import current_call
from megatalker.serving.server.openapi import errors
from megatalker.serving.server.problems import ForbiddenError, UnknownVoiceError, VoiceExistsError
from megatalker.serving.server.speaker import Speaker
from megatalker.voices import list_speakers
from megatalker.voices.folder import KEPT, Manifest, Recording
from megatalker.voices.library import VoiceLibrary
from megatalker.voices.reference_checks import reference_warnings

logger = logging.getLogger(__name__)

PATH = "/v1/voices"


def voice_routes(speaker: Speaker) -> APIRouter:
    """The routes over this speaker's voices."""
    router, library = APIRouter(), speaker.voices

    @router.get(PATH)
    def voices() -> dict[str, object]:
        """The checkpoint's speakers and the server's voices; ``voice`` in a request is one of these ids."""
        entries = [{"id": name, "kind": "speaker"} for name in list_speakers(speaker.engine.checkpoint)]
        entries += [{"id": name, "kind": entry.kind, "summary": entry.summary} for name, entry in library.items()]
        return {"object": "list", "data": entries}

    @router.post(PATH, status_code=201, responses=errors(400, 409, 429))
    async def add(
        name: Annotated[str, Form()],
        reference: UploadFile,
        transcript: Annotated[str | None, Form()] = None,
        summary: Annotated[str, Form()] = "",
    ) -> dict[str, object]:
        """Clone a recording (``multipart/form-data``): WAV, FLAC, OGG, MP3, M4A, MP4, AAC or WebM, 3 to 15 s of clear
        speech, and every word that is said in it. Without ``transcript`` only how the speaker sounds is cloned. Answers
        when it can be used; ``warnings`` say why it may sound worse than it could.
        """
        _require_manager()
        if name in library:
            raise VoiceExistsError(f"there is a voice {name!r} already; remove it, or choose another name")
        words = None if transcript is None else transcript.strip()
        manifest = Manifest(summary=summary, in_context=words is not None)
        recording = Recording(manifest, await reference.read(), words)
        await asyncio.to_thread(library.add, name, recording)
        warnings = await asyncio.to_thread(reference_warnings, recording.reference, words)
        added = {"id": library.listed_name(name), "kind": "clone", "summary": summary}
        return added | ({"warnings": warnings} if warnings else {})

    @router.delete(PATH + "/{name}", status_code=204, responses=errors(400, 404, 429))
    async def remove(name: str) -> Response:
        """Delete a voice that the server keeps, with its recording. Utterances that speak with it go on."""
        _require_manager()
        if name not in library:
            raise UnknownVoiceError(f"this server keeps no voice {name!r}; GET {PATH} lists them")
        await asyncio.to_thread(library.remove, name)
        return Response(status_code=204)

    return router


def _require_manager() -> None:
    caller = current_call().caller
    if not caller.manage_voices:
        raise ForbiddenError(f"key {caller.name!r} may not add or remove voices; its setting manage_voices allows that")
    caller.count_request()


@asynccontextmanager
async def watching(library: VoiceLibrary) -> AsyncIterator[None]:
    """Meanwhile the library follows what changes in its folder."""
    if library.folder is None:
        yield
        return
    stop = asyncio.Event()
    task = asyncio.create_task(_watch(library, stop))
    try:
        yield
    finally:
        stop.set()
        await task


async def _watch(library: VoiceLibrary, stop: asyncio.Event) -> None:
    assert library.folder is not None
    async for _ in awatch(library.folder, watch_filter=_Filter(), stop_event=stop):
        try:
            await asyncio.to_thread(library.refresh)
        except InvalidRequestError:
            logger.exception("the voices stay as they were")


class _Filter(DefaultFilter):
    """Not what is half written, nor what the library keeps for itself."""

    ignore_entity_patterns = (*DefaultFilter.ignore_entity_patterns, rf"^{KEPT}", r"^\.")
