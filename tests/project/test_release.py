"""The rehearsal of a release says what is wrong, and finds nothing wrong with what is here."""

import importlib
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2026-11-30\n\n- More.\n\n## [0.1.0] - 2026-11-01\n\n- A.\n"


@pytest.fixture
def rehearsal(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "release"))
    return importlib.import_module("rehearse")


@pytest.mark.parametrize(
    ("version", "changelog", "tag", "fault"),
    [
        ("0.2", CHANGELOG, None, "version '0.2', expected"),
        ("0.2.0", CHANGELOG.replace("[Unreleased]", "[Next]"), None, "no section [Unreleased]"),
        ("0.2.0", CHANGELOG, "0.2.0", "the tag is '0.2.0', expected 'v0.2.0'"),
        ("0.2.0", CHANGELOG, "v0.2.1", "the tag is 'v0.2.1', expected 'v0.2.0'"),
        ("0.3.0", CHANGELOG, "v0.3.0", "no section '## [0.3.0] - YYYY-MM-DD'"),
        ("0.2.0", CHANGELOG.replace(" - 2026-11-30", ""), "v0.2.0", "no section '## [0.2.0] - YYYY-MM-DD'"),
        ("0.2.0", CHANGELOG.replace("[Unreleased]\n", "[Unreleased]\n\n- B.\n"), "v0.2.0", "still has changes"),
    ],
)
def test_version_changelog_and_tag_agree(
    rehearsal: ModuleType, version: str, changelog: str, tag: str | None, fault: str
) -> None:
    (found,) = rehearsal.faults_of_texts(version, changelog, tag)
    assert fault in found


def test_agreeing_versions_are_no_fault(rehearsal: ModuleType) -> None:
    unreleased = CHANGELOG.replace("[Unreleased]\n", "[Unreleased]\n\n- B.\n")
    assert not list(rehearsal.faults_of_texts("0.2.0", CHANGELOG, "v0.2.0"))
    assert not list(rehearsal.faults_of_texts("0.1.0", unreleased, None)), "a rehearsal before the changes are dated"


def test_a_wheel_has_its_version_and_notices(rehearsal: ModuleType, tmp_path: Path) -> None:
    files = {"megatalker-1.dist-info/METADATA": "Version: 1\n"}
    files |= {f"megatalker-1.dist-info/licenses/{name}": "" for name in rehearsal.NOTICES}

    def faults(*missing: str, **more: str) -> list[str]:
        wheel = tmp_path / "one.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for name, text in (files | more).items():
                if name not in missing:
                    archive.writestr(name, text)
        return list(rehearsal.faults_of_wheel(wheel, "1"))

    assert not faults()
    (notice,) = faults("megatalker-1.dist-info/licenses/THIRD_PARTY.md")
    assert "lacks THIRD_PARTY.md" in notice
    (version,) = faults(**{"megatalker-1.dist-info/METADATA": "Version: 2\n"})
    assert version == "the wheel has version 2, expected 1"


@pytest.mark.slow
def test_a_release_of_this_tree_can_be_rehearsed(
    rehearsal: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["rehearse.py", "--tag", ""])
    rehearsal.main()
    assert "builds" in capsys.readouterr().out
