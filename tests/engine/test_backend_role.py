"""Messages about backends that cannot fill a role."""

import logging

import pytest

from megatalker.engine.backend_role import BackendOption, BackendRole
from megatalker.plugins.checked import CheckedTalker


def option(name: str, reason: str | None) -> BackendOption[CheckedTalker]:
    def load() -> CheckedTalker:
        raise AssertionError("nothing is loaded")

    return BackendOption(name, lambda: reason, load)


@pytest.fixture
def role() -> BackendRole[CheckedTalker]:
    options = [option("fast", None), option("official", "it is not installed; pip install it"), option("slow", None)]
    return BackendRole("talker", options, strict=False)


def test_fallbacks_that_cannot_run_are_told_before_one_is_needed(
    role: BackendRole[CheckedTalker], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    role.tell_left_out()
    assert caplog.messages == ["talker backend official is left out of failover: it is not installed; pip install it"]


def test_the_last_error_tells_who_failed_and_who_could_not_run(role: BackendRole[CheckedTalker]) -> None:
    role.give_up("fast", "it raised")
    role.give_up("slow", "it hung")
    assert role.next() is None
    said = "fast: it raised; slow: it hung; official: it is not installed; pip install it; no other can take over"
    assert role.why_empty() == f"no talker backend is left ({said})"
