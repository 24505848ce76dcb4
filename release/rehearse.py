"""Does everything that a release does but publish: ``make rehearsal``, and with ``TAG=v0.2.0`` the last checks."""

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from email import message_from_string
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOTICES = ("LICENSE", "THIRD_PARTY.md")
SECTION = re.compile(
    r"^## \[(?P<name>[^\]]+)\](?: - (?P<date>\d{4}-\d{2}-\d{2}))?\n(?P<text>.*?)(?=^## \[|\Z)", re.M | re.S
)


def faults_of_texts(version: str, changelog: str, tag: str | None) -> Iterator[str]:
    """Yield the faults of version, changelog and tag together; without a tag the changes may still be unreleased."""
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version):
        yield f"pyproject.toml has version {version!r}, expected a number such as 0.2.0 or 0.2.0rc1"
    sections = {found["name"]: found for found in SECTION.finditer(changelog)}
    if "Unreleased" not in sections:
        yield "CHANGELOG.md has no section [Unreleased]; keep an empty one on top"
    if tag is None:
        return
    if tag != f"v{version}":
        yield f"the tag is {tag!r}, expected 'v{version}', the version in pyproject.toml"
    if "Unreleased" in sections and sections["Unreleased"]["text"].strip():
        yield f"CHANGELOG.md still has changes under [Unreleased]; move them to [{version}]"
    if version not in sections or not sections[version]["date"]:
        yield f"CHANGELOG.md has no section '## [{version}] - YYYY-MM-DD'"


def faults_of_wheel(wheel: Path, version: str) -> Iterator[str]:
    """Yield the faults of a built wheel's metadata."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        folder = next(name.split("/")[0] for name in names if name.endswith(".dist-info/METADATA"))
        metadata = message_from_string(archive.read(f"{folder}/METADATA").decode())
    if metadata["Version"] != version:
        yield f"the wheel has version {metadata['Version']}, expected {version}"
    for name in NOTICES:
        if f"{folder}/licenses/{name}" not in names:
            yield f"the wheel lacks {name}; list it in license-files of pyproject.toml"


def contents(wheel: Path) -> dict[str, str]:
    """Return a digest of every file of a wheel, except the list of digests itself."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("RECORD")]
        return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in names}


def build(source: Path, target: Path, *kinds: str) -> list[Path]:
    """Build distributions of the project in ``source``."""
    options = [word for kind in kinds for word in ("--target", kind)]
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(target), *options]
    subprocess.run(command, cwd=source, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return sorted(target.iterdir())


def rehearse(folder: Path, version: str) -> Iterator[str]:
    """Build everything below ``folder``; what is wrong with it."""
    sdist, wheel = sorted(build(ROOT, folder / "dist", "sdist", "wheel"), key=lambda path: path.suffix)
    yield from faults_of_wheel(wheel, version)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "source", filter="data")
    (unpacked,) = (folder / "source").iterdir()
    yield from (
        f"the source distribution lacks {name}" for name in (*NOTICES, "README.md") if not (unpacked / name).is_file()
    )
    (again,) = build(unpacked, folder / "again", "wheel")
    ours, theirs = contents(wheel), contents(again)
    different = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
    if different:
        yield f"a wheel built from the source distribution differs in {', '.join(different[:5])}"
    for path in (sdist, wheel):
        sys.stdout.write(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB\n")


def main() -> None:
    """Print what was built; exit with 1 and a line for each fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tag", help="check that everything agrees with this tag, too")
    parser.add_argument("--keep", type=Path, help="leave what was built in this folder, in place of what it holds")
    options = parser.parse_args()
    tag, keep = options.tag or None, options.keep
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    faults = list(faults_of_texts(version, (ROOT / "CHANGELOG.md").read_text(), tag))
    if tag and subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, check=True).stdout:
        faults.append("the working tree has changes that are not committed")
    with tempfile.TemporaryDirectory() as folder:
        faults += rehearse(Path(folder), version)
        if keep is not None and not faults:
            shutil.rmtree(keep, ignore_errors=True)
            shutil.copytree(Path(folder) / "dist", keep)
    if faults:
        sys.exit("\n".join(faults))
    sys.stdout.write(
        f"megatalker {version} " + (f"can be released as {tag}\n" if tag else "builds; TAG=v... checks more\n")
    )


if __name__ == "__main__":
    main()
