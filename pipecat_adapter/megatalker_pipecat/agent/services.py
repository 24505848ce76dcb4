"""Pipecat services for a plan; new ones for each conversation."""

from typing import Any

from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.services.openai.stt import OpenAISTTService
from pipecat.services.stt_service import STTService
from pipecat.transcriptions.language import Language

from megatalker_pipecat.agent.parrot import Parrot
from megatalker_pipecat.agent.plan import Endpoint, Plan


def hearing(plan: Plan) -> STTService | None:
    """The service that turns speech into text; ``None`` when the plan does not listen."""
    endpoint = plan.stt
    if endpoint is None:
        return None
    language = plan.agent.stt.language
    if endpoint.provider == "deepgram":
        return _deepgram(endpoint, language)
    settings = OpenAISTTService.Settings(**_given(model=endpoint.model, language=language))
    return OpenAISTTService(api_key=endpoint.key, base_url=endpoint.url, settings=settings)


def answering(plan: Plan) -> FrameProcessor:
    """Return the processor that answers: the language model, or a parrot when there is none."""
    endpoint = plan.llm
    if endpoint is None:
        return Parrot()
    settings = OpenAILLMService.Settings(**_given(model=endpoint.model, system_instruction=plan.agent.prompt))
    return OpenAILLMService(api_key=endpoint.key, base_url=endpoint.url, settings=settings)


def _deepgram(endpoint: Endpoint, language: Language | None) -> STTService:
    from pipecat.services.deepgram.stt import DeepgramSTTService

    settings = DeepgramSTTService.Settings(**_given(model=endpoint.model, language=language))
    return DeepgramSTTService(api_key=endpoint.key, settings=settings)


def _given(**given: Any) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}
