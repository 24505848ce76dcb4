"""Prompts of a trial: those that come along, files, and datasets in the layout of seed-tts-eval."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import soundfile

from megatalker.checkpoint import Checkpoint
from megatalker.cli.verify.quality_options import QualityOptions
from megatalker.errors import InvalidRequestError
from megatalker_conformance.quality import sources
from megatalker_conformance.quality.prompts import built_in, dataset
from megatalker_conformance.quality.sources import find_prompts

LINES = {
    "en": [
        "one|We said so.|prompt-wavs/one.wav|Good morning.",
        "two|Yes.|prompt-wavs/two.wav|Good evening.|wavs/two.wav",
    ],
    "zh": ["eins|你好|prompt-wavs/one.wav|再见"],
}
DEMO = Checkpoint.open("demo")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dataset as it is published: a folder for each language, with a list and the recordings."""
    for code, lines in LINES.items():
        (tmp_path / code / "prompt-wavs").mkdir(parents=True)
        for name in ("one", "two"):
            soundfile.write(tmp_path / code / "prompt-wavs" / f"{name}.wav", np.zeros(2400), 24_000)
        (tmp_path / code / "meta.lst").write_text("\n".join([*lines, ""]), encoding="utf-8")
    (tmp_path / "README.md").write_text("---\nlicense: cc0-1.0\n---\n")
    return tmp_path


def find(prompts: object, language: str = "auto", **options: Any) -> Any:
    named = None if prompts is None else str(prompts)
    return find_prompts(QualityOptions(prompts=named, **options), DEMO, language)


def test_a_dataset_is_read_with_its_recordings_licence_and_digest(folder: Path) -> None:
    found = find(folder)
    assert [prompt.text for prompt in found.prompts] == ["Good morning.", "Good evening."]
    assert found.prompts[1].ref_audio == folder / "en" / "prompt-wavs" / "two.wav"
    assert found.prompts[1].ref_text == "Yes."
    assert (found.language, found.licence) == ("english", "cc0-1.0")
    assert find(folder / "en" / "meta.lst").digest == find(folder / "en").digest == found.digest
    chinese = find(folder, "chinese")
    assert (chinese.language, [prompt.text for prompt in chinese.prompts]) == ("chinese", ["再见"])


def test_one_changed_sample_changes_the_digest_which_can_be_required(folder: Path) -> None:
    before = find(folder).digest
    assert find(folder, digest=before.upper()).digest == before
    soundfile.write(folder / "en" / "prompt-wavs" / "two.wav", np.full(2400, 0.1), 24_000)
    with pytest.raises(InvalidRequestError, match="they are others, or were changed"):
        find(folder, digest=before)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("one|two", "line 1 has 2 fields"),
        ("one|Yes.|prompt-wavs/none.wav|Good.", "'prompt-wavs/none.wav', which is not there"),
        ("one|Yes.|../../etc/passwd|Good.", "lies outside of the dataset"),
        ("one|Yes.|prompt-wavs/one.wav|...", "expected words"),
        ("", "has 0 prompts"),
    ],
)
def test_a_faulty_list_is_refused_by_its_line(line: str, message: str, folder: Path) -> None:
    (folder / "en" / "meta.lst").write_text(line)
    with pytest.raises(InvalidRequestError, match=message):
        find(folder)


def test_texts_in_a_file_and_those_that_come_along(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("Good morning.\n\nGood evening.\n")
    assert [prompt.name for prompt in find(tmp_path / "texts.txt").prompts] == ["line-1", "line-2"]
    assert len({prompt.text for prompt in built_in(300).prompts}) == 300
    assert len(find(None).prompts) == 100
    with pytest.raises(InvalidRequestError, match="that come along are English, not german"):
        find(None, "german")
    for missing in (tmp_path / "none.txt", tmp_path / "none"):
        with pytest.raises(InvalidRequestError, match="cannot be read"):
            find(missing)


def test_a_sample_is_always_the_same_and_in_order() -> None:
    few = built_in(200).sample(20)
    places = [int(prompt.name.removeprefix("row-")) for prompt in few.prompts]
    assert places == sorted(places)
    assert max(places) > 100
    assert few == built_in(200).sample(20)
    assert len(built_in(200).sample(None).prompts) == 200


def test_base_checkpoints_need_recordings(folder: Path) -> None:
    base = Checkpoint.open("demo-base")
    with pytest.raises(InvalidRequestError, match="give --ref-audio and --ref-text"):
        find_prompts(QualityOptions(), base, "auto")
    recording = folder / "voice.wav"
    soundfile.write(recording, 0.5 * np.sin(np.arange(24_000) / 10), 24_000)
    found = find_prompts(QualityOptions(ref_audio=recording, ref_text="Yes."), base, "auto")
    assert {(prompt.ref_audio, prompt.ref_text) for prompt in found.prompts} == {(recording, "Yes.")}
    assert find_prompts(QualityOptions(prompts=str(folder)), base, "auto").prompts[0].ref_text == "We said so."


@pytest.mark.parametrize(
    ("checkpoint", "recording", "message"),
    [
        ("demo-base", "none.wav", "none.wav"),
        ("demo-base", "README.md", "README.md"),
        ("demo-base", None, "which is not given"),
        ("demo", "en/prompt-wavs/one.wav", "demo does not clone: leave --ref-audio out"),
    ],
)
def test_a_recording_that_cannot_be_cloned_is_refused(
    checkpoint: str, recording: str | None, message: str, folder: Path
) -> None:
    options = QualityOptions(ref_audio=None if recording is None else folder / recording, ref_text="Yes.")
    with pytest.raises(InvalidRequestError, match=message):
        find_prompts(options, Checkpoint.open(checkpoint), "auto")


def test_the_published_dataset_comes_by_revision_and_must_be_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def download(repository: str, **options: Any) -> str:
        asked.append({"repository": repository, **options})
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(InvalidRequestError, match="has 1 prompts, and the published dataset 2020"):
        find("seed-tts-eval/zh")
    monkeypatch.setattr(sources, "PUBLISHED", {"en": 2, "zh": 1})
    found = find("seed-tts-eval@0123abc")
    assert asked[-1]["repository"] == sources.REPOSITORY
    assert (asked[-1]["repo_type"], asked[-1]["revision"]) == ("dataset", "0123abc")
    assert asked[-1]["allow_patterns"] == ["en/*", "README*", "LICEN*"]
    assert found.source == f"{sources.REPOSITORY}/en@{folder.name}"
    with pytest.raises(InvalidRequestError, match="has no part 'fr'"):
        find("seed-tts-eval/fr")


def test_a_download_that_fails_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_: object, **__: object) -> str:
        raise OSError("no network")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(InvalidRequestError, match=r"no network\. Name a mirror with HF_ENDPOINT"):
        find("seed-tts-eval")


def test_cloning_changes_the_digest(folder: Path) -> None:
    recording = folder / "en" / "prompt-wavs" / "one.wav"
    plain = dataset(folder / "en", "en", "english")
    assert plain.cloning(recording, None).digest != plain.digest
    assert replace(plain) == plain
