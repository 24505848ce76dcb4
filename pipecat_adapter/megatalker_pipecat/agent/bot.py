"""Pipecat's runner calls ``bot`` for each client: a conversation over the client's transport."""

from pipecat.runner.types import RunnerArguments, WebSocketRunnerArguments

from megatalker_pipecat.agent import phone
from megatalker_pipecat.agent.conversation import Conversation
from megatalker_pipecat.agent.logs import log_less
from megatalker_pipecat.agent.realtime.connection import turn_away
from megatalker_pipecat.agent.realtime.door import is_realtime
from megatalker_pipecat.agent.realtime.session import AgentRealtimeSession
from megatalker_pipecat.agent.reception import Reception
from megatalker_pipecat.agent.transports import transport_for


async def bot(arguments: RunnerArguments) -> None:
    """Talk with one client until it leaves. ``arguments.cli_args.reception`` is the agent's :class:`Reception`."""
    options = arguments.cli_args
    assert options is not None, "the runner passes its command line on"
    if not options.verbose:
        log_less("INFO")
    reception: Reception = options.reception
    plan = reception.plan
    if is_realtime(arguments):
        assert isinstance(arguments, WebSocketRunnerArguments)
        if reception.count >= plan.engine.server.max_connections:
            await turn_away(arguments.websocket)
            return
        await AgentRealtimeSession(arguments.websocket, reception, arguments.pipeline_idle_timeout_secs).run()
        return
    transport, by_phone = await transport_for(arguments, listens=plan.stt is not None)
    conversation = Conversation(
        plan,
        transport.input(),
        transport.output(),
        reception.turns,
        rate=phone.RATE if by_phone else None,
        idle_timeout_s=arguments.pipeline_idle_timeout_secs,
    )

    await reception.page.attend(conversation.worker, conversation.speech, arguments.body)

    async def greet(_transport: object, _client: object) -> None:
        await conversation.greet()

    async def end(_transport: object, _client: object) -> None:
        await conversation.worker.cancel()

    transport.add_event_handler("on_client_connected", greet)
    transport.add_event_handler("on_client_disconnected", end)
    await reception.hold(conversation)
