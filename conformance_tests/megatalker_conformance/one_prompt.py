"""Building of one prompt at a time, where the engine plans and builds many."""

from collections.abc import Sequence
from typing import Any

import torch

from megatalker.checkpoint import Checkpoint
from megatalker.prompt import Prompt, PromptBuilder, PromptPlanner, PromptText


class OnePromptBuilder(PromptBuilder):
    """A builder that plans prompts, too."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(checkpoint, device, dtype)
        self._planner = PromptPlanner(checkpoint)

    def build(self, ids: Sequence[int], *, complete: bool = True, **request: Any) -> Prompt:
        """Plan a prompt by the arguments of :meth:`PromptPlanner.plan`, and build it."""
        (prompt,) = self.build_all([PromptText(ids, self._planner.plan(**request), complete)])
        return prompt
