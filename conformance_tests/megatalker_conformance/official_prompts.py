"""Prompts that the official package hands its talker: ours must equal them bit for bit."""

from collections.abc import Mapping
from typing import Any

import torch

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.official import load_official_model, load_qwen_tts
from megatalker.prompt import Layout, Prompt
from megatalker.voices import Voice

HandedOver = Mapping[str, Any]
"""All arguments of the talker's ``generate``, by name."""


class _Captured(Exception):  # noqa: N818 - ends the official call early; nothing went wrong
    pass


class OfficialPrompts:
    """The official model of one checkpoint, on the CPU, whose talker hands over its arguments instead of generating.

    Args:
        checkpoint: any variant.
        dtype: what its rows are computed in.
        wrapper: the official model, where it is loaded already.

    Raises:
        CheckpointError: the official package cannot load the checkpoint.
    """

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype = torch.float32, wrapper: Any = None) -> None:
        self.wrapper: Any = wrapper or load_official_model(checkpoint, torch.device("cpu"), dtype)
        self.wrapper.model.talker.generate = _capture

    def __call__(
        self,
        text: str,
        layout: Layout,
        voice: Voice,
        *,
        language: str = "auto",
        instruct: str | None = None,
        reference_text: str | None = None,
    ) -> HandedOver:
        """Return what the talker would generate ``text`` from.

        Args:
            text: as the official package is given it.
            layout: see :mod:`megatalker.prompt.builder`.
            voice: of the kind that the checkpoint speaks with.
            language: in any case.
            instruct: for named speakers.
            reference_text: what is said in the recording of an in-context voice.
        """
        method, arguments = _call(voice, instruct, reference_text)
        speak = getattr(self.wrapper, method)
        try:
            speak(text=text, language=language, non_streaming_mode=layout == "upfront", **arguments)
        except _Captured as caught:
            handed: HandedOver = caught.args[0]
            return handed
        raise AssertionError(f"the official {method} did not call its talker's generate()")


def same_prompt(prompt: Prompt, official: HandedOver) -> bool:
    """Whether all rows are equal to the last bit."""
    ours = {"inputs_embeds": prompt.embeds, "trailing_text_hidden": prompt.trailing, "tts_pad_embed": prompt.pad[None]}
    return all(torch.equal(rows, official[name][0]) for name, rows in ours.items())


def _capture(**arguments: Any) -> None:
    raise _Captured(arguments)


def _call(voice: Voice, instruct: str | None, reference_text: str | None) -> tuple[str, dict[str, Any]]:
    if voice.speaker is not None:
        return "generate_custom_voice", {"speaker": voice.speaker, "instruct": instruct}
    if voice.description is not None:
        return "generate_voice_design", {"instruct": voice.description}
    item = load_qwen_tts().VoiceClonePromptItem(
        ref_code=voice.reference_codes,
        ref_spk_embedding=voice.x_vector,
        x_vector_only_mode=not voice.in_context,
        icl_mode=voice.in_context,
        ref_text=reference_text if voice.in_context else None,
    )
    return "generate_voice_clone", {"voice_clone_prompt": [item]}
