"""A trial from its prompts to its reports, on sides and judges without models; killed, it goes on."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import quality_stage
from browser import open_page, violations
from megatalker.errors import InvalidRequestError
from megatalker.plugins import recogniser_input
from megatalker.plugins.judges import JudgeContext
from megatalker.settings import Settings
from megatalker_conformance.quality.judges import libraries
from megatalker_conformance.quality.normaliser import BenchmarkNormaliser
from megatalker_conformance.quality.panel import digest_of_hearing
from megatalker_conformance.quality.sides import form_settings
from megatalker_conformance.quality.sound import measure_sound
from megatalker_conformance.quality.store import Take, TrialFolder
from quality_stage import run_stage
from waiting import PROCESS_S

pytest.importorskip("zhon", reason="needs the extra quality")


def test_equal_sides_are_not_worse_and_harm_is(tmp_path: Path) -> None:
    healthy = run_stage(tmp_path / "healthy", harm=0.0)
    errors, similarity = healthy.sides[0].comparisons
    assert (errors.loss, similarity.verdict) == (0, "not worse")
    assert errors.verdict == "cannot tell", "24 prompts have not shown that errors are rare"
    assert healthy.passed
    harmed = run_stage(tmp_path / "harmed", harm=0.8)
    errors, similarity = harmed.sides[0].comparisons
    assert (errors.loss, errors.ours) == (pytest.approx(5), pytest.approx(5)), "one of five words in every fourth text"
    assert (errors.verdict, similarity.verdict, harmed.passed) == ("worse", "worse", False)
    assert harmed.sentence.startswith("ours is worse than the official package: 24 prompts with 2 seeds each")


def test_the_reports_stand_alone_and_begin_with_the_worst(tmp_path: Path) -> None:
    run_stage(tmp_path / "trial", harm=0.8, compare=("int8",))
    content = json.loads((tmp_path / "trial" / "quality.json").read_text())
    assert content["format"] == "megatalker-quality-1"
    assert [side["name"] for side in content["sides"]] == ["ours", "int8"]
    assert all(re.fullmatch(r"stage 1, hears by [0-9a-f]{8}", version) for version in content["judges"].values())
    assert content["judges"].keys() == {"recogniser", "similarity"}
    assert content["faults"]["official"]["leading_ms"] == pytest.approx(1000 * quality_stage.SILENT_S, abs=20)
    assert [content["faults"][name]["gaps"] for name in ("official", "ours")] == [None, 48], "one in each of 48 takes"
    assert content["environment"]["streams"] == "8"
    order = [row["index"] for row in content["worst"]]
    assert sorted(order[:6]) == [3, 7, 11, 15, 19, 23], "line-4 is the fourth prompt"
    page = (tmp_path / "trial" / "quality.html").read_text()
    assert page.count("<audio") == 3 * 20
    assert set(re.findall(r'src="([^,]{0,30})', page)) == {"data:audio/mpeg;base64"}
    assert not re.search(r"https?://", page)


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize("dark", [False, True])
async def test_the_page_fits_a_phone_and_plays_one_take_at_a_time(tmp_path: Path, dark: bool) -> None:
    run_stage(tmp_path / "trial", harm=0.8, size=8, compare=("int8",))
    async with open_page("--autoplay-policy=no-user-gesture-required", width=390, dark=dark) as page:
        await page.goto((tmp_path / "trial" / "quality.html").as_uri())
        assert await page.evaluate("document.documentElement.scrollWidth") == 390
        assert not await violations(page)
        players = page.locator("audio")
        for index in range(2):
            await players.nth(index).evaluate("player => { player.loop = true; return player.play() }")
        await page.wait_for_function("document.querySelector('audio').paused")
        assert not await players.nth(1).evaluate("player => player.paused")


@pytest.mark.slow
def test_a_trial_that_was_killed_three_times_says_the_same(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole" / "trial", tmp_path / "broken" / "trial"
    for folder in (whole, broken):
        folder.parent.mkdir()
    command = [sys.executable, quality_stage.__file__, str(broken), "0.8"]
    for parts in (20, 90, 160):  # in the first side, in the second, among judgements
        process = subprocess.Popen(command)
        try:
            deadline = time.monotonic() + PROCESS_S
            while len([*broken.rglob("*.json")]) < parts:
                assert process.poll() is None, "it ended before it was killed"
                assert time.monotonic() < deadline
                time.sleep(0.01)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    subprocess.run(command, check=True, timeout=PROCESS_S)
    run_stage(whole, harm=0.8)
    first, second = (json.loads((folder / "quality.json").read_text()) for folder in (whole, broken))
    assert first["sides"][0]["verdict"] == "worse"
    assert {**first, "command": ""} == {**second, "command": ""}


def test_a_finished_trial_is_not_spoken_again_and_more_seeds_are_added(tmp_path: Path) -> None:
    run_stage(tmp_path / "trial", harm=0.0)
    told: list[Any] = []
    run_stage(tmp_path / "trial", harm=0.0, progress=lambda *parts: told.append(parts))
    assert not [part for part in told if "speaks" in part[0]]
    run_stage(tmp_path / "trial", harm=0.0, seeds=3, progress=lambda *parts: told.append(parts))
    spoken = [part for part in told if part[0] == "ours speaks"]
    assert (spoken[0][1:], spoken[-1][1:]) == ((48, 72), (72, 72))


@pytest.mark.parametrize("module", [quality_stage, recogniser_input, libraries], ids=lambda module: module.__name__)
def test_what_hears_in_another_way_judges_anew(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judged() -> set[tuple[str, int]]:
        told: list[Any] = []
        run_stage(tmp_path / "trial", harm=0.0, size=4, seeds=1, progress=lambda *parts: told.append(parts))
        return {(stage, done) for stage, done, _ in told if stage == "reader listens to ours"}

    assert len(judged()) == 5
    assert len(judged()) == 1, "nothing is left to be judged"
    changed = tmp_path / "changed.py"
    changed.write_bytes(Path(str(module.__file__)).read_bytes() + b"GAIN = 2\n")
    monkeypatch.setattr(module, "__file__", str(changed))
    assert len(judged()) == 5


def test_other_words_make_another_version() -> None:
    judge, *_ = quality_stage.StageJudges().megatalker_judges()
    few, more = (JudgeContext("english", torch.device("cpu"), frozenset(words)) for words in (["yes"], ["yes", "no"]))
    assert digest_of_hearing(judge, few) == digest_of_hearing(judge, few) != digest_of_hearing(judge, more)


def test_the_voice_is_spoken_once_more_only_where_voices_are_compared(tmp_path: Path) -> None:
    for judge, spoken in (("none", 24), ("voice", 48)):
        run_stage(tmp_path / judge, harm=0.0, seeds=1, similarity=judge)
        assert len([*(tmp_path / judge / "takes" / "official").glob("*.wav")]) == spoken


def test_forms_speak_before_the_official_package(tmp_path: Path) -> None:
    told: list[Any] = []
    run_stage(tmp_path / "trial", harm=0.0, compare=("fast",), progress=lambda *parts: told.append(parts[0]))
    spoken = [stage.partition(" ")[0] for stage in dict.fromkeys(told) if stage.endswith("speaks")]
    assert spoken == ["fast", "ours", "official"]


def test_another_trial_in_the_folder_is_refused(tmp_path: Path) -> None:
    TrialFolder(tmp_path / "trial", {"dtype": "float32"})
    TrialFolder(tmp_path / "trial", {"dtype": "float32"})
    with pytest.raises(InvalidRequestError, match="dtype is 'float32' and not 'bfloat16'; give another --out"):
        TrialFolder(tmp_path / "trial", {"dtype": "bfloat16"})
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("")
    with pytest.raises(InvalidRequestError, match="is not empty and holds no trial"):
        TrialFolder(tmp_path / "letters", {})


def test_a_half_written_record_is_none_and_other_versions_judge_anew(tmp_path: Path) -> None:
    folder, take = TrialFolder(tmp_path / "trial", {}), Take("ours", 3, 1)
    folder.save(take, np.zeros(2000, np.float32), {"seconds": 1.0})
    assert folder.has(take)
    assert folder.record(take) == {"side": "ours", "index": 3, "seed": 1, "seconds": 1.0}
    folder.save_judgement("ear", "1", take, "yes")
    assert folder.judgement("ear", "1", take) == "yes"
    assert folder.judgement("ear", "2", take) is None
    (tmp_path / "trial" / "judged" / "ear" / f"{take.stem}.json").write_text('{"answer": "y')
    assert folder.judgement("ear", "1", take) is None


def test_without_seeds_or_judges_there_is_no_trial(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="0 seeds cannot be"):
        run_stage(tmp_path / "trial", harm=0.0, seeds=0)


def test_faults_of_a_sound() -> None:
    tone = 0.5 * np.sin(np.arange(24_000, dtype=np.float32) / 10)
    late = np.concatenate([np.zeros(12_000, np.float32), tone])
    assert measure_sound(late).leading_s == pytest.approx(0.5, abs=0.02)
    assert measure_sound(tone * 3).clipped
    assert not measure_sound(tone).clipped
    for nothing in (np.zeros(24_000, np.float32), np.empty(0, np.float32), np.full(10, np.nan, np.float32)):
        assert measure_sound(nothing).silent


def test_faster_forms_are_settings() -> None:
    settings = Settings.read(device="cpu", backends={"compiled": {"compile": "off"}})
    assert form_settings(settings, "int4").backends["compiled"] == {"compile": "off", "weights": "int4"}
    assert form_settings(settings, "fast").codecs["streaming"] == {"precision": "fast"}


@pytest.mark.parametrize(
    ("language", "said", "heard", "rate"),
    [
        ("english", "It's twenty-one, isn't it?", "it's twentyone isn't it", 0),
        ("english", "One two three.", "ONE too three four", 2 / 3),
        ("english", "One  two", "", 1),
        ("chinese", "你好\uff0c世界\uff01", "你好世界", 0),
        ("chinese", "你好\uff0c世界\uff01", "你 好 世 姐", 1 / 4),
        ("chinese", "后台", "後臺", 0),
    ],
)
def test_error_rates_are_those_of_the_benchmark(language: str, said: str, heard: str, rate: float) -> None:
    assert BenchmarkNormaliser(language).error_rate(said, heard) == pytest.approx(rate)
