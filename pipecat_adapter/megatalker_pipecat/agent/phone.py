"""Telephone calls: the providers whose media streams the agent takes, and how it hangs up."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pipecat.runner.types import CallData
from pipecat.serializers.base_serializer import FrameSerializer
from pipecat.serializers.exotel import ExotelFrameSerializer
from pipecat.serializers.plivo import PlivoFrameSerializer
from pipecat.serializers.telnyx import TelnyxFrameSerializer
from pipecat.serializers.twilio import TwilioFrameSerializer

RATE = 8000
"""Sample rate of every provider's audio, in hertz."""


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider of telephone calls."""

    serializer: Callable[[CallData], FrameSerializer]
    """Makes a serializer for a call, which does not hang up when the conversation ends."""
    hang_up_keys: tuple[str, ...]
    """Variables of the environment with which Pipecat hangs up itself."""


PROVIDERS = {
    "twilio": Provider(
        lambda call: TwilioFrameSerializer(
            str(call.stream_id), call.call_id, params=TwilioFrameSerializer.InputParams(auto_hang_up=False)
        ),
        ("TWILIO_ACCOUNT_SID", "TWILIO_AUTH_TOKEN"),
    ),
    "telnyx": Provider(
        lambda call: TelnyxFrameSerializer(
            str(call.stream_id),
            call["outbound_encoding"],
            "PCMU",
            call.call_id,
            params=TelnyxFrameSerializer.InputParams(auto_hang_up=False),
        ),
        ("TELNYX_API_KEY",),
    ),
    "plivo": Provider(
        lambda call: PlivoFrameSerializer(
            str(call.stream_id), call.call_id, params=PlivoFrameSerializer.InputParams(auto_hang_up=False)
        ),
        ("PLIVO_AUTH_ID", "PLIVO_AUTH_TOKEN"),
    ),
    "exotel": Provider(lambda call: ExotelFrameSerializer(str(call.stream_id), call.call_id), ()),
}


def missing_keys(provider: str, environ: Mapping[str, str]) -> list[str]:
    """Variables that hanging up needs and the environment does not hold."""
    missing = [name for name in PROVIDERS[provider].hang_up_keys if not environ.get(name)]
    if missing == ["TWILIO_AUTH_TOKEN"] and environ.get("TWILIO_API_KEY") and environ.get("TWILIO_API_SECRET"):
        return []
    return missing
