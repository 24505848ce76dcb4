"""The pytest plug-in: options, choice of backends, report header, and what the run
measured at its end.

Not registered in the ``pytest11`` group: nobody's own test runs shall grow a ``--backend`` option. Load it with
``-p megatalker_conformance.plugin`` or ``pytest_plugins = ["megatalker_conformance.plugin"]``.
"""

import warnings

import pytest

from megatalker.checkpoint.cache import cache_folder
from megatalker.engine.interpreter import spare_what_is_loaded
from megatalker.errors import MegatalkerError
from megatalker.plugins.device import DTYPES
from megatalker_conformance.kept import KEPT_IN
from megatalker_conformance.measure import measured_lines
from megatalker_conformance.selection import SELECTION, Selection, version_line
from megatalker_conformance.timing import record_oracle_time, time_lines

pytest_plugins = ["megatalker_conformance.fixtures"]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("megatalker", "megatalker conformance")
    group.addoption(
        "--backend",
        action="append",
        default=[],
        metavar="NAME",
        help="talker backend to judge; repeatable; 'all': every available one (default without --backend and --codec)",
    )
    group.addoption(
        "--codec",
        action="append",
        default=[],
        metavar="NAME",
        help="codec to judge; repeatable; 'all': every available one (default without --backend and --codec)",
    )
    group.addoption(
        "--checkpoint",
        default="tiny",
        help="'tiny' (default: a small random checkpoint, made for this run), 'demo', a folder, or a hub id",
    )
    group.addoption("--device", default="auto", help="auto (default: cuda where there is one), cpu, cuda or cuda:N")
    group.addoption(
        "--dtype",
        default="float32",
        choices=sorted(DTYPES),
        help="talker weights and arithmetic; the 16-bit types are judged by errors against the float32 oracle",
    )
    group.addoption("--frames", type=int, default=60, help="frames per parity run (default 60)")
    group.addoption(
        "--conformance-seed",
        type=int,
        default=0,
        metavar="N",
        help="of everything that tests draw at random (default 0); the same seed draws the same",
    )
    group.addoption(
        "--shorten",
        type=int,
        default=1000,
        metavar="CALLS",
        help="calls spent on shortening a schedule that goes wrong (default 1000; 0: report it as it is)",
    )
    group.addoption("--codec-frames", type=int, default=1500, help="frames of the longest codec run (default 1500)")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    # The suite has no coroutine tests: where pytest-asyncio happens to be installed, nobody has to set it up for them.
    # pytest undoes this filter after the configuration.
    warnings.filterwarnings("ignore", r"The configuration option \"asyncio_default_fixture_loop_scope\" is unset")
    config.addinivalue_line("markers", "optional: not needed to pass; runs where the backend's capabilities allow it")
    config.addinivalue_line("markers", "xdist_group(name): tests of one backend, for pytest-xdist")
    chosen = config.option
    if not (getattr(chosen, "benchmark_only", True) or getattr(chosen, "benchmark_enable", True)):
        chosen.benchmark_skip = True


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Resolve every name before anything is collected: an unknown or unavailable backend is an error, never a skip."""
    config = session.config
    try:
        selection = Selection.make(
            backends=config.getoption("--backend"),
            codecs=config.getoption("--codec"),
            checkpoint=config.getoption("--checkpoint"),
            device=config.getoption("--device"),
            dtype=config.getoption("--dtype"),
        )
    except MegatalkerError as error:
        raise pytest.UsageError(str(error)) from error
    config.stash[SELECTION] = selection
    config.add_cleanup(selection.close)


def pytest_report_header(config: pytest.Config) -> list[str]:
    seed = f"seed: {config.getoption('--conformance-seed')} (repeat with --conformance-seed)"
    return [version_line(), *config.stash[SELECTION].describe(), f"{seed}; oracle: {cache_folder(KEPT_IN)}"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    selection = metafunc.config.stash[SELECTION]
    for fixture, names in selection.parameters().items():
        if fixture in metafunc.fixturenames:
            # With pytest-xdist --dist loadgroup each backend is loaded and compiled by one process only.
            each = [pytest.param(name, marks=pytest.mark.xdist_group(f"{fixture} {name}")) for name in names]
            metafunc.parametrize(fixture, each, scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect talker tests where only ``--codec`` is given, and codec tests where only ``--backend`` is."""
    unused = {fixture for fixture, names in config.stash[SELECTION].parameters().items() if not names}
    dropped = [item for item in items if unused & set(getattr(item, "fixturenames", ()))]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item not in dropped]


def pytest_collection_finish() -> None:
    """Tests ask for many full garbage collections: these need not look at all that was imported."""
    spare_what_is_loaded()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> None:
    record_oracle_time(item)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [
        report
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport)
    ]
    for title, lines in (
        ("measured against the oracle", measured_lines([report for report in reports if report.when == "call"])),
        ("where the time went", time_lines(reports)),
    ):
        if lines:
            terminalreporter.section(title)
            for line in lines:
                terminalreporter.line(line)
