"""``megatalker bench --require``: what may be required, and what is said of each bound."""

import pytest
from typer.testing import CliRunner

from megatalker.cli.bench.comparison import BackendComparison, Summary
from megatalker.cli.bench.metrics import METRICS, judge, read_requirements
from megatalker.cli.main import app
from megatalker.errors import SettingsError

MEDIANS = {"compiled": {"ttfc_ms": 31.2, "rtf": 0.16, "frame_ms": 5.8, "tokens_per_s": 2758.0, "audio_s": 4.0}}


@pytest.mark.parametrize(
    ("text", "met"),
    [
        ("ttfc<=90ms", True),
        ("ttfc <= 0.09 s", True),
        ("ttfc<=31200us", True),
        ("ttfc<31.2ms", False),
        ("ttfc<=31ms", False),
        ("rtf<=0.16", True),
        ("rtf<0.16", False),
        ("tokens>=2000/s", True),
        ("tokens>=3000/s", False),
        ("audio>=4000ms", True),
        ("ttfc<=90ms,rtf<=0.3, frame<=2ms", False),
        ("gap<=100ms", False),
    ],
)
def test_bounds_are_held_in_their_units(text: str, met: bool) -> None:
    assert judge(read_requirements(text), MEDIANS)[1] is met


def test_each_bound_is_answered_for_each_backend() -> None:
    medians = MEDIANS | {"reference": {"ttfc_ms": 93.0, "rtf": 0.86}}
    lines, met = judge(read_requirements("ttfc<=90ms,rtf<=1,frame<=6ms"), medians)
    assert not met
    assert lines == [
        "met      ttfc<=90ms: compiled has 31.2 ms (median)",
        "NOT MET  ttfc<=90ms: reference has 93 ms (median)",
        "met      rtf<=1: compiled has 0.16 (median)",
        "met      rtf<=1: reference has 0.86 (median)",
        "met      frame<=6ms: compiled has 5.8 ms (median)",
        "NOT MET  frame<=6ms: reference gave no such figure in this run",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ttfx<=90ms", "nothing measured is called 'ttfx'; did you mean 'ttfc'"),
        ("latency<=90ms", "called 'latency'; known: audio, codec, compute, frame, frames, gap,"),
        ("ttfc<=90", "the unit of ttfc is 'missing', expected 'us' or 'ms' or 's'"),
        ("ttfc<=90min", "the unit of ttfc is 'min', expected 'us' or 'ms' or 's'"),
        ("rtf<=0.3ms", "the unit of rtf is 'ms', expected none: it is a ratio"),
        ("tokens>=100ms", "the unit of tokens is 'ms', expected '/s'"),
        ("ttfc=90ms", "has another form than NAME<=VALUE"),
        ("ttfc<=90ms,", "requirement '' has another form"),
        ("ttfc<=-1ms", "has another form"),
    ],
)
def test_a_bound_that_cannot_be_understood_is_refused_before_anything_is_measured(text: str, message: str) -> None:
    with pytest.raises(SettingsError) as error:
        read_requirements(text)
    assert message in str(error.value)
    done = CliRunner().invoke(app, ["bench", "--require", text, "--checkpoint", "/nowhere"])
    assert done.exit_code == 2
    assert "--require" in done.output


@pytest.mark.parametrize(("bound", "status"), [("ttfc<=90ms", 0), ("ttfc<=9ms", 1)])
def test_the_exit_status_says_whether_all_are_met(monkeypatch: pytest.MonkeyPatch, bound: str, status: int) -> None:
    found = BackendComparison("", {}, 1, 8, {"compiled": {"ttfc_ms": Summary.of([31.0])}})
    monkeypatch.setattr("megatalker.cli.bench.measure.measure", lambda *_, **__: found)
    done = CliRunner().invoke(app, ["bench", "--require", bound])
    assert done.exit_code == status
    assert f"{bound}: compiled has 31 ms" in done.output


def test_names_are_distinct() -> None:
    names = [metric.name for metric in METRICS.values() if metric.name]
    assert len(names) == len(set(names)) == len(METRICS) - 1
