"""State that the worker in charge owns, and hands to its successor when it is replaced.

Ownership: everything here belongs to the worker of the current *generation*, which touches it between backend calls
only. During a backend call the watchdog may declare the call hung: the abandoned thread learns of it when its call
returns at last (:class:`megatalker.engine.guarded_calls.Superseded`), and touches nothing any more. Callers talk to the
worker through the :class:`megatalker.engine.commands.CommandQueue`, the worker to consumers through chunk queues.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from megatalker.engine.backend_role import BackendRole
from megatalker.engine.commands import Lend
from megatalker.engine.costs import Budget, Costs, Throughput
from megatalker.engine.decoder_stream import DecoderStream
from megatalker.engine.utterance import Utterance
from megatalker.errors import MegatalkerError
from megatalker.interfaces import Frame, StreamHandle
from megatalker.plugins.checked import CheckedCodec, CheckedTalker


@dataclass(slots=True)
class Counters:
    """See :class:`megatalker.engine.speech.outputs.EngineMetrics`."""

    frames: int = 0
    chunks: int = 0
    switches: int = 0
    cancelled: int = 0
    errors: int = 0
    ticks: int = 0
    host_s: float = 0.0
    backend_s: float = 0.0
    begun: int = 0
    queue_wait_s: float = 0.0
    decode_calls: int = 0
    decode_rows: int = 0
    lent: int = 0
    repeated: int = 0
    incomplete: int = 0


@dataclass(frozen=True, slots=True)
class StepInProgress:
    """A frame of some streams that the talker was asked for, and that nobody has taken."""

    shares: Sequence[tuple[Utterance, DecoderStream]]
    finish: Callable[[], list[Frame]]


@dataclass(slots=True)
class TalkerWork:
    """Things that the talker stage remembers between ticks."""

    to_release: list[StreamHandle] = field(default_factory=list)
    """Streams of the loaded talker that nobody needs any more."""
    step: StepInProgress | None = None
    """To be taken before the loaded talker is asked anything else."""
    row_limit: int | None = None
    """Streams the loaded talker turned out to hold, where that is less than it promised."""


@dataclass(eq=False)
class WorkerState:
    """See the module."""

    talker: BackendRole[CheckedTalker]
    codec: BackendRole[CheckedCodec]
    clock: Callable[[], float]
    utterances: list[Utterance] = field(default_factory=list)
    """Unfinished, oldest first."""
    unread: dict[Utterance, None] = field(default_factory=dict)
    """Those with text that was fed and not read, in the order in which they get a turn."""
    talker_work: TalkerWork = field(default_factory=TalkerWork)
    served: dict[str, int] = field(default_factory=dict)
    """Owners by when each got a row last."""
    costs: Costs = field(default_factory=Costs)
    throughput: Throughput = field(init=False)
    budget: Budget = field(default_factory=Budget)
    counters: Counters = field(default_factory=Counters)
    opened: "Future[None]" = field(default_factory=Future)
    """Done when both roles are filled for the first time; carries the error when that fails."""
    warmups: "list[Future[None]]" = field(default_factory=list)
    """Callers that wait until both backends are warm."""
    loans: list[Lend] = field(default_factory=list)
    """Callers that wait for the backends themselves."""
    failure: MegatalkerError | None = None
    """No backend is left: every request fails with this."""

    def __post_init__(self) -> None:
        self.throughput = Throughput(self.costs)

    def update_all(self) -> None:
        """Bring what the scheduler sees of all utterances up to date."""
        now = self.clock()
        for utterance in self.utterances:
            utterance.update(now)
