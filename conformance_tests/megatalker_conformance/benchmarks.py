"""The suite's benchmarks alone: ``megatalker bench conformance --backend NAME``; options are those of pytest."""

import sys

import pytest


def main() -> int:
    """Run them with pytest-benchmark."""
    suite = ("-p", "megatalker_conformance.plugin", "--pyargs", "megatalker_conformance", "--benchmark-only")
    return pytest.main([*suite, *sys.argv[1:]])
