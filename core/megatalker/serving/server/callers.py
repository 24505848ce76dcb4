"""Callers and what each may have: keys with their limits, token buckets, and the streams of one request."""

import asyncio
import ipaddress
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from megatalker.errors import CapacityError
from megatalker.serving.server.logs import CURRENT
from megatalker.serving.server.problems import AuthenticationError
from megatalker.serving.server.usage import KeyUsage

MOST_OWNERS = 1024
"""Buckets that are kept; the one used longest ago, which has filled up meanwhile, goes first."""


class TokenBucket:
    """Holds at most ``burst`` tokens, is full at first, and gets ``per_second`` of them back. Not thread-safe.

    Args:
        per_second: tokens that come back in a second.
        burst: tokens that it holds at most.
        clock: seconds, monotonic.
    """

    def __init__(self, per_second: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second, self._burst, self._clock = per_second, burst, clock
        self._left, self._counted_at = float(burst), clock()

    def take(self) -> float:
        """Take one token and return 0; where there is none, return the seconds until there is one."""
        self._refill()
        if self._left < 1:
            return (1 - self._left) / self._per_second
        self._left -= 1
        return 0.0

    def reserve(self) -> float:
        """Take one token, where none is left one of those to come, and return the seconds until it is there."""
        self._refill()
        self._left -= 1
        return max(0.0, -self._left / self._per_second)

    def _refill(self) -> None:
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._counted_at) * self._per_second)
        self._counted_at = now


class OwnerBuckets:
    """A token bucket for each owner. Not thread-safe.

    Args:
        per_second: tokens that come back in a second, to each.
        burst: tokens that each holds at most.
    """

    def __init__(self, per_second: float, burst: int) -> None:
        self._per_second, self._burst = per_second, burst
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def of_owner(self, owner: str) -> TokenBucket:
        """The bucket of this owner."""
        bucket = self._buckets.pop(owner, None) or TokenBucket(self._per_second, self._burst)
        self._buckets[owner] = bucket
        if len(self._buckets) > MOST_OWNERS:
            self._buckets.popitem(last=False)
        return bucket


class Turns:
    """In each turn of the event loop one message or request of each owner is handled, whatever comes at once: others
    need not wait until all of an owner's connections have had theirs. Not thread-safe.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def take(self, owner: str) -> None:
        """Return at once, or when what this owner sent before has had its turn."""
        loop, waiting = asyncio.get_running_loop(), self._waiting.get(owner)
        if waiting is None:
            self._waiting[owner] = deque()
            loop.call_soon(self._next, owner)
            return
        place = loop.create_future()
        waiting.append(place)
        await place

    def _next(self, owner: str) -> None:
        waiting = self._waiting[owner]
        while waiting:
            place = waiting.popleft()
            if not place.done():  # by the end of its connection
                place.set_result(None)
                asyncio.get_running_loop().call_soon(self._next, owner)
                return
        del self._waiting[owner]


ANONYMOUS = "anonymous"
"""The caller of a server that asks for no key."""


class LimitError(CapacityError):
    """A caller has reached a limit for now."""


class RateLimitError(LimitError):
    """Too many requests a minute."""


class StreamLimitError(LimitError):
    """Too many utterances at a time."""


class Caller:
    """One key, or everybody where none is asked for. Belongs to one event loop.

    Args:
        name: of the key.
        usage: where it is counted what the key uses; ``None``: nowhere, for it has no limits.
        max_streams: utterances at a time; ``None``: any number.
        requests_per_minute: ``None``: any number.
        manage_voices: it may add and remove voices.
    """

    def __init__(
        self,
        name: str,
        usage: KeyUsage | None = None,
        *,
        max_streams: int | None = None,
        requests_per_minute: int | None = None,
        manage_voices: bool = True,
    ) -> None:
        self.name, self._usage = name, usage
        self.removed = False
        """The key was removed: it opens nothing, and its open connections begin nothing more."""
        self.limit(max_streams=max_streams, requests_per_minute=requests_per_minute, manage_voices=manage_voices)

    def limit(self, *, max_streams: int | None, requests_per_minute: int | None, manage_voices: bool) -> None:
        """Set other limits from now on; running utterances and past requests still count."""
        self._max_streams, self._per_minute, self.manage_voices = max_streams, requests_per_minute, manage_voices

    def count_request(self) -> None:
        """Count a request that costs; raises ``RateLimitError`` where there were too many.

        What was not asked for in the last minute is saved up, but no longer.
        """
        if self._usage is None or self._per_minute is None:
            return
        wait_s = self._usage.take_request(self.name, self._per_minute)
        if wait_s:
            raise RateLimitError(
                f"key {self.name!r} may ask {self._per_minute} times a minute and has; wait, or raise its "
                "requests_per_minute",
                retry_after_s=wait_s,
            )

    def take_stream(self) -> None:
        """Count one more utterance; :meth:`give_stream_back` must follow. Raises ``StreamLimitError`` at the limit."""
        if self._usage is not None and not self._usage.take_stream(self.name, self._max_streams):
            raise StreamLimitError(
                f"key {self.name!r} may have {self._max_streams} utterances at a time and has; let one end, or raise "
                "its max_streams",
                retry_after_s=1.0,
            )

    def give_stream_back(self) -> None:
        """An utterance has ended."""
        if self._usage is not None:
            self._usage.give_stream_back(self.name)


@dataclass(slots=True, eq=False)
class RequestContext:
    """One HTTP request, or one WebSocket connection with all its utterances."""

    caller: Caller = field(default_factory=lambda: Caller(ANONYMOUS))
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    """The ``X-Request-Id`` that the client sent, or one of our own."""
    client: str = ""
    """The address that it comes from."""
    max_streams: int | None = None
    """Utterances at a time; ``None``: any number."""
    streams: int = 0

    @property
    def owner(self) -> str:
        """The owner of its utterances and connections: the key, or the address where callers have no keys."""
        return address_owner(self.client) if self.caller.name == ANONYMOUS else f"key {self.caller.name}"

    def take_stream(self) -> None:
        """One utterance more; raises ``LimitError`` where call or caller may not have it, and counts it otherwise.
        Raises ``AuthenticationError`` where the caller's key was removed.
        """
        if self.caller.removed:
            raise AuthenticationError(f"key {self.caller.name!r} was removed from this server; use another one")
        if self.max_streams is not None and self.streams >= self.max_streams:
            raise StreamLimitError(
                f"this connection has {self.streams} utterances open, as many as it may; let one end, use another "
                "connection, or raise the server's setting max_streams_per_connection",
                retry_after_s=1.0,
            )
        self.caller.count_request()
        self.caller.take_stream()
        self.streams += 1

    def give_stream_back(self) -> None:
        """An utterance has ended."""
        self.streams -= 1
        self.caller.give_stream_back()


@lru_cache(4096)
def address_owner(address: str) -> str:
    """The owner that callers without a key at this address count for. Of IPv6 it is the network of 64 bits, in which a
    client chooses its address itself.
    """
    try:
        known = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return f"client {address[:64]}"
    if isinstance(known, ipaddress.IPv6Address):
        if known.ipv4_mapped is None:
            return f"client {ipaddress.ip_network((known, 64), strict=False)}"
        known = known.ipv4_mapped
    return f"client {known}"


def current_request() -> RequestContext:
    """The call that this code runs for; outside of any, one without limits."""
    return CURRENT.get(None) or RequestContext()


def known_request() -> RequestContext | None:
    """The call that this code runs for, or ``None`` outside of any."""
    return CURRENT.get(None)


enter_request, leave_request = CURRENT.set, CURRENT.reset
