"""Warm-up: a backend that was asked for by name is that backend or an error."""

import time

import pytest

from engine_stage import TEXT, Opener
from fake_backend import Behaviour, Fakes
from megatalker.engine.worker import Worker
from megatalker.errors import BackendUnavailableError, SettingsError


def no_compiler() -> None:
    raise RuntimeError("no compiler")


BROKEN = Behaviour(on_warmup=no_compiler)


@pytest.mark.parametrize(
    ("kind", "fakes"),
    [
        ("talker", Fakes(talkers={"first": BROKEN, "second": Behaviour()})),
        ("codec", Fakes(codecs={"first": BROKEN, "second": Behaviour()})),
    ],
)
def test_a_backend_asked_for_by_name_that_cannot_warm_up_is_an_error(
    open_engine: Opener, kind: str, fakes: Fakes
) -> None:
    engine = open_engine(fakes, **{"backend" if kind == "talker" else "codec": "first"})
    message = rf"{kind} backend 'first' was asked for by name and cannot be used here: .*no compiler"
    with pytest.raises(BackendUnavailableError, match=message):
        engine.warmup()
    with pytest.raises(BackendUnavailableError, match=message):
        engine.speak(TEXT)
    assert "second" not in fakes.loaded


def test_who_knows_that_warmup_failed_is_served_no_more(open_engine: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the engine takes to note it."""
    fail = Worker._fail
    monkeypatch.setattr(Worker, "_fail", lambda worker, error: (time.sleep(0.2), fail(worker, error)))
    engine = open_engine(Fakes(talkers={"first": BROKEN, "second": Behaviour()}), backend="first")
    for use in (engine.warmup, lambda: engine.speak(TEXT)):
        with pytest.raises(BackendUnavailableError, match="no compiler"):
            use()


def test_auto_goes_on_with_the_next_backend_and_says_so(open_engine: Opener) -> None:
    engine = open_engine(Fakes(talkers={"first": BROKEN, "second": Behaviour()}))
    engine.warmup()
    assert engine.backend == "second"
    assert "no compiler" in engine.metrics().faulty["talker first"]


def test_running_speech_goes_on_elsewhere_while_the_caller_of_warmup_gets_the_error(open_engine: Opener) -> None:
    fakes = Fakes(talkers={"first": BROKEN, "second": Behaviour(frames=None)})
    engine = open_engine(fakes, backend="first", max_frames=60, max_untaken_s=0.5)
    fakes.talkers["first"].frames = None
    stream = engine.speak(TEXT)
    next(stream)
    with pytest.raises(BackendUnavailableError, match="'first' was asked for by name"):
        engine.warmup()
    stream.read_all()
    assert [switch.target for switch in stream.switches] == ["second"]
    assert stream.facts().frames == 60


def test_a_setting_that_cannot_be_met_is_an_error_whoever_chose_the_backend(open_engine: Opener) -> None:
    def refuse() -> None:
        raise SettingsError("setting backends.first.compile is 'on', but there is no compiler")

    fakes = Fakes(talkers={"first": Behaviour(on_warmup=refuse), "second": Behaviour()})
    engine = open_engine(fakes)
    with pytest.raises(SettingsError, match=r"backends\.first\.compile"):
        engine.warmup()
    assert "second" not in fakes.loaded
