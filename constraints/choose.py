"""Chooses the set of constraints for a virtual environment by what the machine has, and says what that costs."""

import argparse
import ctypes
import re
import sys
from pathlib import Path

from dry_run import FOLDER, ResolverError, dry_run


def has_driver() -> bool:
    """Whether CUDA starts here, which is what torch itself asks before it uses a device."""
    try:
        return bool(ctypes.CDLL("libcuda.so.1").cuInit(0) == 0)
    except OSError:
        return False


def size() -> str:
    """Return the size on disk of the default build of torch for Linux and all else that `make demo` installs."""
    stated = re.search(r"^# size: (.+)$", (FOLDER / "cuda.txt").read_text(), re.MULTILINE)
    if stated is None:
        raise SystemExit("constraints/cuda.txt lacks its line '# size: ...': `make resolve` says what belongs there")
    return stated[1]


def cpu_options(wheels: str) -> list[str] | None:
    """Return the options with which pip finds a CPU build of torch; ``None`` if there is none."""
    for options in ([], ["--find-links", wheels]) if wheels else ([],):
        # A page out of reach is no error: pip warns and goes on without it.
        torch = dry_run(["torch"], FOLDER / "cpu.txt", *options, "--no-deps", "--retries", "0")[0]
        if torch.version.endswith("+cpu"):
            return options
    return None


def choose(torch: str, wheels: str) -> tuple[str, list[str], str]:
    """The set, pip's further options and a sentence for the user."""
    driver = has_driver()
    if torch == "cuda" or (torch == "auto" and driver):
        why = "an NVIDIA driver is here" if driver else "as asked for, though no NVIDIA driver is here"
        return "cuda", [], f"torch with CUDA: {why}. {size()}. TORCH=cpu takes less."
    why = "as asked for" if torch == "cpu" else "no NVIDIA driver is here"
    if sys.platform != "linux":
        return "cpu", [], f"torch as offered for this system: {why}."
    options = cpu_options(wheels)
    if options is not None:
        return "cpu", options, f"torch for CPUs: {why}. TORCH=cuda brings CUDA: {size()}."
    places = f"neither pip's indexes nor {wheels} offer" if wheels else "pip's indexes do not offer"
    return "cpu", [], f"torch in its default build, which brings CUDA: {why}, but {places} a CPU build. {size()}."


def main() -> None:
    """Writes the chosen set to a file for pip, once; asks nothing and prints nothing when that is done already."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--cpu-wheels", default="", help="a page of CPU builds, for when pip's indexes offer none")
    parser.add_argument("target", type=Path)
    given = parser.parse_args()
    if given.target.exists():
        before = given.target.read_text().split(maxsplit=3)[2]
        if given.torch not in ("auto", before):
            sys.exit(
                f"{given.target.parent} was made for TORCH={before}, not {given.torch}: "
                f"run `make clean` first, or keep both with VENV=.venv-{given.torch}"
            )
        return
    try:
        name, options, sentence = choose(given.torch, given.cpu_wheels)
    except ResolverError as error:
        sys.exit(f"pip cannot choose a build of torch:\n{error}")
    lines = [f"# torch: {name}", f"-c {FOLDER / name}.txt", " ".join(options)]
    given.target.write_text("\n".join(lines).rstrip() + "\n")
    sys.stdout.write(sentence + "\n")


if __name__ == "__main__":
    main()
