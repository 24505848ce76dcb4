"""The figures of ``megatalker bench``: what each is called in reports and in ``--require``, and its unit."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Unit = Literal["ms", "s", "/s", ""]


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure."""

    name: str
    """In ``--require``; empty: nothing can be required of it."""
    label: str
    """In tables and plots."""
    unit: Unit
    """Of the values in reports."""

    @property
    def more_is_better(self) -> bool:
        return self.unit == "/s"


METRICS: Mapping[str, Metric] = {
    "ttfc_ms": Metric("ttfc", "TTFC (ms)", "ms"),
    "rtf": Metric("rtf", "RTF", ""),
    "longest_chunk_gap_ms": Metric("gap", "longest gap between chunks (ms)", "ms"),
    "compute_s": Metric("compute", "total compute of the utterance (s)", "s"),
    "audio_s": Metric("audio", "audio duration of the utterance (s)", "s"),
    "prefill_ms": Metric("prefill", "prefill of 32 rows (ms)", "ms"),
    "talker_ms": Metric("talker", "talker alone, one pass over 2 rows (ms)", "ms"),
    "frame_ms": Metric("frame", "talker and predictor, one frame (ms)", "ms"),
    "frames_per_s": Metric("frames", "frames a second, one stream", "/s"),
    "tokens_per_s": Metric("tokens", "tokens a second, one stream", "/s"),
    "codec_ms_1_frame": Metric("codec", "codec, 1 frame (ms)", "ms"),
    "codec_ms_8_frames": Metric("", "codec, 8 frames (ms)", "ms"),
}
"""By the name in reports. ``frame_ms_N_streams`` comes beside them, N being as many as the backend takes, at most 4."""


def metric(key: str) -> Metric:
    """What is known of a figure in a report."""
    if key.startswith("frame_ms_"):
        return Metric("", f"one frame of {key.removeprefix('frame_ms_').replace('_', ' ')} (ms)", "ms")
    return METRICS[key]
