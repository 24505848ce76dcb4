import json
import sys
from pathlib import Path

import pytest

from megatalker.checkpoint.difference import DIFFERENCE
from megatalker_demo_voice.__main__ import main
from megatalker_demo_voice.clones_card import ship, write_card
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


def test_the_card_of_clones_stands_beside_what_is_shipped(tmp_path: Path) -> None:
    checkpoint, shipped = tmp_path / "checkpoint", tmp_path / "shipped"
    (checkpoint / "speech_tokenizer").mkdir(parents=True)
    for name in ("config.json", "model.safetensors", DIFFERENCE, f"speech_tokenizer/{DIFFERENCE}"):
        (checkpoint / name).write_text("12345")
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"spectral_loss": {"all": 1.73}, "pitch_kept": 0.92}))
    alike = {"own": 1.19, "worst": 1.71, "others": 2.97, "nearest": 0.4375, "control": 0.0}
    exams = {name: {"share": 0.034, "control": 1.2} for name in ("digits", "words", "sentences")}
    judged = {"x-vector": exams | {"likeness": alike}, "espeak-ng itself": {"likeness": alike}}
    size = ship(checkpoint, shipped)
    write_card(shipped, judged, report, 4_800_000, 16, "Made in an hour.")
    assert size == 15
    files = sorted(str(path.relative_to(shipped)) for path in shipped.rglob("*") if path.is_file())
    assert files == ["MODEL_CARD.md", "config.json", DIFFERENCE, f"speech_tokenizer/{DIFFERENCE}"]
    card = (shipped / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert "$" not in card
    row = "| x-vector | 1.2 (at most 1.7) | 3.0 | 44% | 0% | 3.4% (120%)"
    for fact in ("4.8 MB", "16 voices", "Made in an hour.", row, "92%", "1.73"):
        assert fact in card
