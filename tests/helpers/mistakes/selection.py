"""A pytest plug-in: of the suite's tests, those that show the mistakes of this run, each beside its healthy backend.

A test that has failed for a mistake is not tried with its other parameters.
"""

from collections import defaultdict

import pytest

from mistakes import CATALOGUE


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted: defaultdict[str, set[str]] = defaultdict(set)
    judged = {*config.getoption("--backend"), *config.getoption("--codec")}
    for mistake in CATALOGUE:
        if mistake.backend.name in judged:
            wanted[mistake.backend.name] |= mistake.caught_by
            wanted[mistake.healthy.name] |= mistake.caught_by
    items[:] = [item for item in items if _test(item) in wanted[_backend(item)]]


CAUGHT = pytest.StashKey[set[tuple[str, str]]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[CAUGHT] = set()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if (_backend(item), _test(item)) in item.config.stash[CAUGHT]:
        pytest.skip("caught already")


def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    if isinstance(node, pytest.Item):
        node.config.stash[CAUGHT].add((_backend(node), _test(node)))


def _test(item: pytest.Item) -> str:
    assert isinstance(item, pytest.Function)
    return item.originalname


def _backend(item: pytest.Item) -> str:
    parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    return str(parameters.get("talker_name") or parameters.get("codec_name"))
