"""The conformance suite for backends: a pytest plug-in, the required and optional tests, and the benchmarks.

Run it with ``pytest -p megatalker_conformance.plugin --pyargs megatalker_conformance --backend NAME``.
"""
