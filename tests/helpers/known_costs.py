"""Costs of launches on about an H200, and on devices of other speeds."""

from megatalker.engine.costs import (
    MOST_CODEC_FRAMES,
    Cost,
    Costs,
)

NOW = 50.0
AUDIO_S = 0.001, 6e-5
"""Seconds of a codec step, and of each of its frames."""


def line(fixed_s: float, each_s: float, *sizes: int) -> Cost:
    cost = Cost()
    for size in sizes:
        cost.observe(size, fixed_s + size * each_s)
    return cost


def known(*, prefill: Cost | None = None, speed: float = 1.0) -> Costs:
    """Return the costs of about an H200, or of a device ``speed`` times as fast."""
    costs = Costs(
        prefill=prefill or line(0.008 / speed, 1.5e-5 / speed, 20, 2000),
        decode=line(0.004 / speed, 3e-5 / speed, 8, 400),
    )
    for frames in (8, MOST_CODEC_FRAMES, MOST_CODEC_FRAMES):
        costs.observe_codec(frames, (AUDIO_S[0] + frames * AUDIO_S[1]) / speed, warm=True)
    return costs


def needing(share: float, streams: int) -> Costs:
    """Return costs with which ``streams`` streams need this share of the time."""
    return known(speed=known().need(streams) / share)
