import json
import sys
from pathlib import Path

import pytest

from megatalker_demo_voice.__main__ import main
from megatalker_demo_voice.packing import pack
from megatalker_demo_voice.speakers import SPEAKERS

SPREAD = {"median": 1.0, "5 %": 0.9, "95 %": 1.1}


def judged(errors: float) -> dict[str, object]:
    exams = {name: {"share": errors, "control": 1.2} for name in ("digits", "words", "sentences")}
    return {speaker.name: exams for speaker in SPEAKERS}


def test_the_card_holds_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endings = {"texts": 50, "ended by itself": 49, "duration ratio": SPREAD, "rtf": SPREAD, "ttfc_ms": SPREAD}
    talker = tmp_path / "talker-voice"
    talker.mkdir()
    heads = {name: [0.25] * 16 for name in ("top", "perplexity", "accuracy")}
    losses = {"short, upfront": {"right": 1.0, "wrong": 3.5, "gap": 2.5}}
    files = {
        "voice.json": judged(0.034) | {"sampling": "greedy", "bytes": 14_600_000, "endings": endings},
        "codec.json": judged(0.02),
        "source.json": judged(0.01),
        "report.json": {"spectral_loss": {"all": 0.71, "4 codes": 0.72}, "pitch_kept": 0.87, "codes_used": [90.0] * 16},
        "talker-voice/report.json": {"code_0": losses, "heads": heads},
    }
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    pack(talker, tmp_path / "talker.tar")
    sources = {
        "evaluation": "voice.json", "codec-evaluation": "codec.json", "source-evaluation": "source.json",
        "codec-report": "report.json", "talker": "talker.tar", "out": ".",
    }  # fmt: skip
    options = [part for name, file in sources.items() for part in (f"--{name}", str(tmp_path / file))]
    monkeypatch.setattr("torch.set_flush_denormal", lambda _: True)  # of the whole process, other tests included
    monkeypatch.setattr(sys, "argv", ["megatalker_demo_voice", "card", *options, "--limit", "It mumbles."])
    main()
    card = (tmp_path / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert "$" not in card
    for fact in ("14.6 MB", "87%", "49 of 50", "| **the voice** | otto | 3.4% (120%)", "2.50 |", "- It mumbles.\n- "):
        assert fact in card
