"""Trains the codec: first without codes, then with codes, at last the decoder alone on the codes that are shipped."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from megatalker.checkpoint.difference import is_coarse
from megatalker.testing.recipe import CheckpointRecipe
from megatalker_demo_voice.clock import Every, TrainingClock, cosine
from megatalker_demo_voice.codec_data import CodecData
from megatalker_demo_voice.codec_export import round_to_stored
from megatalker_demo_voice.codec_model import Coded, TrainableCodec
from megatalker_demo_voice.stored import Stored

_LOWEST_RATE, _WARM_UP = 3e-5, 100
_GENTLER = 0.5
"""Share of the learning rate once there are codes: the codebooks must keep up with the encoder."""
_NOISE, _DROPOUT, _COMMITMENT, _PHONEMES = 0.1, 0.4, 0.25, 0.15
_CONTINUOUS_UNTIL, _QUANTISED_UNTIL = 0.3, 0.85
_FIT_BATCHES = 12
_TIMED = range(30, 50)
"""Steps whose time tells how many there will be."""
_FEWEST_CLIPS = 4


@dataclass(frozen=True, slots=True)
class CodecPlan:
    """How to train."""

    recipe: CheckpointRecipe
    sizes: Sequence[int]
    seconds: float
    clips: int
    frames: int
    highest_rate: float
    least_steps: int
    """Take fewer clips a batch where the time is too short for these steps otherwise."""
    seed: int
    state: Path
    """Where an interrupted run continues from."""
    save_every: float = 60.0
    hasten: bool = False
    """Train in bfloat16."""


class CodecTrainer:
    """One run. ``log`` receives lines of text."""

    def __init__(
        self, plan: CodecPlan, data: CodecData, loss: nn.Module, device: torch.device, log: Callable[[str], None]
    ) -> None:
        torch.manual_seed(plan.seed)
        self._plan, self._data, self._log, self._device = plan, data, log, device
        self.codec = TrainableCodec(plan.recipe, plan.sizes).place(device)
        self._loss = loss
        # code 0 shall say which phoneme it is: that is what text can predict
        self._listener = nn.Sequential(
            nn.Linear(plan.recipe.codec.codebook_dim // 2, 128), nn.GELU(), nn.Linear(128, data.phonemes.shape[1])
        ).to(device)
        self._trained = [*self.codec.official.parameters(), *self._listener.parameters()]
        fused = device.type == "cuda"
        self._optimizer = torch.optim.AdamW(
            self._trained, lr=plan.highest_rate, betas=(0.8, 0.99), weight_decay=1e-3, fused=fused
        )
        self._step, self._stage = 0, "continuous"
        self._clock = TrainingClock(plan.seconds)
        self._seen: dict[str, Tensor] = {}
        self._timed_from = 0.0
        self._clips = plan.clips
        self._stored: Stored | None = None

    def run(self) -> None:
        """Train until the time is up; the codec is then rounded as it is shipped."""
        self._resume()
        if self._plan.hasten:
            self.codec.hasten()
        saving, telling = Every(self._plan.save_every), Every(max(2.0, self._plan.seconds / 30))
        torch.backends.cudnn.benchmark = True  # pays while shapes stay the same
        while (share := self._clock.share) < 1:
            self._advance_stage(share)
            self._one_step(share)
            self._fit_batch_to_time()
            if telling.due():
                self._tell()
            if saving.due():
                self._save()
        torch.backends.cudnn.benchmark = False
        self._advance_stage(1.0)
        self._tell()
        self.codec.settle()
        round_to_stored(self.codec)
        self._save()

    def continue_from(self, codec: TrainableCodec) -> None:
        """Take another codec's weights, not its codebooks, and begin with fitting new ones."""
        self.codec.official.load_state_dict(codec.official.state_dict())
        self.fit_codebooks()
        self._stage = "quantised"

    def start_from(self, codec: TrainableCodec) -> None:
        """Go on with a finished codec, codes and all, for other speech; what it becomes is stored as a difference."""
        self.codec.load_state_dict(codec.state_dict())
        for quantiser in (self.codec.first, self.codec.rest):
            quantiser.resume(self._plan.clips * self._plan.frames)
        self._stage = "quantised"
        coarse = [part.data for part in self.codec.official.parameters() if is_coarse(part)]
        self._stored = Stored(coarse, [tensor.clone() for tensor in coarse])

    def refine(self, codec: TrainableCodec) -> None:
        """Go on with the decoder of a finished codec; its codes stay what they are."""
        self.codec.load_state_dict(codec.state_dict())
        self._stage = "decoder"

    # ----------------------------------------------------------------------------------------------------------- steps

    def _advance_stage(self, share: float) -> None:
        if self._stage == "continuous" and share >= _CONTINUOUS_UNTIL:
            self.fit_codebooks()
            self._stage = "quantised"
        if self._stage == "quantised" and share >= _QUANTISED_UNTIL:
            round_to_stored(self.codec.official.encoder, self.codec.first, self.codec.rest)
            if self._stored is not None:
                self._stored.begin()
            self._stage = "decoder"

    def _fit_batch_to_time(self) -> None:
        if self._step == _TIMED.start:
            float(self._seen["spectral"])  # waits for the device
            self._timed_from = self._clock.elapsed
        if self._step == _TIMED.stop:
            float(self._seen["spectral"])
            pace = len(_TIMED) / (self._clock.elapsed - self._timed_from)
            expected = pace * (self._plan.seconds - self._clock.elapsed)
            fitting = int(self._plan.clips * expected / max(1, self._plan.least_steps))
            self._clips = max(min(_FEWEST_CLIPS, self._plan.clips), min(self._plan.clips, fitting))
            self._log(f"{pace:.2f} steps/s with {self._plan.clips} clips; going on with {self._clips}")

    @torch.no_grad()
    def fit_codebooks(self) -> None:
        """Start the codebooks from the latents of a few batches."""
        batches = [self.codec.latents(self._batch()[0]) for _ in range(_FIT_BATCHES)]
        generator = torch.Generator().manual_seed(self._plan.seed)
        for quantiser, latents in zip((self.codec.first, self.codec.rest), zip(*batches, strict=True), strict=True):
            quantiser.fit(torch.cat([latent.flatten(0, 1) for latent in latents]), generator)
        self._log(f"codebooks fitted on {_FIT_BATCHES * self._clips * self._plan.frames} frames")

    def _one_step(self, share: float) -> None:
        highest = self._plan.highest_rate * (1.0 if self._stage == "continuous" else _GENTLER)
        for group in self._optimizer.param_groups:
            group["lr"] = cosine(share, highest, _LOWEST_RATE, self._step, _WARM_UP)
        wave, phonemes = self._batch()
        coded = self._through(wave)
        spectral = self._loss(coded.wave, wave)
        # the judge must learn finished codes before its judgement counts
        first = coded.first.detach() if self._stored is not None and self._step < _WARM_UP else coded.first
        heard = F.binary_cross_entropy_with_logits(self._listener(first), phonemes, reduction="none").sum(-1).mean()
        (spectral + _COMMITMENT * coded.commitment + _PHONEMES * heard).backward()
        nn.utils.clip_grad_norm_(self._trained, 1.0)
        if self._stored is not None:
            self._stored.release()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        if self._stored is not None:
            self._stored.impose()
        self._step += 1
        self._seen = {
            "spectral": spectral.detach(),
            "commitment": coded.commitment.detach(),
            "phonemes": heard.detach(),
            "codes": coded.codes,
        }

    def _through(self, wave: Tensor) -> Coded:
        if self._stage == "continuous":
            return self.codec.continuous(wave, _NOISE)
        if self._stage == "quantised":
            return self.codec.quantised(wave, follow=True, dropout=_DROPOUT)
        with torch.no_grad():
            codes = self.codec.encode(wave)
        return self.codec.from_codes(codes)

    def _batch(self) -> tuple[Tensor, Tensor]:
        return self._data.batch(self._clips, self._plan.frames)

    # --------------------------------------------------------------------------------------------------------- records

    def _tell(self) -> None:
        losses = {name: float(value) for name, value in self._seen.items() if name != "codes"}
        if not all(value == value and abs(value) < 1e6 for value in losses.values()):
            raise FloatingPointError(f"training diverged at step {self._step}: {losses}; use a lower learning rate")
        seconds = self._clock.elapsed
        line = " ".join(f"{name} {value:.3f}" for name, value in losses.items())
        audio = self._step * self._clips * self._plan.frames * 0.08 / 3600
        self._log(f"{self._stage:10s} {seconds:6.1f} s step {self._step} ({audio:.2f} h) {line}")
        codes = self._seen.get("codes")
        if codes is not None and codes.numel():
            self._log("           used like this many codes: " + " ".join(f"{p:.0f}" for p in perplexities(codes)))

    def _save(self) -> None:
        if self._stored is not None:
            self._stored.release()
        moments = {
            index: {name: value.bfloat16() if value.numel() > 1 else value for name, value in entry.items()}
            for index, entry in self._optimizer.state_dict()["state"].items()
        }
        state = {
            "elapsed": self._clock.elapsed,
            "step": self._step,
            "stage": self._stage,
            "codec": self.codec.state_dict(),
            "listener": self._listener.state_dict(),
            "moments": moments,
        }
        scratch = self._plan.state.with_suffix(".partial")
        torch.save(state, scratch)
        scratch.rename(self._plan.state)
        if self._stored is not None:
            self._stored.impose()

    def _resume(self) -> None:
        if not self._plan.state.is_file():
            return
        state = torch.load(self._plan.state, map_location=self._device, weights_only=True)
        self.codec.load_state_dict(state["codec"])
        self._listener.load_state_dict(state["listener"])
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": state["moments"], "param_groups": groups})
        self._step, self._stage = state["step"], state["stage"]
        if self._stored is not None and self._stage == "decoder":
            self._stored.begin()
        self._clock.restart_after_preparation(state["elapsed"])
        self._log(f"continued at {state['elapsed']:.0f} s, step {self._step}, stage {self._stage}")


def perplexities(codes: Tensor) -> list[float]:
    """``[levels, n]`` -> for each level, how many equally frequent codes would be as hard to guess."""
    out = []
    for level in codes:
        share = torch.bincount(level.flatten()).double() / level.numel()
        share = share[share > 0]
        out.append(float(torch.exp(-(share * share.log()).sum())))
    return out
