"""``/v1/voices``: which voices there are, and adding and removing voices that the server keeps."""

import asyncio
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Annotated

from fastapi import APIRouter, Form, Response, UploadFile

from megatalker.errors import MegatalkerError
from megatalker.serving.background import BackgroundHealth, RecoverableError, polling
from megatalker.serving.server.callers import current_request
from megatalker.serving.server.problems import ForbiddenError, UnknownVoiceError, error_responses
from megatalker.serving.server.speech_service import SpeechService
from megatalker.voices import list_speakers
from megatalker.voices.folder import Manifest, Recording, VoiceExistsError
from megatalker.voices.library import VoiceLibrary
from megatalker.voices.reference_checks import reference_warnings

PATH = "/v1/voices"
PATHS = (PATH, "/v1/audio/voices")
"""Our own, and that of other servers."""


def voice_routes(service: SpeechService) -> APIRouter:
    """Return the routes over the voices of a service."""
    router, library = APIRouter(), service.voices

    @router.get(PATHS[0])
    @router.get(PATHS[1])
    async def voices() -> dict[str, object]:
        """The checkpoint's speakers and the server's voices; ``voice`` in a request is one of these ids. ``voices`` is
        for voice pickers that look there.
        """
        await service.checks.run(library.look_again)
        speakers = list_speakers(service.engine.checkpoint)
        entries: list[dict[str, str]] = [{"id": name, "kind": "speaker"} for name in speakers]
        entries += [{"id": name, "kind": entry.kind, "summary": entry.summary} for name, entry in library.items()]
        return {"object": "list", "data": entries, "voices": [{"name": entry["id"], **entry} for entry in entries]}

    @router.post(PATHS[0], status_code=201, responses=error_responses(400, 409, 429, 503, 507))
    @router.post(PATHS[1], status_code=201, responses=error_responses(400, 409, 429, 503, 507))
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

    @router.delete(PATHS[0] + "/{name}", status_code=204, responses=error_responses(400, 404, 429, 503, 507))
    @router.delete(PATHS[1] + "/{name}", status_code=204, responses=error_responses(400, 404, 429, 503, 507))
    async def remove(name: str) -> Response:
        """Delete a voice that the server keeps, with its recording. Utterances that speak with it go on."""
        _require_manager()
        await asyncio.to_thread(library.look_again)
        if name not in library:
            raise UnknownVoiceError(_cannot_remove(name, service))
        await asyncio.to_thread(library.remove, name)
        return Response(status_code=204)

    return router


def _cannot_remove(name: str, service: SpeechService) -> str:
    kept = ", ".join(name for name, _ in service.voices.items()) or "none"
    if name.lower() in map(str.lower, list_speakers(service.engine.checkpoint)):
        return f"{name!r} is a speaker of the checkpoint and cannot be removed; voices that this server keeps: {kept}"
    return f"this server keeps no voice {name!r:.80}; voices that it keeps: {kept}"


def _require_manager() -> None:
    caller = current_request().caller
    if not caller.manage_voices:
        raise ForbiddenError(f"key {caller.name!r} may not add or remove voices; its setting manage_voices allows that")
    caller.count_request()


def watch_voices(library: VoiceLibrary, health: BackgroundHealth) -> AbstractAsyncContextManager[None]:
    """Keep the library equal to its folder, which may change at any time."""
    if library.folder is None:
        return nullcontext()

    async def look() -> None:
        try:
            await asyncio.to_thread(library.refresh_if_changed)
        except MegatalkerError as error:
            raise RecoverableError(
                "the folder of voices cannot be read, and the voices stay as they were", error
            ) from error

    return polling(look, "voices", health)
