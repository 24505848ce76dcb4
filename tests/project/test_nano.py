"""The idea in one file says what the engine says."""

import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import soundfile

from megatalker import Checkpoint, Engine
from megatalker.voices import list_speakers

EXAMPLES = Path(__file__).parents[2] / "examples"
FRAMES = 30


@pytest.fixture(scope="module", autouse=True)
def nano_on_path() -> None:
    sys.path.insert(0, str(EXAMPLES))


@pytest.mark.parametrize("name", ["demo", "tiny_custom_voice", "tiny_1b7"])
@pytest.mark.parametrize("seed", [7, 2**63 + 5])
def test_codes_and_samples_are_the_engine_s(name: str, seed: int, request: pytest.FixtureRequest) -> None:
    import nano_megatalker

    checkpoint: Checkpoint = request.getfixturevalue(name)
    voice, text = list_speakers(checkpoint)[0], "Hello there. How are you?"
    off = {"compiled": {"compile": "off"}}
    with Engine.open(checkpoint=checkpoint, backend="compiled", dtype="float32", backends=off) as engine:
        options = {"voice": voice, "seed": seed, "language": "auto", "layout": "upfront", "max_frames": FRAMES}
        chunks = list(engine.speak(text, return_codes=True, **options))
    frames = list(islice(nano_megatalker.speak(checkpoint.folder, text, voice, seed), FRAMES))
    assert [codes for codes, _ in frames] == np.concatenate([chunk.codes for chunk in chunks]).tolist()
    samples = np.concatenate([samples for _, samples in frames])
    np.testing.assert_allclose(samples, np.concatenate([chunk.pcm for chunk in chunks]), atol=1e-4)


def test_other_sampling_is_the_engine_s_too(demo: Checkpoint) -> None:
    import nano_megatalker

    from megatalker import SamplingParams

    changes = {"repetition_penalty": 1.3, "temperature": 0.8, "top_p": 0.9, "top_k": 20}
    sampling = SamplingParams(**changes, predictor_temperature=0.5, predictor_top_p=0.7, predictor_do_sample=True)
    subtalker = {"subtalker_temperature": 0.5, "subtalker_top_p": 0.7}
    off = {"compiled": {"compile": "off"}}
    with Engine.open(checkpoint=demo, backend="compiled", dtype="float32", backends=off) as engine:
        stream = engine.speak(
            "Good morning.", voice="otto", sampling=sampling, seed=3, max_frames=20, return_codes=True
        )
        expected = np.concatenate([chunk.codes for chunk in stream]).tolist()
    frames = nano_megatalker.speak(demo.folder, "Good morning.", "otto", 3, **changes, **subtalker)
    assert [codes for codes, _ in islice(frames, 20)] == expected


def test_its_command_writes_a_file(demo: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nano_megatalker

    out = tmp_path / "hello.wav"
    arguments = ["Hello.", str(out), "--checkpoint", str(demo.folder), "--voice", "mina", "--seed", "7"]
    monkeypatch.setattr(sys, "argv", ["nano_megatalker.py", *arguments])
    nano_megatalker.main()
    samples, rate = soundfile.read(out)
    assert rate == 24000
    assert np.abs(samples).max() > 0.05


def test_it_is_one_short_file_that_needs_nothing_of_ours() -> None:
    text = (EXAMPLES / "nano_megatalker.py").read_text()
    assert len(text.splitlines()) <= 600
    assert "import megatalker" not in text
    assert "from megatalker" not in text
