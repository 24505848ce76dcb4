"""The oracle: ``reference`` in float32, asked once per case and kept on disk for all backends and later runs."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from megatalker.checkpoint import Checkpoint
from megatalker.plugins import BackendRegistry
from megatalker.plugins.checked import CheckedTalker, load_talker
from megatalker.settings import Settings
from megatalker_conformance.kept import Kept
from megatalker_conformance.loading import load_context
from megatalker_conformance.streams import Codes, StreamCase, SuiteStreams, TeacherForced

ORACLE = "reference"


@dataclass(frozen=True)
class Followed:
    """Results of the oracle along given steps."""

    codes: list[Codes | None]
    """Codes of each step; ``None``, always the last one, where the stream ended."""
    logits: TeacherForced
    """Raw logits of the same steps."""


class Oracle:
    """The official modules, whose codes and logits are the reference.

    Args:
        registry: where ``reference`` is registered.
        checkpoint: shared with the backends under test.
        device: as theirs.
    """

    def __init__(self, registry: BackendRegistry, checkpoint: Checkpoint, device: torch.device) -> None:
        self._registry = registry
        self._checkpoint = checkpoint
        self._device = device
        self._streams: dict[torch.dtype, SuiteStreams] = {}
        self._said: dict[str, tuple[list[Codes], int]] = {}
        self._followed: dict[tuple[str, tuple[Codes | None, ...], torch.dtype], Followed] = {}

    def codes(self, case: StreamCase, frames: int) -> list[Codes]:
        """The first ``frames`` frames, fewer when the case ends before."""
        codes, asked = self._said.get(case.content, ([], 0))
        if asked < frames:

            def say() -> dict[str, torch.Tensor]:
                said = self._in(torch.float32).say(case, frames)
                return {"codes": torch.tensor(said), "asked": torch.tensor(frames)}

            kept = self._kept.get(("codes", case.content), say, lambda kept: int(kept["asked"]) >= frames)
            codes, asked = [tuple(frame) for frame in kept["codes"].tolist()], int(kept["asked"])
            self._said[case.content] = (codes, asked)
        return codes[:frames]

    def logits(self, case: StreamCase, codes: Sequence[Codes], dtype: torch.dtype = torch.float32) -> TeacherForced:
        """Return raw logits along ``codes``. In a 16-bit ``dtype`` their error is the yardstick for backends."""
        return self.follow(case, codes, dtype).logits

    def follow(self, case: StreamCase, forced: Sequence[Codes | None], dtype: torch.dtype = torch.float32) -> Followed:
        """Codes and raw logits of these steps, ``None`` being a free one, until the stream ends."""
        key = (case.content, tuple(forced), dtype)
        if key not in self._followed:

            def follow() -> dict[str, torch.Tensor]:
                frames = self._in(dtype).follow(case, forced)
                logits = TeacherForced.from_frames(frames)
                codes = torch.tensor([frame.codes for frame in frames if frame.codes is not None])
                return {"codes": codes, "talker": logits.talker, "predictor": logits.predictor}

            kept = self._kept.get(("follow", *key), follow)
            codes: list[Codes | None] = [tuple(frame) for frame in kept["codes"].tolist()]
            codes += [None] * (len(kept["talker"]) - len(codes))
            self._followed[key] = Followed(codes, TeacherForced(kept["talker"], kept["predictor"]))
        return self._followed[key]

    @cached_property
    def _kept(self) -> Kept:
        code = Path(inspect.getfile(self._registry.talker(ORACLE).load)).parent
        return Kept.open(self._checkpoint, self._device, code)

    def _in(self, dtype: torch.dtype) -> SuiteStreams:
        if dtype not in self._streams:
            spec = self._registry.choose_talker(ORACLE, self._checkpoint, self._device, Settings.read())
            decoder = load_talker(spec, self._checkpoint, load_context(spec, self._device, dtype))
            self._streams[dtype] = SuiteStreams(decoder)
        return self._streams[dtype]

    def close(self) -> None:
        """Free everything that is loaded."""
        for streams in self._streams.values():
            streams.decoder.close()


class OwnOracle(Oracle):
    """An instance of a backend with rounded weights, which says everything alone: what other streams must say, too.

    Equal inputs are not always equal bits to it. A last bit more or less, as between a prompt's row and a decoded one,
    makes a value round to the next number, and from there on all is rounded anew. So its error against the official
    modules is how far two of its runs may be apart.

    Args:
        decoder: an instance that nobody else uses.
        official: what its errors are measured against.
    """

    def __init__(self, decoder: CheckedTalker, official: Oracle) -> None:
        self._streams = {torch.float32: SuiteStreams(decoder)}
        self._said, self._followed = {}, {}
        self._official, self._forgetful = official, _Forgetful()

    def follow(self, case: StreamCase, forced: Sequence[Codes | None], dtype: torch.dtype = torch.float32) -> Followed:
        """Codes and raw logits of these steps; in a 16-bit ``dtype`` the official ones, which are the yardstick."""
        return super().follow(case, forced) if dtype == torch.float32 else self._official.follow(case, forced)

    @property
    def _kept(self) -> Kept:
        return self._forgetful


class _Forgetful(Kept):
    """Computes everything and keeps nothing: on disk, results would outlive changes of the backend."""

    def get(
        self,
        inputs: object,
        make: Callable[[], Mapping[str, torch.Tensor]],
        enough: Callable[[dict[str, torch.Tensor]], bool] = lambda _: True,
    ) -> dict[str, torch.Tensor]:
        return dict(make())
