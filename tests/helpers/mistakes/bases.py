"""Talker decoders with one place for a mistake, which their children in the tables fill."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from megatalker.interfaces import DecodeStep, Frame, StreamHandle, StreamRequest
from mistakes.catalogue import Decoder


class Requesting(Decoder):
    """Changes requests."""

    def sampling(self, request: StreamRequest) -> dict[str, Any]:
        """Return changes of the request's sampling."""
        return {}

    def embeds(self, rows: Tensor) -> Tensor:
        """Return the prompt that is run instead."""
        return rows

    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        return super().prefill(
            [
                replace(
                    request,
                    embeds=self.embeds(request.embeds),
                    sampling=replace(request.sampling, **self.sampling(request)),
                )
                for request in requests
            ]
        )


class Stepping(Decoder):
    """Changes the text rows of steps."""

    def text(self, step: DecodeStep) -> Tensor:
        raise NotImplementedError

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> Callable[[], list[Frame]]:
        changed = [replace(step, text=self.text(step)) for step in steps]
        return super().decode(changed, return_logits=return_logits)
