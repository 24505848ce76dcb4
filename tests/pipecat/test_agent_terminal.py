"""The agent without a browser: lines typed in, a WAV file out."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import soundfile

from agent_process import QUICK, surroundings
from megatalker_benchmarks.mock_openai import MockOpenAI
from megatalker_pipecat.agent.command import run
from waiting import PROCESS_S

pytestmark = pytest.mark.slow


def _agent(folder: Path, *arguments: str, typed: str = "", **environ: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "megatalker_pipecat.agent", *arguments],
        cwd=folder,
        env=surroundings({**QUICK, **environ}),
        input=typed,
        capture_output=True,
        text=True,
        timeout=PROCESS_S,
    )


def test_lines_are_said_one_after_another(tmp_path: Path) -> None:
    done = _agent(tmp_path, "--text", "--out", "said.wav", typed="Good morning.\n\nHow are you?\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["agent: Good morning.", "agent: How are you?"]
    samples, rate = soundfile.read(tmp_path / "said.wav")
    assert rate == 24_000
    assert done.stderr.splitlines()[-1] == f"said.wav: {len(samples) / rate:.1f} s of speech"
    assert abs(samples).max() > 0.01


def test_the_language_model_answers_and_remembers(tmp_path: Path) -> None:
    answers = {"Hello.": "Hi there.", "Who are you?": "A test."}
    with MockOpenAI({}, answers) as mock:
        (tmp_path / "megatalker.toml").write_text(
            f'[agent]\nprompt = "Be brief."\ngreeting = "Welcome."\nturn_log = "turns.jsonl"\n'
            f'[agent.llm]\nurl = "{mock.url}"\nmodel = "mind"\nkey_env = "MY_KEY"\n'
        )
        done = _agent(tmp_path, "--text", "--out", "said.wav", typed="Hello.\nWho are you?\n", MY_KEY="mine")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["agent: Welcome.", "agent: Hi there.", "agent: A test."]
    assert mock.keys == ["Bearer mine"] * 2
    assert [(message["role"], message["content"]) for message in mock.conversations[-1]] == [
        ("system", "Be brief."),
        ("assistant", "Welcome."),
        ("user", "Hello."),
        ("assistant", "Hi there."),
        ("user", "Who are you?"),
    ]
    *turns, last = map(json.loads, (tmp_path / "turns.jsonl").read_text().splitlines())
    assert [(turn["begun_by"], turn["outcome"]) for turn in turns] == [
        ("agent", "answered"),
        *[("text", "answered")] * 2,
    ]
    assert list(turns[1]["ms"]) == ["first token", "text to speech", "audio sent", "audio played"]
    assert last["summary"]["text"]["turns"] == 2
    assert "first sound after typed text: p50 " in done.stderr


def test_a_language_model_that_is_not_there(tmp_path: Path) -> None:
    own_server = {"MEGATALKER_AGENT__LLM__URL": "http://127.0.0.1:9/v1", "MEGATALKER_AGENT__LLM__MODEL": "mind"}
    done = _agent(tmp_path, "--text", "--out", "said.wav", typed="Hello.\n", **own_server)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: not everything could be said: ")
    assert "Connection error" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "error: there is no speech to text: set DEEPGRAM_API_KEY"),
        (["--out", "said.wav"], "error: --out writes the answers to typed text; add --text"),
        (["--text", "--out", "nowhere/said.wav"], "error: cannot write nowhere/said.wav"),
        (["--text", "--local", "--port", "1"], "error: --port 1: not with --local or --out"),
        (["--text", "--config", "nowhere.toml"], "error: settings file 'nowhere.toml' does not exist"),
        (["--text", "-t", "livekit"], "error: the agent is not reached by livekit; it is by webrtc, websocket"),
        (["-d"], "error: the agent is not reached by daily; it is by webrtc, websocket, twilio, telnyx, plivo, exotel"),
        (["--text", "--transport=twilio"], "webrtc, websocket or, without --text, by telephone"),
    ],
)
def test_impossible_wishes_end_with_one_line(
    tmp_path: Path,
    arguments: list[str],
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["megatalker-agent", *arguments])
    for name in os.environ:
        if name not in surroundings({}):
            monkeypatch.delenv(name)
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code in (1, 2)
    assert complaint in capsys.readouterr().err.splitlines()[-1]


def test_a_backend_that_cannot_run_here(tmp_path: Path) -> None:
    done = _agent(tmp_path, "--text", "--out", "said.wav", MEGATALKER_BACKEND="nonesuch")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: talker backend 'nonesuch'")
    assert "Traceback" not in done.stderr
