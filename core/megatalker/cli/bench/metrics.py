"""The figures of ``megatalker bench``, and bounds on them: ``--require "ttfc<=90ms,rtf<=0.3"``."""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from megatalker.errors import SettingsError, suggest

Unit = Literal["ms", "s", "/s", ""]


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure."""

    name: str
    """Its name in ``--require``; empty: nothing can be required of it."""
    label: str
    """Its name in tables and plots."""
    unit: Unit
    """The unit of values in reports."""

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
"""Figures by the name in reports. ``frame_ms_N_streams`` is another, where N is what the backend takes, at most 4."""


def metric(key: str) -> Metric:
    """Return the description of a figure in a report."""
    if key.startswith("frame_ms_"):
        return Metric("", f"one frame of {key.removeprefix('frame_ms_').replace('_', ' ')} (ms)", "ms")
    return METRICS[key]


_FORM = re.compile(r"(?P<name>\w+)\s*(?P<sign><=|>=|<|>)\s*(?P<limit>\d+(?:\.\d+)?)\s*(?P<unit>[a-zµ/]*)")
_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_UNITS: Mapping[Unit, Mapping[str, float]] = {
    "ms": {"us": 1e-3, "ms": 1.0, "s": 1e3},
    "s": {"us": 1e-6, "ms": 1e-3, "s": 1.0},
    "/s": {"/s": 1.0},
    "": {"": 1.0},
}
"""Units of a requirement for each unit of a report, as multiples of the report's unit."""
_KEYS = {metric.name: key for key, metric in METRICS.items() if metric.name}


@dataclass(frozen=True, slots=True)
class Requirement:
    """One bound."""

    text: str
    """The bound as it was given."""
    key: str
    """The figure's name in reports."""
    sign: str
    limit: float
    """The limit in the report's unit."""

    def holds(self, value: float) -> bool:
        """Whether a measured value is within the bound."""
        return _COMPARE[self.sign](value, self.limit)

    def verdict(self, subject: str, value: float | None) -> str:
        """Say in one line whether what was measured of ``subject`` meets the bound; ``None``: nothing was measured."""
        if value is None:
            return f"NOT MET  {self.text}: {subject} gave no such figure in this run"
        unit = METRICS[self.key].unit
        found = f"{value:.3g}{f' {unit}' if unit.isalpha() else unit}"
        return f"{'met     ' if self.holds(value) else 'NOT MET '} {self.text}: {subject} has {found} (median)"


def read_requirements(text: str) -> list[Requirement]:
    """Read the comma-separated bounds of ``text``.

    Raises:
        SettingsError: one has another form, an unknown name or unit, or no unit where one belongs.
    """
    return [_read(part.strip()) for part in text.split(",")]


def judge(requirements: Sequence[Requirement], medians: Mapping[str, Mapping[str, float]]) -> tuple[list[str], bool]:
    """Return a line for each requirement and subject, and whether all are met.

    Args:
        requirements: each must hold for each subject.
        medians: medians by subject, such as a backend, and by the figure's name in reports.
    """
    found = [(bound, subject, values.get(bound.key)) for bound in requirements for subject, values in medians.items()]
    lines = [bound.verdict(subject, value) for bound, subject, value in found]
    return lines, all(value is not None and bound.holds(value) for bound, _, value in found)


def _read(text: str) -> Requirement:
    match = _FORM.fullmatch(text)
    if match is None:
        raise SettingsError(f"requirement {text!r} has another form than NAME<=VALUE, such as ttfc<=90ms")
    name, sign, limit, unit = match.group("name", "sign", "limit", "unit")
    if name not in _KEYS:
        raise SettingsError(f"requirement {text!r}: nothing measured is called {name!r}{suggest(name, sorted(_KEYS))}")
    key = _KEYS[name]
    units = _UNITS[METRICS[key].unit]
    if unit not in units:
        expected = " or ".join(repr(each) for each in units) if all(units) else "none: it is a ratio"
        raise SettingsError(f"requirement {text!r}: the unit of {name} is {unit or 'missing'!r}, expected {expected}")
    return Requirement(text, key, sign, float(limit) * units[unit])
