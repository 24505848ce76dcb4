"""Frames on rounded layers: heads, embeddings and sampling are those of :mod:`megatalker_backends.compiled.model`."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.sampling import CodeVocabulary, SamplerRows
from megatalker_backends.compiled.model import Rows
from megatalker_backends.compiled.ops import linear
from megatalker_backends.compiled.quantised.files import rounded_layers
from megatalker_backends.compiled.quantised.graph import write_stack
from megatalker_backends.compiled.quantised.groups import EXACT_LAYERS
from megatalker_backends.compiled.quantised.stack import QuantisedStack
from megatalker_backends.compiled.rounding import BITS
from megatalker_backends.compiled.runner import BatchFrames, Share
from megatalker_backends.compiled.weights import PREDICTOR_STACK, TALKER_STACK, load_weights, read_layers

CPU = torch.device("cpu")


class QuantisedModel:
    """Weights and state of all rows of one checkpoint, and how frames run: one stream after another.

    Args:
        checkpoint: to read.
        weights: ``int8`` or ``int4``. Embeddings and heads are bfloat16, as published; norms are float32.
        max_streams: stream rows.
        max_positions: of each row.
    """

    def __init__(self, checkpoint: Checkpoint, weights: str, *, max_streams: int, max_positions: int) -> None:
        config = checkpoint.config
        self.config = config
        self._weights = load_weights(checkpoint, CPU, torch.bfloat16, layers=False)
        self.sampler = SamplerRows(max_streams, CodeVocabulary.from_config(config), CPU)
        self._pending = Rows(
            torch.zeros(max_streams, config.talker.vocab_size),
            torch.zeros(max_streams, config.talker.hidden_size),
        )
        stacks = {TALKER_STACK: self._weights.talker, PREDICTOR_STACK: self._weights.predictor}

        def write(folder: Path) -> None:
            for name, stack in stacks.items():
                layers = read_layers(checkpoint, name, stack.shape)
                bits = [8] * EXACT_LAYERS + [BITS[weights]] * (stack.shape.num_layers - EXACT_LAYERS)
                (folder / name).mkdir()
                write_stack(folder / name, stack.shape, layers, stack.norm, bits)

        threads = torch.get_num_threads()
        with rounded_layers(checkpoint, weights, write) as folder:
            self._talker = QuantisedStack(
                folder / TALKER_STACK, config.talker, positions=max_positions, threads=threads
            )
            self._predictor = QuantisedStack(
                folder / PREDICTOR_STACK, config.predictor, positions=config.num_code_groups, threads=threads
            )

    def touch(self) -> None:
        """Run a prompt and a frame in the first row, so that the first stream finds all memory in place."""
        rows = torch.zeros(2, self.config.talker.hidden_size)
        self.prefill(0, rows)
        self._frame(Share(0, len(rows), [0] * self.config.num_code_groups, rows[0]))

    def prefill(self, row: int, embeds: Tensor) -> None:
        """Run a prompt ``[T, hidden_size]`` into a row."""
        self._keep_pending(row, self._talker.run(row, 0, embeds)[-1])

    def begin(self, shares: Sequence[Share]) -> Callable[[], BatchFrames]:
        """Start one frame for each share; the function returned computes it."""
        return lambda: self._frames(shares)

    def _frames(self, shares: Sequence[Share]) -> BatchFrames:
        frames = [self._frame(share) for share in shares]
        codes, first, rest = zip(*frames, strict=True)
        return BatchFrames(list(codes), torch.stack(first), torch.stack(rest))

    def _frame(self, share: Share) -> tuple[list[int], Tensor, Tensor]:
        row = torch.tensor([share.row])
        first_logits = self._pending.logits[share.row].clone()
        code = self._first_code(share, row, first_logits)
        if code == self.config.codec_eos_id:
            groups = self.config.num_code_groups
            return [code] * groups, first_logits, torch.zeros(groups - 1, len(self._weights.rest_heads[0]))
        codes, rest_logits = self._predict(share, row, code)
        weights = self._weights
        x = F.embedding(torch.tensor(codes) + weights.offsets, weights.embeddings).float().sum(0) + share.text
        self._keep_pending(share.row, self._talker.run(share.row, share.position, x[None])[0])
        self.sampler.advance(row, torch.tensor(codes[:1]))
        return codes, first_logits, rest_logits

    def _first_code(self, share: Share, row: Tensor, logits: Tensor) -> int:
        return int(self.sampler.choose_first(row, logits[None])) if share.forced is None else share.forced[0]

    def _predict(self, share: Share, row: Tensor, code: int) -> tuple[list[int], Tensor]:
        """Choose the later codes: all of the frame, and logits ``[groups - 1, predictor vocab]`` float32."""
        weights, codes, logits = self._weights, [code], []
        noise = None
        if share.forced is None:
            noise = self.sampler.rest_noise(row, len(weights.rest_heads), len(weights.rest_heads[0]))
        hidden = self._pending.hidden[share.row : share.row + 1]
        if weights.projection is not None:
            hidden = linear(hidden, weights.projection[0]) + weights.projection[1]
        for index, head in enumerate(weights.rest_heads):
            x = weights.predictor_embeddings[codes[-1] + weights.offsets[index]].float()[None]
            # The talker's hidden state and code 0 go together: one reading of the layers less.
            y = (
                self._predictor.run(0, 0, torch.cat((hidden, x)))
                if index == 0
                else self._predictor.run(0, index + 1, x)
            )
            logits.append(linear(y[-1:], head))
            if share.forced is None:
                assert noise is not None
                codes.append(int(self.sampler.choose_rest(row, logits[-1], index + 1, noise[:, index])))
            else:
                codes.append(share.forced[index + 1])
        return codes, torch.cat(logits)

    def _keep_pending(self, row: int, hidden: Tensor) -> None:
        self._pending.hidden[row] = hidden
        self._pending.logits[row] = linear(hidden[None], self._weights.head)[0]
