"""``megatalker say`` as a user meets it: real engine, tiny checkpoints, a real file."""

from pathlib import Path

import numpy as np
import pytest
import soundfile

from commands import megatalker, one_line
from megatalker.checkpoint import Checkpoint
from megatalker.cli.say.text_argument import check_text_argument
from megatalker.serving.samples import SampleEncoder

pytestmark = pytest.mark.slow


def test_say_writes_a_playable_file_and_reports(tiny_custom_voice: Checkpoint, tmp_path: Path) -> None:
    folder = str(tiny_custom_voice.folder)
    done = megatalker("say", "Hello there.", "--out", "out.wav", "--checkpoint", folder, "--seed", "3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    info = soundfile.info(tmp_path / "out.wav")
    assert (info.samplerate, info.channels) == (24_000, 1)
    assert info.frames > 0
    assert info.frames % 1920 == 0
    for fact in ("TTFC", "RTF", "after the start of the process", "backend ", "seed 3", "ended by"):
        assert fact in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["say", "   "], "InvalidRequestError"),
        (["say", "Hi", "--backend", "turbo"], "'turbo' is not installed; installed: compiled, megakernel, reference"),
        (["say", "Hi", "--backend", "megakernel"], "'megakernel' cannot run here: needs a CUDA GPU"),
        (["say", "Hi", "--voice", "nobody"], "nobody"),
        (["say", "Hi", "--voice", "missing.safetensors"], "voice file 'missing.safetensors' does not exist"),
        (["say", "Hi", "--voice", "voices/anna"], "voice file 'voices/anna' does not exist"),
        (["say", "notes.txt"], "'notes.txt' looks like the name of a file, and there is no such file"),
        (
            ["say", "Hi", "-o", "x.xyz"],
            "the ending '.xyz' of x.xyz names no format that can be written; expected one of .wav",
        ),
        (["say", "Hi", "-o", "x.mp3", "--format", "wav"], "--format wav and the ending of x.mp3 differ"),
        (["say", "Hi", "-o", "-", "--format", "mp3"], "standard output takes wav, pcm, pcm_mulaw, pcm_alaw, not mp3"),
        (["say", "Hi", "--sample-rate", "11025"], "--sample-rate is 11025: wav takes 8000, 16000, 22050"),
        (["say", "Hi", "-o", "x.opus", "--sample-rate", "44100"], "opus takes 8000, 16000, 24000, 48000"),
        (["say", "Hi", "--language", "klingon"], "klingon"),
        (["say", "Hi", "--checkpoint", "/nowhere"], "CheckpointError"),
        (["say", "Hi", "--device", "tpu"], "device is 'tpu', expected auto, cpu, cuda, cuda:N or mps"),
        (["say", "Hi", "--ref-text", "x"], "--ref-text goes with --ref-audio"),
        (["say", "Hi", "--ref-audio", "missing.wav"], "cloning needs a base model such as demo-base"),
        (["say", "Hi", "-o", "missing/x.wav"], "cannot write missing/x.wav; expected a file name in an existing"),
        (["say", "Hi", "--temperature", "0"], "temperature is 0.0, expected a number from 1e-6 to 1e6"),
        (["say", "Hi", "--predictor-top-k", "-1"], "predictor_top_k is -1, expected an integer of at least 1"),
        (["inspect", "/nowhere"], "CheckpointError"),
        (["bench", "--compare", "reference,nothing"], "'nothing' is not installed"),
    ],
)
def test_bad_input_is_one_clear_line(
    arguments: list[str], message: str, tiny_custom_voice: Checkpoint, tmp_path: Path
) -> None:
    if arguments[0] != "inspect" and "--checkpoint" not in arguments:
        arguments = [*arguments, "--checkpoint", str(tiny_custom_voice.folder)]
    done = megatalker(*arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert message in one_line(done.stderr)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["speech.txt", "a name with blanks", "Hello."])
def test_the_name_of_a_file_is_not_spoken(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("Good morning.")
    done = megatalker("say", name, cwd=tmp_path)
    assert done.returncode == 1
    assert f"{name!r} is a file; to speak what is in it: megatalker say - < " in one_line(done.stderr)


@pytest.mark.parametrize("text", ["Hello.", "See notes.txt", "v1.5", "x" * 5_000 + ".txt", "a\n.txt", "-", ""])
def test_other_texts_are_texts(text: str) -> None:
    check_text_argument(text)


def test_cloned_voice_can_be_kept_and_used_again(tiny_base: Checkpoint, tmp_path: Path) -> None:
    rate = 16_000
    tone = 0.3 * np.sin(2 * np.pi * 220 * np.arange(2 * rate) / rate)
    soundfile.write(tmp_path / "voice.wav", tone, rate)
    say = ("say", "Hello there.", "--checkpoint", str(tiny_base.folder), "--seed", "5")
    reference = ("--ref-audio", "voice.wav", "--ref-text", "Good morning.", "--save-voice", "kept.voice")
    for arguments in ((*reference, "-o", "a.wav"), ("--voice", "kept.voice", "-o", "b.wav")):
        done = megatalker(*say, *arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    first, second = ((tmp_path / name).read_bytes() for name in ("a.wav", "b.wav"))
    assert soundfile.info(tmp_path / "a.wav").frames > 0
    assert first == second
    missing = megatalker(*say, "--ref-audio", "missing.wav", cwd=tmp_path)
    assert missing.returncode == 1
    assert "missing.wav" in missing.stderr


def test_settings_file_of_the_working_directory_counts(tiny_custom_voice: Checkpoint, tmp_path: Path) -> None:
    (tmp_path / "megatalker.toml").write_text(f'checkpoint = "{tiny_custom_voice.folder}"\nbackend = "reference"\n')
    done = megatalker("say", "Hi.", "--seed", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "backend reference" in done.stderr
    assert (tmp_path / "speech.wav").is_file()


def test_verbose_says_which_backend_and_why(tiny_custom_voice: Checkpoint, tmp_path: Path) -> None:
    folder = str(tiny_custom_voice.folder)
    done = megatalker("--verbose", "say", "Hi.", "-o", "x.wav", "--checkpoint", folder, cwd=tmp_path)
    assert "talker backend: compiled" in one_line(done.stderr)


def test_sampling_options_replace_the_checkpoints(
    tiny_custom_voice: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy speech does not depend on the seed, sampled speech does; the other options reach the sampler, too."""
    monkeypatch.setenv("MEGATALKER_MAX_FRAMES", "10")  # random weights may go on for minutes
    greedy = ("--greedy", "--predictor-greedy")
    barely = ("--top-k", "1", "--predictor-top-k", "1", "--repetition-penalty", "1.05")
    free = ("--top-k", "0", "--top-p", "0.9", "--temperature", "1.5", "--predictor-temperature", "1.5")
    files = {}
    for name, options in {"greedy": greedy, "barely": barely, "free": (*free, "--predictor-top-p", "0.9")}.items():
        for seed in ("1", "2"):
            done = megatalker(
                *("say", "Hello.", "-o", "-", "--format", "pcm", "--seed", seed, *options),
                *("--checkpoint", str(tiny_custom_voice.folder), "--min-new-tokens", "4"),
                cwd=tmp_path,
                raw=True,
            )
            assert done.returncode == 0, done.stderr
            files[name, seed] = np.frombuffer(done.stdout, "<i2")
    # chunks may be cut elsewhere, which is worth a step of 16 bits
    same = [len(files[name, "1"]) == len(files[name, "2"]) for name in ("greedy", "barely")]
    assert all(same)
    close = [np.abs(files[name, "1"].astype(int) - files["greedy", "2"]).max() <= 2 for name in ("greedy", "barely")]
    assert all(close)
    free_ones = files["free", "1"], files["free", "2"]
    assert len(free_ones[0]) != len(free_ones[1]) or np.abs(free_ones[0].astype(int) - free_ones[1]).max() > 2
    assert min(map(len, files.values())) >= 4 * 1920


def test_files_have_other_rates_and_g711(tiny_custom_voice: Checkpoint, tmp_path: Path) -> None:
    options = ("--checkpoint", str(tiny_custom_voice.folder), "--seed", "3")
    limit = {"MEGATALKER_MAX_FRAMES": "5"}

    def say(*where: str) -> str:
        done = megatalker("say", "Hello.", *where, *options, cwd=tmp_path, **limit)
        assert "Hello." not in done.stderr
        return one_line(done.stderr)

    say("-o", "plain.wav")
    assert "at 8 kHz" in say("-o", "phone.ulaw")
    say("-o", "cd.flac", "--sample-rate", "44100")
    say("-o", "phone.wav", "--sample-rate", "8000")
    plain, _ = soundfile.read(tmp_path / "plain.wav", dtype="float32")
    phone, rate = soundfile.read(tmp_path / "phone.wav", dtype="int16")
    assert rate == 8_000
    encoder = SampleEncoder("s16le", 8_000)
    expected = np.frombuffer(encoder.encode(plain) + encoder.finish(), "<i2")
    assert np.abs(phone.astype(int) - expected).max() <= 1  # the engine's samples were rounded in plain.wav
    assert len((tmp_path / "phone.ulaw").read_bytes()) == len(phone)
    assert soundfile.info(tmp_path / "cd.flac").samplerate == 44_100


def test_text_that_is_left_out_is_an_error_and_what_was_spoken_is_kept(
    tiny_custom_voice: Checkpoint, tmp_path: Path
) -> None:
    sampling = ("--min-new-tokens", "1000")  # until the limit, whatever random weights say
    text = "The first one is here. A second one follows. Then the third is said."
    options = ("-o", "out.wav", "--checkpoint", str(tiny_custom_voice.folder), *sampling)
    limits = {"MEGATALKER_MAX_SEGMENT_FRAMES": "9", "MEGATALKER_MAX_SEGMENT_CHARS": "24"}
    done = megatalker("say", text, *options, cwd=tmp_path, **limits)
    assert done.returncode == 1
    assert "IncompleteSpeechError: the speech is over and leaves out about" in one_line(done.stderr)
    assert "2.2 s of speech are kept in out.wav" in one_line(done.stderr)
    assert soundfile.info(tmp_path / "out.wav").frames == 3 * 9 * 1920
    assert "Traceback" not in done.stderr
