"""Codes straight from the official ``generate()``, which ``reference`` and everybody else is held to."""

from functools import cached_property
from typing import Any

import torch

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.official import load_official_model, quiet
from megatalker_conformance.cases import LANGUAGE, Layout, conformance_voice
from megatalker_conformance.kept import Kept, content
from megatalker_conformance.streams import Codes


class Official:
    """The official model of a checkpoint, in float32, greedy, asked once per sentence and kept on disk.

    Args:
        checkpoint: any variant.
        device: where it runs.
    """

    def __init__(self, checkpoint: Checkpoint, device: torch.device) -> None:
        self._checkpoint = checkpoint
        self._device = device

    def codes(self, text: str, layout: Layout, frames: int) -> list[Codes]:
        """The first ``frames`` frames of ``text``, said by the voice all conformance tests use."""
        voice = conformance_voice(self._checkpoint)
        speaker = voice.speaker if voice.x_vector is None else content(voice.x_vector)
        key = ("generate", text, layout, frames, LANGUAGE, speaker)
        said = self._kept.get(key, lambda: {"codes": self._generate(text, layout, frames)})["codes"]
        return [tuple(frame) for frame in said.tolist()]

    @cached_property
    def _kept(self) -> Kept:
        return Kept.open(self._checkpoint, self._device)

    @cached_property
    def _wrapper(self) -> Any:
        return load_official_model(self._checkpoint, self._device, torch.float32)

    def _generate(self, text: str, layout: Layout, frames: int) -> torch.Tensor:
        wrapper = self._wrapper
        with quiet():
            found, _ = wrapper.model.generate(
                input_ids=wrapper._tokenize_texts([wrapper._build_assistant_text(text)]),
                languages=[LANGUAGE],
                non_streaming_mode=layout == "upfront",
                max_new_tokens=frames + 1,  # the last one is end-of-speech, or begins a frame that is never finished
                do_sample=False,
                subtalker_dosample=False,
                **self._voice(),
            )
        said: torch.Tensor = found[0][:frames].to("cpu", torch.int64)
        return said

    def _voice(self) -> dict[str, Any]:
        voice = conformance_voice(self._checkpoint)
        if voice.speaker is not None:
            return {"speakers": [voice.speaker]}
        if voice.x_vector is None:
            return {}
        return {
            "ref_ids": [None],
            "voice_clone_prompt": {
                "ref_code": [None],
                "ref_spk_embedding": [voice.x_vector.to(self._device)],
                "x_vector_only_mode": [True],
                "icl_mode": [False],
            },
        }
