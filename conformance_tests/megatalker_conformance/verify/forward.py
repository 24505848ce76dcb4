"""Logits of a whole stream from one forward of the official modules, without the package's own decoding or sampling."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.official import load_official_model, quiet
from megatalker_conformance.official_prompts import OfficialPrompts
from megatalker_conformance.streams import Codes, StreamCase, TeacherForced
from megatalker_conformance.verify.modes import SpeakingMode

FRAMES_AT_ONCE = 64
"""Frames that the code predictor is run on together."""


class OfficialForward:
    """The official talker and code predictor, run once over all that a stream was fed and has said.

    Args:
        checkpoint: any variant.
        device: where it runs.
        dtype: what it computes in.

    Raises:
        CheckpointError: the official package cannot load the checkpoint.
    """

    def __init__(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        self._wrapper: Any = load_official_model(checkpoint, device, dtype)
        self._talker = self._wrapper.model.talker
        self._checkpoint, self._device, self._dtype = checkpoint, device, dtype

    @torch.inference_mode()
    def logits(self, case: StreamCase, codes: Sequence[Codes]) -> TeacherForced:
        """Return the logits before each of these frames and, of the talker, after the last one.

        Returns:
            ``talker [frames + 1, vocab]`` and ``predictor [frames, code groups - 1, vocab]``, on the CPU in float32.
        """
        talker = self._talker
        said = torch.tensor(codes, dtype=torch.int64, device=self._device).view(len(codes), -1)
        tables = (talker.get_input_embeddings(), *talker.code_predictor.get_input_embeddings())
        embedded = [table(column) for table, column in zip(tables, said.T, strict=False)]
        rows = [case.embeds.to(self._device, self._dtype)]
        if codes:
            text = torch.stack([case.text(frame) for frame in range(len(codes))]).to(self._device, self._dtype)
            rows.append(torch.stack(embedded, dim=1).sum(1) + text)
        hidden = talker.model(inputs_embeds=torch.cat(rows)[None], use_cache=False).last_hidden_state[0]
        hidden = hidden[len(case.embeds) - 1 :]
        first = talker.codec_head(hidden).float().cpu()
        if not codes:
            return TeacherForced(first, first.new_empty(0, len(tables) - 1, 0))
        fed = torch.stack([hidden[:-1], *embedded[:-1]], dim=1)
        parts = torch.split(fed, FRAMES_AT_ONCE)
        later = [talker.code_predictor.forward_finetune(inputs_embeds=part).logits for part in parts]
        return TeacherForced(first, torch.cat(later).float().cpu())

    def handed_over(self, text: str, mode: SpeakingMode) -> Mapping[str, Any]:
        """Return what the official package hands its talker's ``generate`` for a text: sampling values and barred ids
        among them.
        """
        generate = self._talker.generate
        prompts = OfficialPrompts(self._checkpoint, wrapper=self._wrapper)
        try:
            with quiet():
                return prompts(text, "upfront", mode.voice, instruct=mode.instruct, reference_text=mode.reference_text)
        finally:
            self._talker.generate = generate
