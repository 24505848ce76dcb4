"""An OpenAI-compatible server without a model: hears a pitch, answers from a script, and keeps the requests."""

import asyncio
import io
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, Self

import soundfile
import uvicorn
from fastapi import FastAPI, Form, Request, UploadFile
from fastapi.responses import StreamingResponse

from megatalker_benchmarks.vowels import pitch_of

START_S = 60.0
TOKEN_S = 0.005
PITCH_TOLERANCE = 0.1


class MockOpenAI:
    """Use it in a ``with`` block; :attr:`url` is its base URL.

    ``transcripts`` maps the pitch of an utterance in Hz to what it says; ``answers`` maps what the user or a function
    says to the answer, which begins after ``thought_s`` seconds. ``calls`` maps an answer to the names and arguments of
    the functions that are called behind it.
    """

    def __init__(
        self,
        transcripts: Mapping[float, str],
        answers: Mapping[str, str],
        thought_s: float = 0.0,
        calls: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self._transcripts, self._answers, self._thought_s = transcripts, answers, thought_s
        self._calls = calls or {}
        self.heard: list[float] = []
        """The pitches of the utterances that came in."""
        self.rates: list[int] = []
        """The sample rates of these utterances."""
        self.conversations: list[list[dict[str, Any]]] = []
        """The messages of each request for an answer."""
        self.functions: list[tuple[Any, Any]] = []
        """``tools`` and ``tool_choice`` of each request for an answer."""
        self.keys: list[str | None] = []
        """The ``Authorization`` header of each request."""
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        self._server = uvicorn.Server(uvicorn.Config(self._app(), log_level="warning", ws="none"))
        self._thread = threading.Thread(target=self._server.run, args=([listener],), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        deadline = time.monotonic() + START_S
        while not self._server.started:
            assert time.monotonic() < deadline, "the mock server does not start"
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(10)

    def _app(self) -> FastAPI:
        app = FastAPI()

        @app.post("/v1/audio/transcriptions")
        async def transcribe(
            request: Request,
            file: UploadFile,
            model: str = Form(),  # noqa: ARG001 - it has to be named
        ) -> dict[str, str]:
            self.keys.append(request.headers.get("authorization"))
            samples, rate = soundfile.read(io.BytesIO(await file.read()), dtype="int16")
            self.rates.append(rate)
            pitch = pitch_of(samples, rate)
            self.heard.append(pitch)
            near = [said for at, said in self._transcripts.items() if abs(pitch / at - 1) < PITCH_TOLERANCE]
            return {"text": near[0] if near else ""}

        @app.post("/v1/chat/completions")
        async def answer(request: Request) -> StreamingResponse:
            self.keys.append(request.headers.get("authorization"))
            body = await request.json()
            self.conversations.append(body["messages"])
            self.functions.append((body.get("tools"), body.get("tool_choice")))
            said = [message["content"] for message in body["messages"] if message["role"] in ("user", "tool")][-1]
            await asyncio.sleep(self._thought_s)
            words = self._answers[said]
            stream = _stream(words, self._calls.get(words, {}), len(self.conversations), body["model"])
            return StreamingResponse(stream, media_type="text/event-stream")

        return app


async def _stream(words: str, calls: Mapping[str, str], request: int, model: str) -> AsyncIterator[str]:
    for number, word in enumerate(words.split(" ") if words else []):
        yield _event(model, {"role": "assistant", "content": word if number == 0 else f" {word}"}, None)
        await asyncio.sleep(TOKEN_S)
    for number, (name, arguments) in enumerate(calls.items()):
        call = {"index": number, "id": f"call_{request}_{number}", "type": "function"}
        function = {"name": name, "arguments": arguments}
        yield _event(model, {"role": "assistant", "tool_calls": [{**call, "function": function}]}, None)
    yield _event(model, {}, "tool_calls" if calls else "stop")
    yield "data: [DONE]\n\n"


def _event(model: str, delta: dict[str, Any], finish: str | None) -> str:
    chunk = {
        "id": "mock",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": model,
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }
    return f"data: {json.dumps(chunk)}\n\n"
