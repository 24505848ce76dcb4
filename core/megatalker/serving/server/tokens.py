"""``POST /v1/tokens``: what a web page opens a WebSocket with, so that no key goes to browsers."""

from fastapi import APIRouter
from pydantic import BaseModel

from megatalker.serving.server.callers import current_call
from megatalker.serving.server.keyring import SUBPROTOCOL, TOKEN_SUBPROTOCOL, Keyring
from megatalker.serving.server.openapi import errors


class Token(BaseModel):
    """A token, and how it is used."""

    token: str
    """For ``?token=`` of the WebSocket's URL."""
    subprotocols: list[str]
    """Or, so that it stands in no log, the second argument of a browser's ``WebSocket``."""
    expires_in: int
    """Seconds. A WebSocket that is open by then stays open."""


def token_routes(keyring: Keyring) -> APIRouter:
    """The route that gives tokens to whoever has a key."""
    router = APIRouter()

    @router.post("/v1/tokens", responses=errors(429))
    async def tokens() -> Token:
        """A token in the name of the key that asks, with its limits. It opens WebSockets and nothing else."""
        caller = current_call().caller
        caller.count_request()
        token = keyring.token(caller)
        return Token(
            token=token,
            subprotocols=[SUBPROTOCOL, TOKEN_SUBPROTOCOL + token],
            expires_in=keyring.token_lifetime_s,
        )

    return router
