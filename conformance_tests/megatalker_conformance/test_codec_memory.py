"""Streams cost a codec little memory while they last, and none once they are over."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from megatalker.plugins.checked import CheckedCodec
from megatalker_conformance.codes import CodeSource
from megatalker_conformance.memory import ALLOWED, in_use
from megatalker_conformance.promises import SMALL_STATES, STATES_END, broken

USED = 160
"""States that are used and forgotten before memory is looked at."""
WATCHED = 24
"""The same, and memory is looked at before and after."""
ROUNDS = 4
"""Most repetitions until nothing grows: buffers that the first calls make may stay, but a leak goes on."""
OPENED = 2000
"""States that are not even used."""
SAID = 40
"""Frames."""
FRAME = 1024
"""Bytes that a state may grow with each frame: more than its 16 codes take, less than its samples or a layer's keys."""


def test_states_that_are_gone_leave_nothing_behind(
    codec: CheckedCodec, code_source: CodeSource, device: torch.device
) -> None:
    """States that are used, copied and forgotten."""
    frame = code_source.random(1, seed=41)
    opened = 0

    def use(states: int) -> None:
        nonlocal opened
        for _ in range(states):
            opened += 1
            state = codec.open()
            codec.decode([state], [frame])
            state.copy()

    try:
        use(USED)
        used = [in_use(device)]
        while len(used) <= ROUNDS and (len(used) == 1 or _growing(*used[-2:])):
            use(WATCHED)
            used.append(in_use(device))
        for _ in range(OPENED):
            opened += 1
            codec.open()
    except Exception as error:
        history = f"{opened} states opened, the first {USED} and more used and copied, none held any longer"
        broken(STATES_END, shown_by=history, expected="no error", found=f"{type(error).__name__}: {error}")
    growing = _growing(*used[-2:])
    if growing:
        broken(
            STATES_END,
            shown_by=f"{WATCHED} times: open a state, decode a frame, copy it, forget both; {len(used) - 1} times over",
            expected=", ".join(f"{kind}: at most {ALLOWED[kind]} more each time" for kind in growing),
            found=", ".join(f"{kind}: {growth} more the last time" for kind, growth in growing.items()),
        )


def _growing(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """Return the kinds of memory that have grown, with the growth."""
    growth = {kind: after[kind] - before[kind] for kind in before}
    return {kind: more for kind, more in growth.items() if more > ALLOWED[kind]}


def test_a_state_does_not_grow_with_what_was_said(
    codec: CheckedCodec, code_source: CodeSource, device: torch.device
) -> None:
    codes = code_source.random(SAID, seed=42)
    state = codec.open()
    codec.decode([state], [codes.repeat(2, 1)])
    with _traced():
        codec.decode([state], [codes[:1]])
        before = _bytes(device)
        codec.decode([state], [codes])
        growth = _bytes(device) - before
    if growth > SAID * FRAME:
        broken(
            SMALL_STATES,
            shown_by=f"decode {SAID} frames with a state that has had {2 * SAID + 1}",
            expected=f"at most {SAID * FRAME} bytes more",
            found=f"{growth} bytes more",
        )


def _bytes(device: torch.device) -> int:
    used = in_use(device)
    return used["bytes of tensors"] + used.get("bytes on the GPU", 0) + tracemalloc.get_traced_memory()[0]


@contextmanager
def _traced() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
