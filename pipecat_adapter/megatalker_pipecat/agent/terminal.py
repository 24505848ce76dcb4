"""Talking to the agent without a browser: typed lines or this machine's microphone, into its loudspeaker or a file."""

import asyncio
import sys
from collections.abc import AsyncIterator
from io import FileIO, RawIOBase

from pipecat.frames.frames import EndFrame, ErrorFrame, LLMMessagesAppendFrame
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.aggregators.llm_response_universal import AssistantTurnStoppedMessage, UserTurnStoppedMessage

from megatalker.errors import MegatalkerError
from megatalker.serving.background import start_task, start_thread
from megatalker_pipecat.agent.conversation import Conversation
from megatalker_pipecat.agent.ends import Ends
from megatalker_pipecat.agent.logs import log_less
from megatalker_pipecat.agent.plan import Plan
from megatalker_pipecat.agent.turn_log import TurnLog
from megatalker_pipecat.agent.wav_output import WavOutput

STDIN = 0
QUIET_S = 60.0
"""Seconds without any event after which a turn is given up."""


class ConversationError(MegatalkerError):
    """A conversation on this machine went wrong."""


async def talk_here(plan: Plan, ends: Ends, typed: RawIOBase | None = None) -> None:
    """Hold one conversation on this machine: until it is interrupted, or, with nothing to hear, until ``typed`` ends.

    Args:
        plan: what the agent is made of.
        ends: from :func:`megatalker_pipecat.agent.ends.ends_here`.
        typed: by default standard input. On a terminal a new line interrupts the speech; otherwise each line waits for
            the answer to the one before.

    Raises:
        ConversationError: something failed, so that not everything was said.
        SettingsError: the turn log cannot be written.
    """
    log_less("CRITICAL")  # failures are reported once, at the end
    turns = TurnLog(plan.agent.turn_log)
    conversation = Conversation(plan, ends.source, ends.sink, turns)
    failures: list[str] = []
    _print_what_is_said(conversation, failures)
    running = asyncio.create_task(conversation.run(handle_sigint=True))
    await conversation.greet()
    typing = None
    if plan.stt is None:
        lines = typed or FileIO(STDIN, closefd=False)
        typing = start_task(_pass_on(conversation.worker, lines, failures), "megatalker-typing")
    await running
    if typing is not None:
        typing.cancel()
    for line in turns.close():
        print(line, file=sys.stderr)  # noqa: T201 - as below
    if isinstance(ends.sink, WavOutput):
        print(f"{ends.sink.path}: {ends.sink.seconds:.1f} s of speech", file=sys.stderr)  # noqa: T201 - as below
    if failures:
        raise ConversationError(f"not everything could be said: {failures[0]}")


def _print_what_is_said(conversation: Conversation, failures: list[str]) -> None:
    async def heard(_aggregator: object, _strategy: object, message: UserTurnStoppedMessage) -> None:
        if message.content:
            print(f"you: {message.content}", flush=True)  # noqa: T201 - a command's output

    async def said(_aggregator: object, message: AssistantTurnStoppedMessage) -> None:
        if message.content:
            cut = " ..." if message.interrupted else ""
            print(f"agent: {message.content}{cut}", flush=True)  # noqa: T201 - as above

    async def failed(_worker: object, frame: ErrorFrame) -> None:
        failures.append(f"{frame.processor}: {frame.error}")

    conversation.user.add_event_handler("on_user_turn_stopped", heard)
    conversation.assistant.add_event_handler("on_assistant_turn_stopped", said)
    conversation.worker.add_event_handler("on_pipeline_error", failed)


async def _pass_on(worker: PipelineWorker, typed: RawIOBase, failures: list[str]) -> None:
    interrupts = typed.isatty()
    try:
        async for line in _arriving(typed):
            if interrupts:
                await worker.rtvi.interrupt_bot()
            await worker.flush_pipeline(timeout=QUIET_S)
            await worker.queue_frame(LLMMessagesAppendFrame([{"role": "user", "content": line}], run_llm=True))
    except Exception as error:  # nothing more can be typed: the conversation ends, and says why
        failures.append(f"what is typed cannot be passed on ({type(error).__name__}: {error})")
    await worker.queue_frame(EndFrame())


async def _arriving(typed: RawIOBase) -> AsyncIterator[str]:
    """Lines as they are typed. Unbuffered input is read, because a thread that waits in buffered input blocks exit."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[str | BaseException | None] = asyncio.Queue()

    def read() -> None:
        for line in typed:
            if words := line.decode(errors="replace").strip():
                loop.call_soon_threadsafe(queue.put_nowait, words)
        loop.call_soon_threadsafe(queue.put_nowait, None)

    start_thread(read, "megatalker-stdin", lambda error: loop.call_soon_threadsafe(queue.put_nowait, error))
    while (line := await queue.get()) is not None:
        if isinstance(line, BaseException):
            raise line
        yield line
