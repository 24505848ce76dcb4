"""Asks the resolver, installing nothing: do both sets resolve on the public index alone, on every Python we name?

A wheel folder, a further index or a configuration file of this machine is left out. Markers are those of a real
interpreter; a Python that is not here is named and skipped, and fails the check where ``CI`` is set.
"""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import Request, urlopen

from dry_run import FOLDER, Chosen, ResolverError, dry_run

PROJECT = FOLDER.parent
SETS = ("cpu", "cuda")
KEPT = {"PIP_CERT", "PIP_CLIENT_CERT", "PIP_DEFAULT_TIMEOUT", "PIP_PROXY"}  # how to reach the index, not which one
LEFT_TO_TORCH = re.compile(r"megatalker|triton|nvidia-.*")
TOLERANCE = 0.05


def versions() -> list[str]:
    """The Python versions that the project names, such as ``3.12``."""
    classifiers = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["classifiers"]
    return [name.rpartition(" ")[2] for name in classifiers if re.fullmatch(r".*Python :: 3\.\d+", name)]


def interpreter(version: str) -> str | None:
    """A Python of that version: this one, one on the path, or one of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    places = [sys.executable, f"python{version}", *map(str, sorted(pyenv.glob(f"{version}.*/bin/python")))]
    for place in places:
        try:
            ask = [place, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
            said = subprocess.run(ask, capture_output=True, text=True, check=False).stdout
        except FileNotFoundError:
            continue
        if said.strip() == version:
            return place
    return None


def public() -> dict[str, str]:
    """An environment in which pip knows the public index and nothing else."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PIP_") or name in KEPT}
    return {**kept, "PIP_CONFIG_FILE": os.devnull}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(file: Path) -> set[str]:
    """The packages that a set pins, by normalised name, with those of the sets it includes."""
    lines = file.read_text().splitlines()
    own = {normal(found[1]) for line in lines if (found := re.match(r"([\w.-]+)==", line))}
    included = (file.parent / line.split()[1] for line in lines if line.startswith("-c "))
    return own.union(*map(pins, included))


def loose(chosen: Iterable[Chosen], constraints: Path) -> list[str]:
    """What was chosen without a pin, though it is not torch's own: tomorrow it may be another version."""
    names = {normal(item.name): item for item in chosen}
    free = sorted(names.keys() - pins(constraints))
    return [f"{name}=={names[name].version}" for name in free if not LEFT_TO_TORCH.fullmatch(name)]


def gigabytes(chosen: Iterable[Chosen]) -> float:
    """What the index says the files weigh, the project itself left out."""

    def weigh(item: Chosen) -> int:
        with urlopen(Request(item.url, method="HEAD"), timeout=60) as answer:
            return int(answer.headers["Content-Length"])

    with ThreadPoolExecutor(8) as pool:
        return sum(pool.map(weigh, (item for item in chosen if item.url.startswith("https:")))) / 1e9


def check_set(name: str, version: str, python: str) -> str | None:
    """What is wrong with a set on one Python; ``None`` if nothing is."""
    constraints = FOLDER / f"{name}.txt"
    try:
        chosen = dry_run(["--editable", f"{PROJECT}[dev]"], constraints, python=python, environment=public())
    except ResolverError as error:
        return f"{name} does not resolve on Python {version}:\n{error}"
    free = loose(chosen, constraints)
    return f"{name} leaves versions open on Python {version}, pin them in base.txt: {', '.join(free)}" if free else None


def check_size() -> str | None:
    """What is wrong with the stated size of the download; ``None`` if nothing is."""
    file = FOLDER / "cuda.txt"
    stated = re.search(r"^# size: ([\d.]+) GB to download, ", file.read_text(), re.MULTILINE)
    try:
        measured = gigabytes(dry_run(["--editable", str(PROJECT)], file, environment=public()))
    except ResolverError:
        return None  # the set does not resolve: said by check_set
    if stated is not None and abs(float(stated[1]) / measured - 1) <= TOLERANCE:
        return None
    return f"cuda.txt states another size: write '# size: {measured:.1f} GB to download, ' and what `du -s .venv` says"


def main() -> None:
    """Prints a line for each set and Python; exits with 1 if anything is wrong."""
    pythons = {version: interpreter(version) for version in versions()}
    missing = [version for version, python in pythons.items() if python is None]
    jobs = [(name, version, python) for version, python in pythons.items() if python for name in SETS]
    wrong = []
    with ThreadPoolExecutor(len(jobs) + 1) as pool:  # pip mostly waits for the index
        size = pool.submit(check_size)
        for job, fault in zip(jobs, pool.map(lambda job: check_set(*job), jobs), strict=True):
            sys.stdout.write(f"{job[0]} on Python {job[1]}: {'resolves' if fault is None else 'FAILS'}\n")
            sys.stdout.flush()
            wrong.append(fault)
        wrong.append(size.result())
    for version in missing:
        sys.stdout.write(f"NOT CHECKED on Python {version}: no python{version} on the path, none of pyenv\n")
    if missing and os.environ.get("CI"):
        wrong.append(f"CI has to check Python {', '.join(missing)} too: install it")
    if faults := [fault for fault in wrong if fault is not None]:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
