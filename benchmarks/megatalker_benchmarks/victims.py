"""Callers that behave while others attack: loads of short texts on each route, and a listener to endless speech."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import SecretStr

from megatalker.cli.bench.drive import Listen, Samples, Script, drive, listening_to
from megatalker.cli.bench.playback import Playback, summary
from megatalker.cli.bench.servers import SpeechRoute
from megatalker.cli.bench.traffic import Traffic
from megatalker.engine.speech.options import SpeechOptions
from megatalker.serving.client import RemoteEngine

SHORT = Script(texts=["Hello."], length_s=1.0)
"""Its end is set, since random weights would speak on."""
VICTIMS = ("http", "websocket", "listener")
STEADY = Script(length_s=None, ahead_s=0.5)
"""The steady listener has little audio in hand, so that it hears a server that stands still for longer."""


@dataclass
class Victims:
    """Playbacks of the callers in one kind of phase."""

    http: list[Playback] = field(default_factory=list)
    websocket: list[Playback] = field(default_factory=list)
    steady: list[Playback] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """Return their summary for the JSON report."""
        heard = [summary(one) for one in (self.http, self.websocket, self.steady)]
        return {
            "http_first_chunk_ms": heard[0]["first_chunk_ms"],
            "websocket_first_chunk_ms": heard[1]["first_chunk_ms"],
            "failed": dict(sum((Counter(one["errors"]) for one in heard), Counter[str]())),
            "gap_ms": heard[2]["worst_gap_ms"],
        }

    async def behave(self, url: str, keys: Mapping[str, str], rate: float, seconds: float) -> None:
        """Ask for ``rate`` short texts a second on each route, each on a new connection, while one listens.

        Args:
            url: of the server.
            keys: of the callers on each route and of the listener (:data:`VICTIMS`); none where it asks for none.
            rate: as above.
            seconds: for which they do it.
        """
        http, websocket, steady = (keys.get(name) for name in VICTIMS)
        route = SpeechRoute([url], None if http is None else SecretStr(http))
        requests = Traffic("rate", rate)

        async def ask_between() -> None:
            await asyncio.sleep(0.5 / rate)  # the moments of the other route are the same
            self.http += (await drive(route.listen, requests, SHORT, seconds)).playbacks

        async def ask() -> None:
            self.websocket += (await drive(_new_websockets(url, websocket), requests, SHORT, seconds)).playbacks

        async def listen() -> None:
            self.steady += (await drive(_new_websockets(url, steady), Traffic("streams", 1), STEADY, seconds)).playbacks

        await asyncio.gather(ask_between(), ask(), listen())


def _new_websockets(url: str, key: str | None) -> Listen:
    """Return a server in the form that loads are played against, with a WebSocket for each request."""

    async def listen(text: str, options: SpeechOptions, words_a_second: float | None) -> AsyncIterator[Samples]:
        engine = RemoteEngine(url, api_key=key)
        try:
            async for pcm in listening_to(engine)(text, options, words_a_second):
                yield pcm
        finally:
            await asyncio.to_thread(engine.close)

    return listen
