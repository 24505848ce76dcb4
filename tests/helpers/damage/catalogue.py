"""How a damage is written down, and all damages: what is changed, and the check of the card that must fail."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pytest

from damage import decoding, drawing, listening
from megatalker.cli.verify.order import Reach

UNHURRIED = Reach(budget_s=math.inf)
"""However loaded the machine is, no part is cut short."""
SHORT = replace(UNHURRIED, long_frames=70, long_prompts=(), draw_frames=60, codec_frames=300)
LATE = replace(UNHURRIED, long_frames=330, long_prompts=(), codec_frames=450)
MANY = replace(UNHURRIED, draw_frames=160)
PROMPTS = replace(UNHURRIED, long_frames=24, long_prompts=(700,))


@dataclass(frozen=True)
class Damage:
    """One damaged copy."""

    name: str
    """The mistake in it."""
    part: str
    """Part of the card that finds it."""
    check: str
    """Name of the check that fails, or its beginning."""
    backend: str = "compiled"
    """Talker backend, or codec in the part ``codec``: one of ``tests/helpers/mistakes``, where it is damaged."""
    spoil: Callable[[pytest.MonkeyPatch], None] = lambda _: None
    """Damages other code."""
    reach: Reach = SHORT

    def __str__(self) -> str:
        return self.name.replace(" ", "_")


def _decoder(name: str, backend: str, reach: Reach = SHORT, check: str = "streams in company") -> Damage:
    return Damage(name, "streams", check, backend, reach=reach)


def _codec(name: str, backend: str, reach: Reach = SHORT) -> Damage:
    return Damage(name, "codec", "a long stream in company", backend, reach=reach)


def _patched(
    part: str, check: str, found: Mapping[str, Callable[[pytest.MonkeyPatch], None]], reach: Reach = SHORT
) -> list[Damage]:
    return [Damage(name, part, check, spoil=spoil, reach=reach) for name, spoil in found.items()]


STREAMS = [
    _decoder("text mixed by the order of slots", "sorted_rows"),
    _decoder("text mixed between streams of a length", "equal_lengths"),
    _decoder("text mixed among four lengths", "four_lengths"),
    _decoder("one text for equal requests", "one_text_for_twins"),
    _decoder("rows from the fifth on read a position late", "from_slot_five_on"),
    _decoder("keys and values of two streams shared", "shared_cache"),
    _decoder("the shortest stream read late in long company", "far_apart"),
    _decoder("the high word of the seed ignored", "short_seed"),
    _decoder("position off by one from frame 128", "from_128", LATE),
    _decoder("noise a frame late from frame 120", "noise_slips", LATE),
    _decoder("history cleared at frame 200", "history_cleared", LATE),
    _decoder("position off by one from frame 200", "slipping", LATE),
    _decoder("oldest key forgotten at frame 280", "tired", LATE),
    _decoder("rotary base changed from position 300", "late_base", LATE),
    _decoder("rotary angle wrong at multiples of 256", "page_end", LATE),
    _decoder("noise repeated every 256 frames", "repeating_noise", LATE),
    _decoder("prompts over 520 rows rounded", "rounded_prompts", PROMPTS),
    _decoder("attention sees 512 positions", "short_sighted", PROMPTS),
    _decoder("history of a continuation forgotten", "history_forgotten", check="streams that go on"),
    _decoder("frames of a continuation counted anew", "frame_restarted", check="streams that go on"),
    *_patched("utterances", "utterances through the engine", decoding.ENGINE),
]
CODECS = [
    _codec("the codec is off from frame 200", "from200"),
    _codec("the codec is off from frame 400", "from_400", LATE),
    _codec("single frames of the codec from 512", "single_frames_from_512", replace(UNHURRIED, codec_frames=560)),
    _codec("states apart by 64 frames are padded wrongly", "ages_apart_by_64"),
]
DAMAGED = [
    *STREAMS,
    *CODECS,
    *_patched("sampling", "draws of this checkpoint", drawing.DRAWS),
    *_patched("sampling", "draws of this checkpoint", drawing.EDGES, MANY),
    *_patched("sampling", "draws", drawing.ENDS),
    *_patched("sampling", "default values", drawing.DEFAULTS),
    *_patched("sampling", "ids that are never chosen", drawing.BARRED),
    *_patched("cloning", "recording of", listening.RECORDINGS),
    *_patched("prompts", "made-up voice, long reference", listening.REFERENCES),
]
"""All of them."""
