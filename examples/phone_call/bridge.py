"""Speaks into telephone calls: a WebSocket server for the media streams of Twilio and Telnyx.

    megatalker serve
    python examples/phone_call/bridge.py --say "Hello, this is the bakery."

Point the call's stream here: ``<Connect><Stream url="wss://HOST/"/></Connect>`` in Twilio's TwiML, ``stream_url`` with
``stream_bidirectional_mode: rtp`` at Telnyx. A key that the caller presses cuts the speech off.
"""

import argparse
import asyncio
import base64
import json
import logging
from dataclasses import dataclass
from typing import Any

from websockets.asyncio.server import ServerConnection, serve

from megatalker import SampleEncoder, SampleFrames
from megatalker.engine.speech.protocols import Speech, SpeechEngine
from megatalker.errors import MegatalkerError
from megatalker.serving.client import RemoteEngine
from megatalker.serving.samples import SampleFormat

LAWS: dict[str, SampleFormat] = {"audio/x-mulaw": "pcm_mulaw", "PCMU": "pcm_mulaw", "PCMA": "pcm_alaw"}
SAID = "said"
"""The mark behind the speech: the service sends it back when the caller has heard everything."""


@dataclass(frozen=True)
class Call:
    """A media stream, as its ``start`` message describes it."""

    law: SampleFormat
    stream: dict[str, str]
    """The field that Twilio wants in every message; nothing for Telnyx."""

    @classmethod
    def begun_by(cls, message: dict[str, Any]) -> "Call":
        """Return the call of a ``start`` message; raises ``KeyError`` for a format that is not spoken here."""
        start = message["start"]
        media = start["mediaFormat"] if "mediaFormat" in start else start["media_format"]
        stream = {"streamSid": message["streamSid"]} if "streamSid" in message else {}
        return cls(LAWS[media["encoding"]], stream)

    def message(self, event: str, **fields: object) -> str:
        """Return a message to the service."""
        return json.dumps({"event": event, **self.stream, **fields})

    def media(self, frame: bytes) -> str:
        """Return the message that plays 20 ms of G.711."""
        return self.message("media", media={"payload": base64.b64encode(frame).decode()})


async def speak(socket: ServerConnection, call: Call, speech: Speech) -> None:
    """Send all of the speech, and the mark. The service keeps what comes sooner than it is played."""
    frames = SampleFrames(SampleEncoder(call.law))
    async for chunk in speech:
        for frame in frames.push(chunk.pcm):
            await socket.send(call.media(frame))
    for frame in frames.finish():
        await socket.send(call.media(frame))
    await socket.send(call.message("mark", mark={"name": SAID}))


async def answer(socket: ServerConnection, engine: SpeechEngine, text: str) -> None:
    """Serve one call until it ends, or the caller has heard everything."""
    speech: Speech | None = None
    speaking: asyncio.Task[None] | None = None
    try:
        async for data in socket:
            message = json.loads(data)
            match message["event"]:
                case "start":
                    call = Call.begun_by(message)
                    if speech is not None:
                        raise ValueError("it starts twice")
                    speech = engine.speak(text)
                    speaking = asyncio.create_task(speak(socket, call, speech))
                case "dtmf" if speech is not None and speaking is not None:
                    speech.cancel()
                    await speaking
                    await socket.send(call.message("clear"))  # what the service still holds
                case "mark" if message["mark"]["name"] == SAID:
                    return
                case "stop":
                    return
    except (KeyError, TypeError, ValueError) as error:
        logging.warning("a media stream cannot be understood: %r", error)
    finally:
        if speech is not None and speaking is not None:
            speech.cancel()
            (failure,) = await asyncio.gather(speaking, return_exceptions=True)
            if isinstance(failure, MegatalkerError):
                logging.error("a call was not spoken to: %s", failure)


async def main() -> None:
    """Serve calls until interrupted."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", default="http://localhost:8000", help="a running megatalker serve")
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument("--say", required=True)
    options = parser.parse_args()
    with RemoteEngine(options.engine) as engine:
        async with serve(lambda socket: answer(socket, engine, options.say), "", options.port) as server:
            await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
