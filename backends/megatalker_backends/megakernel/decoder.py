"""The ``megakernel`` talker decoder: slots, pages and results around launches."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import chain, islice

import numpy as np
import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.errors import BackendFaultError, BackendUnavailableError, CapacityError
from megatalker.interfaces import (
    DecodeStep,
    Frame,
    FrameLogits,
    LoadContext,
    StreamHandle,
    StreamRequest,
    TalkerCapabilities,
    TalkerDecoder,
)
from megatalker.plugins.stream_table import StreamTable, TableEntry
from megatalker.sampling import SamplingParams
from megatalker_backends.megakernel.inputs import SlotPrompt, TextFeed, kernel_sampling, packed
from megatalker_backends.megakernel.machine import Machine, make_machine
from megatalker_backends.megakernel.pages import PageGrant, PagePool
from megatalker_backends.megakernel.prefix import PrefixCache
from megatalker_backends.megakernel.settings import (
    MegakernelSettings,
    choose_first_pages,
    choose_page_limit,
    choose_positions,
    choose_shape,
    choose_streams,
    why_not,
)
from megatalker_backends.megakernel.weights import pack_checkpoint
from megatalker_kernels.constants import PAGE, ROWS
from megatalker_kernels.errors import KernelError
from megatalker_kernels.schedule import Launch, PackedRows, Row
from megatalker_kernels.transfer import send
from megatalker_kernels.workspace import Assignment, Workspace

CAPABILITIES = TalkerCapabilities(
    devices=frozenset({"cpu", "cuda"}),
    dtypes=frozenset({torch.bfloat16}),
    batch=True,
    forced_codes=True,
    seeded_sampling=True,
    prefix_reuse=True,
    batch_invariant=True,
    exact_continuation=True,
)
WARM_UP_PAGE = 0
"""Page for warming up: the first one, so that the pool can add pages behind it."""


class MegakernelDecoder(TalkerDecoder):
    """Runs frames of up to 8 streams as launches of the megakernel, those of many, and prompts, as wide ones.

    :meth:`decode` launches; the codes are there before the device has finished the talker step. When a launch is
    abandoned, the streams held then are lost and every call for them raises ``BackendFaultError``.

    Raises:
        BackendUnavailableError: the checkpoint, the device or the dtype does not suit the kernel.
        CapacityError: weights and the first pages do not fit into the memory of the GPU.
    """

    def __init__(self, checkpoint: Checkpoint, context: LoadContext[MegakernelSettings]) -> None:
        self._settings = settings = context.settings
        config, self._device = checkpoint.config, context.device
        reason = why_not(config, context.device, settings)
        if reason is None and context.dtype not in CAPABILITIES.dtypes:
            reason = f"it computes in bfloat16, not in {context.dtype}; set dtype to bfloat16"
        if reason is not None:
            raise BackendUnavailableError(f"talker backend 'megakernel' cannot run here: {reason}")
        shape = choose_shape(config, settings, context.device)
        streams = choose_streams(settings, context.max_streams)
        limit = choose_page_limit(shape, settings, streams)
        pages = choose_first_pages(shape, limit, streams, context.device)
        positions = min(choose_positions(config, settings), limit * PAGE)
        reuses = settings.prefix_rows >= ROWS
        self._capabilities = replace(CAPABILITIES, max_streams=streams, max_positions=positions, prefix_reuse=reuses)
        self._eos_id = config.codec_eos_id
        self._table = StreamTable(streams)
        self._lost: set[StreamHandle] = set()
        self._machine: Machine | None = None
        with _memory_of(context.device):
            self._model = pack_checkpoint(checkpoint, shape, context.device)
            # One slot and one page more than streams have: warming up needs a stream of its own.
            self._space = Workspace(shape, streams + 1, 1 + pages, context.device)
            self._prefix = PrefixCache(self._space, settings.prefix_rows)
        self._pages = PagePool(pages, limit, partial(_enlarge, self._space))
        self._text, self._wide_text = (
            TextFeed(self._space.text),
            TextFeed(self._space.wide.text[: self._space.wide.streams]),
        )
        self._warm_up_slot = streams

    @property
    def capabilities(self) -> TalkerCapabilities:
        return self._capabilities

    @torch.inference_mode()
    def warmup(self) -> None:
        slot = self._warm_up_slot
        self._space.assign([Assignment(slot, kernel_sampling(SamplingParams()), pages=[WARM_UP_PAGE])])
        with self._faults():
            self._run_prompts([SlotPrompt(slot, torch.zeros(ROWS, self._space.text.shape[1], device=self._device), 0)])
            machine = self._ready()
            for wide in (False, True):
                machine.wait(machine.run(Launch("decode", (Row(slot, ROWS),), wide=wide)))
            machine.check()

    @torch.inference_mode()
    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        with (
            self._table.admit(requests) as entries,
            self._pages.admit({entry.row: entry.positions for entry in entries}) as grants,
            self._faults(),
        ):
            self._space.assign(
                [
                    Assignment(grant.slot, kernel_sampling(request.sampling), request.history, grant.pages)
                    for grant, request in zip(grants, requests, strict=True)
                ]
            )
            embeds = [self._prompt_rows(request) for request in requests]
            heads = [(keys, grant.pages) for keys, grant in zip(self._prefix.keys(embeds), grants, strict=True)]
            known = self._prefix.restore(heads)
            self._run_prompts(
                [SlotPrompt(grant.slot, rows, count) for grant, rows, count in zip(grants, embeds, known, strict=True)]
            )
            self._prefix.remember(heads)
        return [entry.handle for entry in entries]

    @torch.inference_mode()
    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> Callable[[], list[Frame]]:
        self._refuse_lost(steps)
        entries = [self._table[step.stream] for step in steps]
        self._write_pages(self._pages.grow({entry.row: entry.positions + 1 for entry in entries}))
        wide = len(steps) >= self._settings.wide_from
        size = self._space.wide.streams if wide else ROWS
        launches = (
            self._launch(steps[start : start + size], entries[start : start + size], wide, return_logits)
            for start in range(0, len(steps), size)
        )
        begun = list(islice(launches, 1))

        @torch.inference_mode()
        def finish() -> list[Frame]:
            return [frame for take in chain(begun, launches) for frame in take()]

        return finish

    def release(self, stream: StreamHandle) -> None:
        self._pages.release(self._table.release(stream).row)
        self._lost.discard(stream)

    def close(self) -> None:
        try:
            if self._machine is not None:  # the device may still use memory that is about to be freed
                with suppress(KernelError):
                    self._machine.check()
        finally:
            del self._machine, self._model, self._space, self._pages, self._prefix, self._text, self._wide_text

    # --- launches

    def _ready(self) -> Machine:
        if self._machine is None:
            self._machine = make_machine(self._model, self._space, self._settings)
        return self._machine

    def _prompt_rows(self, request: StreamRequest) -> Tensor:
        """Return the rows of a prefill ``[T, hidden]`` on the device.

        Those of frames are added up as the kernel adds them, in float32: rounded to 16 bits they would leave other bits
        than decoding these frames.
        """
        embeds = send(request.embeds, self._device)
        if request.codes is None or request.text is None:
            return embeds
        total = torch.zeros(len(request.codes), embeds.shape[1], device=self._device)
        for table, codes in zip(self._model.sum_tables, send(request.codes, self._device).T, strict=True):
            total += table[codes]
        rows = total + send(request.text, self._device)
        return torch.cat((embeds[: len(embeds) - len(rows)], rows))

    def _run_prompts(self, prompts: Sequence[SlotPrompt]) -> None:
        """Launches over the rows of all prompts that are not known yet, packed; nothing waits for them."""
        machine, wide = self._ready(), self._space.wide
        for parts in packed(prompts, wide.text.shape[0], wide.chunks):
            rows = PackedRows([(prompt.slot, taken, taken.stop == prompt.rows) for prompt, taken in parts])
            embeds = [prompt.embeds[taken.start : taken.stop] for prompt, taken in parts]
            wide.text[: len(rows)].copy_(torch.cat(embeds) if len(embeds) > 1 else embeds[0])
            machine.run(Launch("prefill", rows, wide=True))

    def _launch(
        self, steps: Sequence[DecodeStep], entries: Sequence[TableEntry], wide: bool, return_logits: bool
    ) -> Callable[[], list[Frame]]:
        """One launch; the function returned waits for its codes."""
        rows = tuple(_row(step, entry) for step, entry in zip(steps, entries, strict=True))
        pending = self._space.pending[[entry.row for entry in entries]] if return_logits else None
        with self._faults():
            machine = self._ready()
            (self._wide_text if wide else self._text).put([step.text for step in steps])
            ticket = machine.run(Launch("decode", rows, wide=wide))
        return partial(self._take, steps, ticket, wide, pending)

    def _take(self, steps: Sequence[DecodeStep], ticket: int, wide: bool, pending: Tensor | None) -> list[Frame]:
        """The frames of a launch; ``pending`` are the logits that their first codes were chosen from."""
        with self._faults():
            codes = self._ready().wait(ticket)
        logits: list[FrameLogits | None] = [None] * len(steps)
        if pending is not None:
            rest = (self._space.wide if wide else self._space).predictor_logits[: len(steps)].clone()
            logits = [FrameLogits(*both) for both in zip(pending, rest, strict=True)]
        return [self._frame(*parts) for parts in zip(steps, codes, logits, strict=True)]

    def _frame(self, step: DecodeStep, codes: tuple[int, ...], logits: FrameLogits | None) -> Frame:
        if codes[0] != self._eos_id:
            self._table[step.stream].advance()
            return Frame(step.stream, codes, logits)
        if logits is not None:
            logits = replace(logits, predictor=logits.predictor[:0])
        return Frame(step.stream, None, logits)

    def _write_pages(self, grants: Sequence[PageGrant]) -> None:
        """Write new pages of streams into the page table on the device."""
        entries = [
            (grant.slot, chunk, page) for grant in grants for chunk, page in enumerate(grant.pages, grant.first_chunk)
        ]
        if entries:
            table = np.array(entries, np.int32).T.copy()  # several times as fast as a tensor of tuples
            slot, chunk, page = send(torch.from_numpy(table), self._device)
            self._space.page_table[slot, chunk] = page

    # --- faults

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except KernelError as error:
            self._lost.update(self._table)
            self._prefix.clear()
            raise BackendFaultError(f"megakernel: {error}; the {len(self._lost)} streams it held are lost") from error

    def _refuse_lost(self, steps: Sequence[DecodeStep]) -> None:
        lost = [step.stream for step in steps if step.stream in self._lost]
        if lost:
            raise BackendFaultError(
                f"stream {lost[0]} was lost when a launch was abandoned; release it, and prefill again from its codes"
            )


def _row(step: DecodeStep, entry: TableEntry) -> Row:
    forced = None if step.forced is None else tuple(int(code) for code in step.forced)
    return Row(entry.row, entry.positions, entry.frames, forced)


def _enlarge(space: Workspace, pages: int) -> None:
    """Room for this many pages of streams."""
    try:
        space.grow(1 + pages)
    except torch.cuda.OutOfMemoryError as error:
        raise CapacityError(
            f"{pages} pages of keys and values do not fit into the free memory of the GPU along with the {space.pages} "
            f"they replace: {error}; release a stream, or lower backends.megakernel.pages, max_streams or max_positions"
        ) from error


@contextmanager
def _memory_of(device: torch.device) -> Iterator[None]:
    """Turn a full GPU into advice, and give back what loading needed for a moment."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        raise CapacityError(
            f"weights and pages of the megakernel do not fit into the free memory of the GPU: {error}; "
            "lower backends.megakernel.pages, max_streams or max_positions"
        ) from error
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.empty_cache()
