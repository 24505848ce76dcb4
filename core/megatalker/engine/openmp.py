"""Threads of OpenMP, which run torch's operations. Their library reads its settings when torch is loaded."""

import os
from collections.abc import Mapping, MutableMapping

WAITS = "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"
"""Either of these says how long a thread without work waits awake."""
ROUNDS = "1000"
"""About 50 µs, what GNU's OpenMP takes by itself where threads outnumber cores. Otherwise it takes 300,000: 15 ms in
which a thread without work keeps a core from ONNX Runtime's threads and from other processes."""


def says_how_threads_wait(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment chooses how long threads without work wait awake."""
    return any(name in environment for name in WAITS)


def let_threads_sleep(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let threads without work sleep soon, in processes that load torch with this environment, unless it says more."""
    if not says_how_threads_wait(environment):
        environment[WAITS[0]] = ROUNDS
