"""Promises are quoted as the contract has them, and a broken one is reported in full."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

from megatalker_conformance import promises
from megatalker_conformance.promises import INDEPENDENCE, Promise, broken

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "conformance.md"
EACH = {name: value for name, value in vars(promises).items() if isinstance(value, Promise)}


@pytest.mark.parametrize("promise", [pytest.param(promise, id=name) for name, promise in EACH.items()])
def test_the_contract_says_so(promise: Promise) -> None:
    module = importlib.import_module(promise.module)
    said = inspect.getsource(getattr(module, promise.name)) if promise.name else inspect.getdoc(module)
    assert promise.quote in " ".join((said or "").split())


def test_each_file_of_tests_stands_in_the_documentation() -> None:
    files = {path.name for path in Path(promises.__file__).parent.glob("test_*.py")}
    assert files == set(re.findall(r"`(test_\w+\.py)`", DOCUMENTATION.read_text()))


def test_a_report_holds_promise_input_expected_found_and_contract() -> None:
    with pytest.raises(pytest.fail.Exception) as failure:
        broken(INDEPENDENCE, shown_by="start A\ndecode A", expected=(1, 2), found=(1, 3))
    assert str(failure.value).splitlines() == [
        "broken promise: a stream says the same whoever else is there, whatever they do and whoever was there before",
        "shown by: start A",
        "          decode A",
        "expected: (1, 2)",
        "found:    (1, 3)",
        "contract: megatalker/interfaces.py, TalkerDecoder: \"A stream's codes depend on its own request and steps "
        'only, never on its neighbours in a batch."',
    ]
