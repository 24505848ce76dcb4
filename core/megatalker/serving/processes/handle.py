"""One engine process, as a client sees it."""

from collections import OrderedDict
from collections.abc import Sequence

from megatalker.engine.codec_stage import WARM_VOICES
from megatalker.serving.processes.control import Attach, Context, EngineState, Sender
from megatalker.serving.processes.last_call import last_call
from megatalker.serving.processes.messages import EngineStatus, Order, pack_orders


class EngineHandle:
    """An engine process that makes utterances of this client. Methods may be called from any thread.

    Args:
        state: by the supervisor.
        attach: says whose client this is.
        now: when it is heard of, in seconds of the client's clock.
    """

    def __init__(self, state: EngineState, context: Context, attach: Attach, now: float) -> None:
        self.number, self.place, self.device, self.pid = state.engine, state.place, state.device, state.pid
        self.max_streams, self._calls = state.max_streams, state.calls
        self.status: EngineStatus | None = None
        """Its latest report."""
        self.heard_at = now
        """When it last said anything."""
        self.begun = 0
        """Utterances that it was given since its latest report."""
        self.given_up = self.silent = False
        self._voices: OrderedDict[bytes, None] = OrderedDict()
        self.note(state)
        self._orders = Sender(context, state.orders)
        self.send([attach])

    def note(self, state: EngineState) -> None:
        """Take what the supervisor says of it."""
        self.opened, self.warm = state.opened, state.warm

    def count(self, reference: bytes | None) -> None:
        """It was given one utterance more, whose voice comes from this recording."""
        self.begun += 1
        if reference is not None:
            self._voices[reference] = None
            self._voices.move_to_end(reference)
            if len(self._voices) > WARM_VOICES:
                self._voices.popitem(last=False)

    def has_heard(self, reference: bytes | None) -> bool:
        """Whether it keeps a codec state that has heard this recording, as far as this client knows."""
        return reference in self._voices

    def send(self, orders: Sequence[Order]) -> None:
        """Give it these orders; lost where it is gone."""
        self._orders(pack_orders(orders))

    def forget(self) -> None:
        """The process is over: free the connection to it."""
        self._orders.close()

    @property
    def in_call(self) -> frozenset[int]:
        """Utterances of the call that it is in, or died in."""
        return last_call(self._calls)

    @property
    def able(self) -> bool:
        """It takes requests now."""
        return self.opened and not (self.silent or self.given_up)

    def __str__(self) -> str:
        return f"engine {self.place} on {self.device} (process {self.pid})"
