"""Sizes of the demo voice: what is trained and shipped."""

from dataclasses import dataclass, replace

from megatalker.testing.recipe import CheckpointRecipe, CodecSizes, SpeakerEncoderSizes, StackSizes

LEVELS = 16
FALLING = (128, 128, 128, 64, 64, 32, 16, 8, 4, 2, 1, 1, 1, 1, 1, 1)
"""Codes in use of each codebook. Fewer and fewer: what later levels would add is noise that nobody can predict."""
FLAT = (128,) * LEVELS
"""Sizes for comparison: every code of every codebook in use."""

_CODEC = CodecSizes(
    decoder_dim=160,
    latent_dim=128,
    codebook_dim=64,
    transformer=StackSizes(hidden=128, intermediate=256, layers=2, heads=2, kv_heads=2, head_dim=64),
    encoder=StackSizes(hidden=96, intermediate=192, layers=1, heads=2, kv_heads=2, head_dim=48),
    encoder_filters=10,
)
VOICE = CheckpointRecipe(
    talker=StackSizes(hidden=256, intermediate=512, layers=6, heads=4, kv_heads=2, head_dim=64),
    predictor=StackSizes(hidden=128, intermediate=256, layers=2, heads=2, kv_heads=1, head_dim=64),
    codec=_CODEC,
    speaker_encoder=SpeakerEncoderSizes(channels=64, attention_channels=32, se_channels=32),
    codebook_size=128,
    text_hidden=128,
    dtype="bfloat16",
)
"""15 MB in all."""
BASE = replace(VOICE, variant="base")
"""The variant that clones: of the same sizes, with a speaker encoder of 0.5 MB, stored as its difference from
:data:`VOICE`.
"""
LARGE = replace(
    VOICE,
    talker=StackSizes(hidden=256, intermediate=640, layers=8, heads=4, kv_heads=2, head_dim=64),
    predictor=StackSizes(hidden=128, intermediate=384, layers=3, heads=2, kv_heads=1, head_dim=64),
)
"""20 MB in all: for the case that the other does not speak clearly enough."""


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """One talker to train."""

    name: str
    recipe: CheckpointRecipe
    flat_codes: bool = False
    """Train on the codec whose codebooks are all full."""
    highest_rate: float = 2e-3
    damage: float = 0.3
    kept_damage: float = 0.05


CANDIDATES = {
    candidate.name: candidate
    for candidate in (
        TrainingRun("voice", VOICE),
        TrainingRun("gentle", VOICE, highest_rate=1e-3, damage=0.15, kept_damage=0.02),
        TrainingRun("large", LARGE, highest_rate=1.5e-3),
        TrainingRun("flat", VOICE, flat_codes=True),
        TrainingRun("base", BASE, highest_rate=1e-3),
    )
}
