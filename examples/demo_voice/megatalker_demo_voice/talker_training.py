"""Trains the talker and its code predictor on both prompt layouts, by the clock."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from megatalker.checkpoint.config import ModelConfig
from megatalker_demo_voice.capture import Repeated
from megatalker_demo_voice.clock import Every, TrainingClock, cosine
from megatalker_demo_voice.flat import FlatParameters
from megatalker_demo_voice.listener import SpeakerListener
from megatalker_demo_voice.stored import Stored
from megatalker_demo_voice.talker_data import IGNORED, Buckets, TalkerBatch, TalkerData, TrainingLayout
from megatalker_demo_voice.talker_model import NO_CODE, TalkerRows, TrainableTalker

_LOWEST_SHARE, _WARM_UP = 0.03, 300
_DECAY, _LARGEST_NORM = 0.02, 1.0
_SHORT_ROWS, _SHORT_UNTIL = 64, 0.1
_DAMAGED_UNTIL = 0.6
_ROUNDED_FROM = 0.6
"""When a talker that is shipped as a difference begins to compute with what will be left of it."""
_PREDICTED = 0.125
"""Share of the frames that the code predictor learns from: it learns sooner than the talker."""
_AGREE_EVERY = 25
"""Steps between looks at the clock: all processes of one talker must stop at the same step."""


@dataclass(frozen=True, slots=True)
class TalkerPlan:
    """How to train."""

    config: ModelConfig
    seconds: float
    rows: int
    """Rows of a batch, in each process."""
    highest_rate: float
    damage: float
    """Share of frames whose codes are hidden or wrong at first, so that text is all there is to go by."""
    kept_damage: float
    """The share that remains until the end: what is sampled is not always right either."""
    seed: int
    state: Path
    save_every: float
    capture: bool
    """Record steps as CUDA graphs."""
    hasten: bool = False
    """Compile and compute in bfloat16, on CPUs, too."""


class TalkerTrainer:
    """One run, in one process or in one of a group that trains the same talker."""

    def __init__(
        self,
        plan: TalkerPlan,
        data: TalkerData,
        layout: TrainingLayout,
        device: torch.device,
        log: Callable[[str], None],
        group: "dist.ProcessGroup | None" = None,
        start: Mapping[str, Tensor] | None = None,
        listener: SpeakerListener | None = None,
    ) -> None:
        """``start``: weights to begin with, and to differ from; ``listener``: encodes the speaker."""
        torch.manual_seed(plan.seed)
        self.talker, self.listener = TrainableTalker(plan.config).to(device), listener
        if start is not None:
            self.talker.load_state_dict(start)
        self._learners = nn.ModuleList([self.talker] if listener is None else [self.talker, listener])
        self._flat = FlatParameters(self._learners)
        matrices = self._flat.matrices.data[: sum(part.numel() for part in self.talker.parameters() if part.ndim > 1)]
        self._stored = None if start is None else Stored([matrices], [matrices.clone()])
        rank = dist.get_rank(group) if group is not None else 0
        torch.manual_seed(plan.seed + 1 + rank)
        self._plan, self._data, self._layout, self._device, self._log = plan, data, layout, device, log
        self._group, self._leads = group, rank == 0
        self._buckets = {
            upfront: Buckets(layout.lengths(data, upfront=upfront), plan.rows) for upfront in (False, True)
        }
        self._optimizer = torch.optim.AdamW(
            [
                {"params": [self._flat.matrices], "weight_decay": _DECAY},
                {"params": [self._flat.vectors], "weight_decay": 0.0},
            ],
            lr=plan.highest_rate,
            betas=(0.9, 0.98),
            fused=device.type == "cuda",
        )
        self._damage = torch.zeros((), device=device)
        self._work: dict[tuple[bool, int], Repeated] = {}
        self._pool = torch.cuda.graph_pool_handle() if plan.capture else None
        self._order = random.Random(plan.seed)
        self._step, self._rows_seen = 0, 0
        self._clock, self._share = TrainingClock(plan.seconds), 0.0
        self._in_bfloat16 = device.type == "cuda" or plan.hasten
        if plan.hasten:
            self.talker.hasten()

    def run(self, watch: Callable[[float], None]) -> None:
        """Train until the time is up. ``watch`` is called now and then with the share of time gone, at last with 1."""
        self._resume()
        saving, telling = Every(self._plan.save_every), Every(max(2.0, self._plan.seconds / 25))
        seen: Tensor | None = None
        while True:
            if self._step % _AGREE_EVERY == 0 and self._agreed_share() >= 1:
                break
            seen = self._one_step()
            if self._leads and self._step % _AGREE_EVERY == 0:
                if telling.due():
                    self._tell(seen)
                if saving.due():
                    self._save()
                    watch(self._share)
        self._work.clear()  # its steps refer to this trainer, which would hold its group beyond its last user
        if self._leads:
            if seen is not None:
                self._tell(seen)
            self._save()
            if self._stored is not None:
                self._stored.begin()  # however short the run was, what is watched at last is what is stored
            watch(1.0)

    # ----------------------------------------------------------------------------------------------------------- steps

    def _agreed_share(self) -> float:
        share = torch.tensor(self._clock.share, device=self._device)
        if self._group is not None:
            dist.broadcast(share, dist.get_global_rank(self._group, 0), group=self._group)
        self._share = float(share)
        left = max(0.0, 1 - self._share / _DAMAGED_UNTIL)
        self._damage.fill_(self._plan.kept_damage + (self._plan.damage - self._plan.kept_damage) * left)
        return self._share

    def _one_step(self) -> Tensor:
        highest = self._plan.highest_rate
        for group in self._optimizer.param_groups:
            group["lr"] = cosine(self._share, highest, highest * _LOWEST_SHARE, self._step, _WARM_UP)
        upfront, length = self._next_shape()
        if self._stored is not None and self._share >= _ROUNDED_FROM:
            self._stored.begin()
        losses = self._repeated(upfront, length)()
        if self._group is not None:
            for gradient in self._flat.gradients:
                dist.all_reduce(gradient, group=self._group)
                gradient.div_(dist.get_world_size(self._group))
        self._flat.clip(_LARGEST_NORM)
        if self._stored is not None:
            self._stored.release()
        self._optimizer.step()
        if self._stored is not None:
            self._stored.impose()
        self._step += 1
        self._rows_seen += self._buckets[upfront].size(length) * length
        return losses

    def _next_shape(self) -> tuple[bool, int]:
        """Layout and rows of the next batch: short ones first, then each as often as its share of all rows."""
        upfront = self._order.random() < 0.5
        buckets = self._buckets[upfront]
        lengths = buckets.lengths
        if self._share < _SHORT_UNTIL:
            lengths = tuple(length for length in lengths if length <= _SHORT_ROWS) or lengths[:1]
        return upfront, self._order.choices(lengths, [buckets.weight(length) for length in lengths])[0]

    def _repeated(self, upfront: bool, length: int) -> Repeated:
        if (upfront, length) not in self._work:
            self._work[upfront, length] = Repeated(
                lambda: self._losses_and_gradients(upfront, length), self._device, self._pool
            )
        return self._work[upfront, length]

    def _losses_and_gradients(self, upfront: bool, length: int) -> Tensor:
        chosen = self._buckets[upfront].draw(length)
        tagged = torch.randint(2, (len(chosen),), device=self._device)
        batch = self._layout.batch(self._data, chosen, tagged, length, upfront=upfront)
        self._flat.zero()
        rows, asked = damaged(batch.rows, self._damage), torch.zeros((), device=self._device)
        # without the cache: a recorded graph must not hold on to weights converted before
        with torch.autocast(self._device.type, torch.bfloat16, self._in_bfloat16, cache_enabled=False):
            if self.listener is not None:
                x_vectors, asked = self.listener(self._data.voices[chosen])
                rows = replace(rows, x_vectors=x_vectors)
            first, rest = losses(self.talker, batch, rows, _PREDICTED)
        torch.autograd.backward(first + rest.mean() + asked)
        return torch.cat([first.detach().unsqueeze(0), rest.detach()])

    # --------------------------------------------------------------------------------------------------------- records

    def _tell(self, seen: Tensor) -> None:
        first, *rest = seen.tolist()
        if not all(value == value for value in (first, *rest)):
            raise FloatingPointError(f"training diverged at step {self._step}; use a lower learning rate")
        seconds = max(1e-3, self._clock.elapsed)
        self._log(
            f"{seconds:6.1f} s step {self._step} rows {self._rows_seen / 1e6:.2f} M "
            f"code 0 {first:.3f} others {' '.join(f'{value:.2f}' for value in rest)}"
        )

    def _save(self) -> None:
        if self._stored is not None:
            self._stored.release()
        state = {
            "elapsed": self._clock.elapsed,
            "step": self._step,
            "rows": self._rows_seen,
            "learners": self._learners.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }
        partial = self._plan.state.with_suffix(".partial")
        torch.save(state, partial)
        partial.rename(self._plan.state)
        if self._stored is not None:
            self._stored.impose()

    def _resume(self) -> None:
        if not self._plan.state.is_file():
            return
        state = torch.load(self._plan.state, map_location=self._device, weights_only=True)
        self._learners.load_state_dict(state["learners"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._step, self._rows_seen = state["step"], state["rows"]
        self._clock.restart_after_preparation(state["elapsed"])
        self._log(f"continued at {state['elapsed']:.0f} s, step {self._step}")


def damaged(rows: TalkerRows, share: Tensor) -> TalkerRows:
    """Hide the codes of half of ``share`` of all frames, and replace those of the other half by another frame's."""
    codes = rows.codes
    spoken = codes[..., 1:2] != NO_CODE
    draw = torch.rand(codes.shape[:2], device=codes.device)[..., None]
    flat = codes.flatten(0, 1)
    other = flat[torch.randint(len(flat), codes.shape[:2], device=codes.device)]
    other_spoken = other[..., 1:2] != NO_CODE
    hidden = torch.where(spoken & (draw < share / 2), NO_CODE, codes)
    wrong = spoken & other_spoken & (draw >= share / 2) & (draw < share)
    return replace(rows, codes=torch.where(wrong, other, hidden))


def losses(talker: TrainableTalker, batch: TalkerBatch, rows: TalkerRows, share: float) -> tuple[Tensor, Tensor]:
    """Cross entropy of code 0 (a scalar) and of the other codes (``[groups - 1]``), these on ``share`` of the rows."""
    hidden = talker.hidden(rows)
    first = F.cross_entropy(
        talker.first_logits(hidden).flatten(0, 1), batch.first.flatten(), ignore_index=IGNORED, reduction="mean"
    )
    speaks = batch.speaks.flatten()
    count = max(1, round(len(speaks) * share))
    index = (torch.rand(len(speaks), device=speaks.device) * speaks).topk(count).indices
    frames = batch.frames.flatten(0, 1)[index]
    wanted = torch.where(speaks[index, None], frames[:, 1:], IGNORED)
    logits = talker.rest_logits(hidden.flatten(0, 1)[index], frames)
    rest = F.cross_entropy(logits.transpose(1, 2), wanted, ignore_index=IGNORED, reduction="none")
    return first, rest.sum(0) / speaks[index].sum().clamp(min=1)
