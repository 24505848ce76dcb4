"""What Pipecat's runner starts for each client: a conversation over the client's transport."""

from pipecat.evals.transport import EvalTransportParams
from pipecat.runner.types import RunnerArguments
from pipecat.runner.utils import create_transport
from pipecat.serializers.protobuf import ProtobufFrameSerializer
from pipecat.transports.base_transport import TransportParams
from pipecat.transports.websocket.fastapi import FastAPIWebsocketParams

from megatalker_pipecat.agent.conversation import Conversation
from megatalker_pipecat.agent.logs import log_less
from megatalker_pipecat.agent.reception import Reception


async def bot(arguments: RunnerArguments) -> None:
    """Talk with one client until it leaves. ``arguments.cli_args.reception`` is the agent's :class:`Reception`."""
    options = arguments.cli_args
    assert options is not None, "the runner passes its command line on"
    if not options.verbose:
        log_less("INFO")
    reception: Reception = options.reception
    plan = reception.plan
    listens = plan.stt is not None
    transport = await create_transport(
        arguments,
        {
            "webrtc": lambda: TransportParams(audio_in_enabled=listens, audio_out_enabled=True),
            "websocket": lambda: FastAPIWebsocketParams(
                audio_in_enabled=listens, audio_out_enabled=True, serializer=ProtobufFrameSerializer()
            ),
            "eval": lambda: EvalTransportParams(audio_in_enabled=listens, audio_out_enabled=True),
        },
    )
    conversation = Conversation(
        plan,
        transport.input(),
        transport.output(),
        reception.turns,
        idle_timeout_s=arguments.pipeline_idle_timeout_secs,
    )

    async def greet(_transport: object, _client: object) -> None:
        await conversation.greet()

    async def end(_transport: object, _client: object) -> None:
        await conversation.worker.cancel()

    transport.add_event_handler("on_client_connected", greet)
    transport.add_event_handler("on_client_disconnected", end)
    await reception.hold(conversation)
