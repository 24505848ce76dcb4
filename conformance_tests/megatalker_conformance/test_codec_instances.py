"""Instances of one codec backend share nothing, and samples have limits."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.plugins.checked import CheckedCodec
from megatalker_conformance.codes import CodeSource, OfficialCodec
from megatalker_conformance.louder import louder
from megatalker_conformance.measure import Measure

LOUD = 3.0
"""Peak of the loud checkpoint's samples before they are clamped."""
FRAMES = 24


def test_instances_of_two_checkpoints_keep_apart_and_stay_within_one(
    codec: CheckedCodec,
    code_source: CodeSource,
    official_codec: OfficialCodec,
    checkpoint: Checkpoint,
    device: torch.device,
    load_another_codec: Callable[[Checkpoint], CheckedCodec],
    measure: Measure,
    tmp_path: Path,
) -> None:
    """Alternates calls of the codec under test and of one whose checkpoint is so loud that samples are clamped."""
    codes = code_source.random(FRAMES, seed=51)
    expected = official_codec.decode(codes)
    gain = LOUD / float(expected.abs().max())
    shouting = louder(checkpoint, tmp_path, gain)
    clamped = OfficialCodec(shouting, device).decode(codes)
    assert clamped.max() == 1
    assert clamped.min() == -1
    second = load_another_codec(shouting)
    limit = official_codec.limit(codec.capabilities)
    states = [(codec, codec.open(), expected, limit), (second, second.open(), clamped, limit * gain)]
    found: list[list[Tensor]] = [[], []]
    for start in range(0, FRAMES, 3):
        for chunks, (instance, state, *_) in zip(found, states, strict=True):
            chunks += instance.decode([state], [codes[start : start + 3]])
    second.close()
    (last,) = codec.decode([codec.open()], [codes[:3]])
    measure("largest difference after the other was closed", _apart([last], expected[: len(last)]), limit)
    for chunks, (*_, wanted, most) in zip(found, states, strict=True):
        measure(f"largest difference by turns, within {float(wanted.abs().max()):.2g}", _apart(chunks, wanted), most)
    assert torch.cat(found[1]).abs().max() <= 1


def _apart(chunks: list[Tensor], expected: Tensor) -> float:
    return float((torch.cat(chunks).cpu() - expected).abs().max())
