"""The executable specification of ``csrc/frame.cu`` in torch, phase by phase, with the same rounding.

It works on the same packed weights and workspace. Products of bfloat16 numbers are summed in float32; the residual
stream, norms, rotary embedding and softmax are float32; the A operand of each product (``x * norm_weight``, attention,
activation), keys and values are rounded to bfloat16. Sums are taken in another order than on the GPU, so the last bits
differ.
"""

from collections.abc import Callable, Iterator
from functools import cached_property, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from megatalker_kernels.constants import CHUNK_STATS, OPERAND, PAGE, ROWS, STORED
from megatalker_kernels.model import PackedModel
from megatalker_kernels.params import Sampling
from megatalker_kernels.phases import PhaseKind
from megatalker_kernels.schedule import Launch, Phase, schedule
from megatalker_kernels.shapes import KernelShape, StackShape
from megatalker_kernels.spec.attention import attend, norm_factor
from megatalker_kernels.spec.sampler import Sampler
from megatalker_kernels.workspace import WideWorkspace, Workspace


class RowBuffers:
    """The rows of one wide launch: what a caller reads and writes of a workspace, and scratch laid out as for few."""

    def __init__(self, shape: KernelShape, wide: WideWorkspace, launch: Launch) -> None:
        rows = len(launch.rows) << launch.merged
        predictor, new = shape.predictor, partial(torch.zeros, device=wide.device)
        self.text, self.codes, self.predictor_logits = wide.text, wide.codes, wide.predictor_logits
        self.x = new(rows * shape.largest("hidden"))
        self.qkv = new(rows * shape.largest("qkv"))
        self.attention = new(rows * shape.largest("attention"))
        self.activation = new(rows * shape.largest("intermediate"))
        self.projected = new(rows, predictor.hidden)
        self.partial = new(rows, shape.talker.heads, shape.max_chunks, shape.talker.head_dim + CHUNK_STATS)
        pairs = (2, predictor.kv_heads, PAGE, predictor.head_dim)
        self.predictor_kv = new(predictor.layers, rows, *pairs, dtype=STORED)


class Specification:
    """Runs launches on a model and a workspace, in place.

    Args:
        model: its packed weights are unpacked on first use, and kept.
        workspace: on the model's device.
    """

    def __init__(self, model: PackedModel, workspace: Workspace) -> None:
        self._model = model
        self._shape = model.shape
        self._space = workspace
        self._matrices: dict[str, Tensor] = {}
        self._launch: Launch
        self._rows_space: Workspace | RowBuffers = workspace
        self._codes: list[list[int]] = []
        self._source = self._slot = self._position = torch.empty(0)
        self._sampling: list[Sampling] = []

    def run(self, launch: Launch) -> None:
        """The whole launch, or its first ``stop_after`` phases."""
        for number, _ in enumerate(self.phases(launch), start=1):
            if number == launch.stop_after:
                return

    @torch.inference_mode()
    def phases(self, launch: Launch) -> Iterator[Phase]:
        """Run the launch; yields each phase when it has been done."""
        self._begin(launch)
        steps: dict[PhaseKind, Callable[[Phase], None]] = {
            "project": self._project,
            "qkv": self._qkv,
            "attention": self._attention,
            "out": self._out,
            "gate_up": self._gate_up,
            "down": self._down,
            "head": self._head,
            "sum": self._sum,
            "begin": lambda _phase: None,  # where rows stand is found out when their layers begin,
            "append": lambda _phase: None,  # and attention stores all keys and values before it reads any
            "combine": lambda _phase: None,  # and goes through all chunks
        }
        for phase in schedule(self._shape, launch):
            if phase.picks is not None:
                self._pick(phase.picks)
            if phase.type.kind == "qkv" and phase.layer == 0:
                self._place(phase)
            steps[phase.type.kind](phase)
            yield phase

    def choices(self, launch: Launch) -> list[list[int]]:
        """The codes that the logits now in the workspace give: what the kernel must have chosen from them."""
        self._begin(launch)
        for codebook in range(self._shape.code_groups):
            self._pick(codebook)
        return self._codes

    def _begin(self, launch: Launch) -> None:
        self._launch = launch
        self._rows_space = RowBuffers(self._shape, self._space.wide, launch) if launch.wide else self._space
        self._codes = [[0] * self._shape.code_groups for _ in launch.rows]
        raw = self._space.sampling.cpu().numpy()
        self._sampling = [Sampling.from_buffer_copy(raw[row.slot].tobytes()) for row in launch.rows]

    # --- choosing

    @cached_property
    def _sampler(self) -> Sampler:
        return Sampler(self._model.gumbel_table.cpu().numpy(), self._model.decay_table.cpu().numpy())

    def _pick(self, codebook: int) -> None:
        for index, (row, sampling) in enumerate(zip(self._launch.rows, self._sampling, strict=True)):
            if row.forced is not None:
                code = row.forced[codebook]
            else:
                key = (sampling.key[0], sampling.key[1])
                if codebook == 0:
                    logits, filter_ = self._first_logits(row.slot, row.frame, sampling), sampling.talker
                else:
                    logits, filter_ = self._rows_space.predictor_logits[index, codebook - 1], sampling.predictor
                code = self._sampler.choose(logits.cpu().numpy(), filter_, key, codebook, row.frame)
            self._codes[index][codebook] = code

    def _first_logits(self, slot: int, frame: int, sampling: Sampling) -> Tensor:
        """Pending logits after the rules for code 0."""
        logits = self._space.pending[slot].cpu()
        words = self._space.seen[slot].cpu()
        seen = ((words[:, None] >> torch.arange(32, dtype=torch.int32)) & 1).flatten().bool()
        penalty = torch.tensor(sampling.penalty, dtype=torch.float32)
        logits = torch.where(seen, torch.where(logits < 0, logits * penalty, logits / penalty), logits)
        eos = self._model.constants.eos
        end = logits[eos].clone()
        logits[self._shape.first_suppressed :] = -torch.inf
        logits[eos] = -torch.inf if frame < sampling.min_frames else end
        return logits

    # --- where rows stand, and what they hold

    def _place(self, phase: Phase) -> None:
        """Slot, position and input of each row of the pass that begins."""
        rows = range(len(self._launch.rows))
        if phase.stack == "talker":
            slots = [row.slot for row in self._launch.rows]
            positions = [row.position for row in self._launch.rows]
            inputs = (
                self._view(self._rows_space.x, self._shape.talker.hidden)
                if self._launch.mode == "decode"
                else self._rows_space.text
            )
            self._source = inputs[: len(rows)].clone()
        elif self._launch.merged and phase.position == 1:
            slots, positions = [index for index in rows for _ in range(2)], [0, 1] * len(rows)
            self._source = torch.stack((self._start(), self._embedded(0)), dim=1).flatten(0, 1)
        else:
            slots, positions = list(rows), [phase.position] * len(rows)
            self._source = self._embedded(phase.position - 1) if phase.position else self._start()
        self._slot = torch.tensor(slots, device=self._model.device)
        self._position = torch.tensor(positions, device=self._model.device)

    def _start(self) -> Tensor:
        """The predictor's input at position 0."""
        if self._shape.projects:
            return self._rows_space.projected[: len(self._launch.rows)].clone()
        return self._space.hidden[[row.slot for row in self._launch.rows]]

    def _embedded(self, codebook: int) -> Tensor:
        table = self._model.input_tables[codebook]
        return table[[codes[codebook] for codes in self._codes]].float()

    def _view(self, flat: Tensor, width: int) -> Tensor:
        """A row buffer with rows of ``width``: widths differ between the stacks."""
        return flat[: flat.numel() // width * width].view(-1, width)

    def _stack(self, phase: Phase) -> StackShape:
        return self._shape.stack(phase.stack)

    # --- phases

    def _project(self, _phase: Phase) -> None:
        hidden = self._space.hidden[[row.slot for row in self._launch.rows]]
        assert self._model.projection_bias is not None
        result = self._product(hidden, "projection") + self._model.projection_bias
        self._rows_space.projected[: len(self._launch.rows)] = result

    def _qkv(self, phase: Phase) -> None:
        weight = self._norm(phase, 0, self._stack(phase).hidden)
        self._rows(self._rows_space.qkv, self._stack(phase).qkv)[:] = self._normed_product(
            self._residual(phase), weight, phase, f"{phase.stack}.{phase.layer}.qkv"
        )

    def _attention(self, phase: Phase) -> None:
        s, talker = self._stack(phase), phase.stack == "talker"
        space, model = self._rows_space, self._model
        attend(
            s,
            qkv=self._rows(space.qkv, s.qkv),
            pages=(self._space.talker_kv if talker else space.predictor_kv)[phase.layer],
            table=self._space.page_table[self._slot] if talker else self._slot[:, None],
            position=self._position,
            q_norm=self._norm(phase, s.hidden, s.head_dim),
            k_norm=self._norm(phase, s.hidden + s.head_dim, s.head_dim),
            rope=model.talker_rope if talker else model.predictor_rope,
            eps=self._eps(phase),
            partial=self._partial(s) if talker else None,
            out=self._rows(space.attention, s.attention),
        )

    def _partial(self, s: StackShape) -> Tensor:
        return self._rows_space.partial.view(-1, s.heads, self._shape.max_chunks, s.head_dim + CHUNK_STATS)

    def _out(self, phase: Phase) -> None:
        s = self._stack(phase)
        base = self._residual(phase)
        product = self._product(self._rows(self._rows_space.attention, s.attention), f"{phase.stack}.{phase.layer}.out")
        self._rows(self._rows_space.x, s.hidden)[:] = base + product

    def _gate_up(self, phase: Phase) -> None:
        s = self._stack(phase)
        weight = self._norm(phase, s.hidden + 2 * s.head_dim, s.hidden)
        x = self._rows(self._rows_space.x, s.hidden)
        both = self._normed_product(x, weight, phase, f"{phase.stack}.{phase.layer}.gate_up")
        gate, up = both.view(len(x), -1, 2, 4).unbind(2)
        self._rows(self._rows_space.activation, s.intermediate)[:] = (F.silu(gate) * up).flatten(1).to(OPERAND)

    def _down(self, phase: Phase) -> None:
        s = self._stack(phase)
        activation = self._rows(self._rows_space.activation, s.intermediate)
        self._rows(self._rows_space.x, s.hidden).add_(self._product(activation, f"{phase.stack}.{phase.layer}.down"))

    def _head(self, phase: Phase) -> None:
        s, space = self._stack(phase), self._space
        x, norm = self._rows(self._rows_space.x, s.hidden), self._final_norm(phase)
        if phase.stack == "predictor":
            logits = self._normed_product(x, norm, phase, f"predictor.head.{phase.position}")
            paired = self._launch.merged and phase.position == 1
            self._rows_space.predictor_logits[: len(self._launch.rows), phase.position - 1] = (
                logits[1::2] if paired else logits
            )
            return
        heard = [index for index, row in enumerate(self._launch.rows) if row.heard]
        x = x[heard]
        slots = [self._launch.rows[index].slot for index in heard]
        space.pending[slots] = self._normed_product(x, norm, phase, "talker.head")
        space.hidden[slots] = x * norm_factor(x, self._eps(phase)) * norm

    def _sum(self, _phase: Phase) -> None:
        """The frame is complete: publish it, remember it, and add its embeddings to the text row."""
        total = torch.zeros(len(self._launch.rows), self._shape.talker.hidden, device=self._model.device)
        for table, column in zip(self._model.sum_tables, zip(*self._codes, strict=True), strict=True):
            total += table[list(column)].float()
        self._view(self._rows_space.x, self._shape.talker.hidden)[: len(total)] = (
            total + self._rows_space.text[: len(total)]
        )
        self._rows_space.codes[: len(total), : self._shape.code_groups] = torch.tensor(self._codes, dtype=torch.int32)
        for row, codes in zip(self._launch.rows, self._codes, strict=True):
            bit = 1 << (codes[0] % 32)
            self._space.seen[row.slot, codes[0] // 32] |= bit - 2**32 if bit == 2**31 else bit

    # --- arithmetic

    def _rows(self, flat: Tensor, width: int) -> Tensor:
        return self._view(flat, width)[: len(self._slot)]

    def _residual(self, phase: Phase) -> Tensor:
        """The residual stream before the layer's attention is added."""
        return self._source if phase.layer == 0 else self._rows(self._rows_space.x, self._stack(phase).hidden)

    def _eps(self, phase: Phase) -> float:
        constants = self._model.constants
        return constants.talker_eps if phase.stack == "talker" else constants.predictor_eps

    def _norm(self, phase: Phase, offset: int, size: int) -> Tensor:
        norms = self._model.talker_norms if phase.stack == "talker" else self._model.predictor_norms
        start = phase.layer * self._stack(phase).norms + offset
        return norms[start : start + size]

    def _final_norm(self, phase: Phase) -> Tensor:
        norms = self._model.talker_norms if phase.stack == "talker" else self._model.predictor_norms
        return norms[-self._stack(phase).hidden :]

    def _normed_product(self, x: Tensor, weight: Tensor, phase: Phase, name: str) -> Tensor:
        return self._product(x * weight, name) * norm_factor(x, self._eps(phase))

    def _product(self, x: Tensor, name: str) -> Tensor:
        matrix = self._matrices.get(name)
        if matrix is None:
            matrix = self._matrices[name] = self._model.weights.get(name).float().T
        # Always the same number of rows: a product of fewer, or of more, would be summed in another order.
        rows = F.pad(x, (0, 0, 0, -len(x) % ROWS)).to(OPERAND).float()
        return torch.cat([part @ matrix for part in rows.view(-1, ROWS, rows.shape[1])])[: len(x)]
