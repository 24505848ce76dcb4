"""Codecs of fewer and of more codebooks than published ones, on checkpoints of their own."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from megatalker.checkpoint import Checkpoint
from megatalker.interfaces import CodecBackend
from megatalker.plugins.checked import CheckedCodec
from megatalker_conformance.codec_harness import CodecHarness
from megatalker_conformance.codec_pool import CodePool
from megatalker_conformance.codec_schedule import Action, DecodeCall, OpenCall
from megatalker_conformance.codes import CodeSource, OfficialCodec
from megatalker_conformance.selection import Selection
from megatalker_conformance.special import FEW_CODES, MANY_CODES, SpecialCheckpoints, load_or_skip

LONG = 12
"""Frames of the longest codes."""


@pytest.mark.parametrize("name", [FEW_CODES, MANY_CODES])
def test_codecs_of_any_number_of_codebooks_equal_one_full_forward(
    codec_harness: CodecHarness,
    codec_backend: CodecBackend,
    special_checkpoints: SpecialCheckpoints,
    load_another_codec: Callable[[Checkpoint], CheckedCodec],
    selection: Selection,
    device: torch.device,
    name: str,
) -> None:
    checkpoint = special_checkpoints.checkpoint(name)
    codec = load_or_skip(codec_backend, checkpoint, device, selection.settings, lambda: load_another_codec(checkpoint))
    pool = CodePool(CodeSource(checkpoint), OfficialCodec(checkpoint, device), LONG)
    harness = replace(codec_harness, codec=codec, pool=pool, load=lambda: load_another_codec(checkpoint))
    first, second = pool.openings[:2]
    actions: list[Action] = [OpenCall(1, pool.long), DecodeCall(((1, 3),)), OpenCall(2, first), OpenCall(3, second)]
    together = (3, 2, 1)[-min(3, harness.width(3)) :]
    actions += [
        DecodeCall(tuple((state, 1) for state in together)),
        DecodeCall(tuple((state, 2) for state in together)),
    ]
    harness.hold_to([*actions, DecodeCall(((1, LONG),))])
    codec.close()
