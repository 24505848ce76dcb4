"""Lets `pytest conformance_tests --backend NAME` run from a checkout, without naming the plug-in."""

pytest_plugins = ["megatalker_conformance.plugin"]
