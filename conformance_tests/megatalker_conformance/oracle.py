"""The oracle: ``reference`` in float32, asked once per utterance and remembered for all backends of the run."""

from collections.abc import Sequence

import torch

from megatalker.checkpoint import Checkpoint
from megatalker.plugins import BackendRegistry
from megatalker.plugins.checked import load_talker
from megatalker.sampling import SamplingParams
from megatalker.settings import Settings
from megatalker_conformance.loading import load_context
from megatalker_conformance.speech import Codes, Streams, TeacherForced, Utterance

ORACLE = "reference"


class Oracle:
    """What the official modules say and compute.

    Args:
        registry: where ``reference`` is registered.
        checkpoint: shared with the backends under test.
        device: as theirs.
    """

    def __init__(self, registry: BackendRegistry, checkpoint: Checkpoint, device: torch.device) -> None:
        self._registry = registry
        self._checkpoint = checkpoint
        self._device = device
        self._streams: dict[torch.dtype, Streams] = {}
        self._said: dict[tuple[str, SamplingParams], tuple[list[Codes], int]] = {}
        self._forced: dict[tuple[str, tuple[Codes, ...], torch.dtype], TeacherForced] = {}

    def codes(self, utterance: Utterance, frames: int) -> list[Codes]:
        """The first ``frames`` frames, fewer when the utterance ends before."""
        key = (utterance.name, utterance.sampling)
        codes, asked = self._said.get(key, ([], 0))
        if asked < frames:
            codes, asked = self._in(torch.float32).say(utterance, frames), frames
            self._said[key] = (codes, asked)
        return codes[:frames]

    def logits(self, utterance: Utterance, codes: Sequence[Codes], dtype: torch.dtype = torch.float32) -> TeacherForced:
        """Raw logits along ``codes``; in a 16-bit ``dtype``, those whose error is the yardstick."""
        key = (utterance.name, tuple(codes), dtype)
        if key not in self._forced:
            self._forced[key] = self._in(dtype).force(utterance, codes)
        return self._forced[key]

    def _in(self, dtype: torch.dtype) -> Streams:
        if dtype not in self._streams:
            spec = self._registry.choose_talker(ORACLE, self._checkpoint, self._device, Settings.read())
            decoder = load_talker(spec, self._checkpoint, load_context(spec, self._device, dtype))
            self._streams[dtype] = Streams(decoder)
        return self._streams[dtype]

    def close(self) -> None:
        """Free what was loaded."""
        for streams in self._streams.values():
            streams.decoder.close()
