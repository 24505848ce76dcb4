"""Asks a resolver, installing nothing: do all sets resolve on the public index alone, on every Python we name?

uv answers in seconds what takes pip minutes, and knows the markers and wheels of a Python that is not here. A wheel
folder, a further index or a configuration file of this machine is left out.
"""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dry_run import FOLDER, LINES, ResolverError

PROJECT = FOLDER.parent
SETS = ("cpu", "cuda", "newest")
EXTRAS = ("--extra", "dev", "--extra", "ray")
"""``ray`` has an environment of its own, of the same versions."""
DEMO = ("--extra", "official")
"""Extras that `make demo` installs."""
INDEX = ("--default-index", "https://pypi.org/simple")
REACH = {
    "PIP_CERT": "SSL_CERT_FILE",
    "PIP_CLIENT_CERT": "SSL_CLIENT_CERT",
    "PIP_DEFAULT_TIMEOUT": "UV_HTTP_TIMEOUT",
    "PIP_PROXY": "HTTPS_PROXY",
}
"""Options of pip that say how to reach an index, and their names in uv."""
UNTRIED = ["3.14"]
"""Python versions on which all sets must resolve, and on which nothing has been run."""
LEFT_TO_TORCH = re.compile(r"triton|nvidia-.*")
TOLERANCE = 0.05


@dataclass(frozen=True, slots=True)
class Locked:
    """One distribution that was chosen."""

    name: str
    version: str
    size: int
    """Bytes of the wheel, of the largest if several fit; of the source where there is no wheel."""


def versions() -> list[str]:
    """The Python versions that the project names, such as ``3.12``."""
    classifiers = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["classifiers"]
    return [name.rpartition(" ")[2] for name in classifiers if re.fullmatch(r".*Python :: 3\.\d+", name)]


def public() -> dict[str, str]:
    """An environment in which uv knows no index; it is reached as pip would reach one."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("UV_") or name == "UV_CACHE_DIR"}
    return kept | {ours: kept[pips] for pips, ours in REACH.items() if pips in kept}


def lock(requirements: Path, constraints: Path, version: str, *options: str) -> list[Locked]:
    """Return the packages that would be installed on a Python of that version, for this machine's platform.

    Raises:
        ResolverError: the requirements and constraints contradict each other, or the index lacks something.
    """
    command = [sys.executable, "-m", "uv", "pip", "compile", str(requirements), "--constraints", str(constraints)]
    command += ["--python-version", version, "--no-python-downloads", "--format", "pylock.toml", *options]
    command += ["--no-config", "--quiet", *INDEX]
    ran = subprocess.run(command, capture_output=True, text=True, env=public(), check=False)
    if ran.returncode != 0:
        raise ResolverError("\n".join(ran.stderr.splitlines()[-LINES:]))
    return [
        Locked(item["name"], item["version"], max(file.get("size", 0) for file in _files(item)))
        for item in tomllib.loads(ran.stdout).get("packages", [])
    ]


def _files(item: dict[str, Any]) -> list[dict[str, Any]]:
    return item.get("wheels") or [item["sdist"]]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(file: Path) -> set[str]:
    """The packages that a set pins, by normalised name, with those of the sets it includes."""
    lines = file.read_text().splitlines()
    own = {normal(found[1]) for line in lines if (found := re.match(r"([\w.-]+)==", line))}
    included = (file.parent / line.split()[1] for line in lines if line.startswith("-c "))
    return own.union(*map(pins, included))


def loose(chosen: Iterable[Locked], constraints: Path) -> list[str]:
    """Return the chosen packages that have no pin, except those of torch: tomorrow they may be other versions."""
    names = {normal(item.name): item for item in chosen}
    free = sorted(names.keys() - pins(constraints))
    return [f"{name}=={names[name].version}" for name in free if not LEFT_TO_TORCH.fullmatch(name)]


def check_set(name: str, version: str) -> str | None:
    """Say what is wrong with a set on one Python; ``None`` if nothing is."""
    constraints = FOLDER / f"{name}.txt"
    try:
        chosen = lock(PROJECT / "pyproject.toml", constraints, version, *EXTRAS)
    except ResolverError as error:
        return f"{name} does not resolve on Python {version}:\n{error}"
    free = loose(chosen, constraints)
    return f"{name} leaves versions open on Python {version}, pin them in base.txt: {', '.join(free)}" if free else None


def check_size() -> str | None:
    """Say what is wrong with the stated size of the download; ``None`` if nothing is."""
    file = FOLDER / "cuda.txt"
    stated = re.search(r"^# size: ([\d.]+) GB to download, .*Python ([\d.]+)\)$", file.read_text(), re.MULTILINE)
    if stated is None:
        return "cuda.txt lacks its line '# size: ... GB to download, ... GB on disk (..., Python 3...)'"
    try:
        chosen = lock(PROJECT / "pyproject.toml", file, stated[2], *DEMO)
        measured = sum(item.size for item in chosen) / 1e9
    except ResolverError:
        return None  # the set does not resolve: said by check_set
    if abs(float(stated[1]) / measured - 1) <= TOLERANCE:
        return None
    return f"cuda.txt states another size: write '# size: {measured:.1f} GB to download, ' and what `du -s .venv` says"


def main() -> None:
    """Prints a line for each set and Python; exits with 1 if anything is wrong."""
    jobs = [(name, version) for version in versions() + UNTRIED for name in SETS]
    wrong = []
    with ThreadPoolExecutor(len(jobs) + 1) as pool:  # uv mostly waits for the index
        size = pool.submit(check_size)
        for job, fault in zip(jobs, pool.map(lambda job: check_set(*job), jobs), strict=True):
            sys.stdout.write(f"{job[0]} on Python {job[1]}: {'resolves' if fault is None else 'FAILS'}\n")
            sys.stdout.flush()
            wrong.append(fault)
        wrong.append(size.result())
    if faults := [fault for fault in wrong if fault is not None]:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
