"""Streams cost a codec little memory while they last, and none once they are over."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from megatalker.plugins.checked import CheckedCodec
from megatalker_conformance.codes import CodeSource
from megatalker_conformance.memory import in_use
from megatalker_conformance.promises import SMALL_STATES, STATES_END, broken

USED = 160
"""States that are used and forgotten before memory is looked at."""
WATCHED = 30
"""The same, and memory is looked at before and after."""
ROUNDS = 5
"""How often, until nothing has grown: what is learned by the first calls may stay, a leak goes on."""
OPENED = 2000
"""States that are not even used."""
LEFT = 120
"""Bytes that each state may leave behind: Python's own noise, spread over all of them."""
SAID = 40
"""Frames."""
FRAME = 1024
"""Bytes that a state may grow with each frame: more than its 16 codes take, less than its samples or a layer's keys."""
EXACT_KINDS = ("Python objects", "tensors", "GPU memory")


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
        with _traced():
            use(3)
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
            expected=f"each time at most {WATCHED * LEFT} bytes more",
            found=", ".join(f"{kind}: {growth} bytes more the last time" for kind, growth in growing.items()),
        )


def _growing(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """What has grown, of what can be told exactly, and by how many bytes."""
    growth = {kind: after[kind] - before[kind] for kind in EXACT_KINDS if kind in before}
    return {kind: more for kind, more in growth.items() if more > WATCHED * LEFT}


def test_a_state_does_not_grow_with_what_was_said(
    codec: CheckedCodec, code_source: CodeSource, device: torch.device
) -> None:
    codes = code_source.random(SAID, seed=42)
    state = codec.open()
    codec.decode([state], [codes.repeat(2, 1)])
    with _traced():
        codec.decode([state], [codes[:1]])
        before = in_use(device)
        codec.decode([state], [codes])
        after = in_use(device)
    for kind in filter(before.__contains__, EXACT_KINDS):
        growth = after[kind] - before[kind]
        if growth > SAID * FRAME:
            broken(
                SMALL_STATES,
                shown_by=f"decode {SAID} frames with a state that has had {2 * SAID + 1}",
                expected=f"{kind} grows by at most {SAID * FRAME} bytes",
                found=f"it grows by {growth} bytes",
            )


@contextmanager
def _traced() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
