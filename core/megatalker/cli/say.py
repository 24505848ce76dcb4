"""``megatalker say``: text in, a WAV that grows while it is spoken, and sound where there is a player."""

import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.checkpoint.hub import download_bar
from megatalker.cli.console import stderr
from megatalker.cli.options import (
    BackendOption,
    CheckpointOption,
    CodecOption,
    ConfigOption,
    DeviceOption,
    DtypeOption,
    read_settings,
)
from megatalker.cli.player import Player, player_missing
from megatalker.engine import Engine, SpeechStream
from megatalker.errors import InvalidRequestError
from megatalker.serving.audio import WavWriter
from megatalker.voices import Voice, VoiceCloner, read_reference


def say(
    text: Annotated[str, typer.Argument(help="What to say, or - to speak standard input while it arrives.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="WAV file.", show_default="speech.wav unless played")
    ] = None,
    voice: Annotated[str | None, typer.Option(help="Speaker name, or a voice file made with --save-voice.")] = None,
    language: Annotated[str | None, typer.Option(help="auto, english, chinese, ...")] = None,
    instruct: Annotated[
        str | None, typer.Option(help="Style or voice description, where the checkpoint takes one.")
    ] = None,
    ref_audio: Annotated[Path | None, typer.Option(help="Clone this voice (Base checkpoints).")] = None,
    ref_text: Annotated[str | None, typer.Option(help="What is said in --ref-audio; clones more closely.")] = None,
    save_voice: Annotated[Path | None, typer.Option(help="Keep the cloned voice for later use with --voice.")] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same speech.")] = None,
    play: Annotated[
        bool | None, typer.Option("--play/--no-play", show_default="plays if megatalker[play] is installed")
    ] = None,
    warmup: Annotated[bool, typer.Option(help="Compile first: slower to start, faster to speak.")] = False,
    checkpoint: CheckpointOption = None,
    backend: BackendOption = None,
    codec: CodecOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    config: ConfigOption = None,
) -> None:
    """Speak TEXT: write the WAV while it is generated, and play it where a player is installed."""
    settings = read_settings(config, checkpoint=checkpoint, backend=backend, codec=codec, device=device, dtype=dtype)
    playing = player_missing() is None if play is None else play
    target = out or (None if playing else Path("speech.wav"))
    with download_bar() as progress:
        opened = Checkpoint.open(settings.checkpoint, progress=progress)
    with ExitStack() as stack:
        status = stack.enter_context(_status())
        task = status.add_task("loading")
        chosen = _voice(opened, voice, ref_audio, ref_text, save_voice)
        engine = stack.enter_context(Engine.open(settings, checkpoint=opened))
        if warmup:
            status.update(task, description="warming up")
            engine.warmup()
        status.update(task, description="speaking")
        began = time.monotonic()
        stream = engine.speak(
            None if text == "-" else text, voice=chosen, language=language, instruct=instruct, seed=seed
        )
        if text == "-":
            threading.Thread(target=_feed, args=(stream,), name="megatalker-stdin", daemon=True).start()
        writer = stack.enter_context(WavWriter(target)) if target else None
        player = stack.enter_context(Player()) if playing else None
        first_written: float | None = None
        spoken = 0
        for chunk in stream:
            if writer:
                writer.write(chunk.pcm)
            if player:
                player.write(chunk.pcm)
            spoken += len(chunk.pcm)
            now = time.monotonic() - began
            first_written = first_written or now
            seconds = spoken / SAMPLE_RATE
            status.update(
                task, description=f"{seconds:6.1f} s  TTFC {first_written * 1e3:.0f} ms  RTF {now / seconds:.2f}"
            )
        ended = time.monotonic() - began
    _report(stream, opened, target, spoken, first_written, ended)


def _status() -> Progress:
    return Progress(SpinnerColumn(), TextColumn("{task.description}", markup=False), console=stderr, transient=True)


def _feed(stream: SpeechStream) -> None:
    for line in sys.stdin:
        stream.feed(line)
    stream.finish()


def _voice(
    checkpoint: Checkpoint, voice: str | None, ref_audio: Path | None, ref_text: str | None, save_voice: Path | None
) -> Voice | str | None:
    if ref_audio is None:
        for option, value in (("--ref-text", ref_text), ("--save-voice", save_voice)):
            if value is not None:
                raise InvalidRequestError(f"{option} goes with --ref-audio, which is missing")
        if voice is not None and Path(voice).is_file():
            return Voice.load(Path(voice))
        return voice
    if voice is not None:
        raise InvalidRequestError("--voice and --ref-audio both name a voice; give one of them")
    with VoiceCloner(checkpoint) as cloner:
        cloned = cloner.clone(read_reference(ref_audio), reference_text=ref_text)
    if save_voice is not None:
        cloned.save(save_voice)
    return cloned


def _report(
    stream: SpeechStream, checkpoint: Checkpoint, target: Path | None, samples: int, first: float | None, ended: float
) -> None:
    seconds = samples / SAMPLE_RATE
    where = f"{target}: " if target else ""
    ttfc = "none" if first is None else f"{first * 1e3:.0f} ms"
    rtf = f"{ended / seconds:.2f}" if seconds else "none"
    stderr.print(
        f"{where}{seconds:.1f} s of speech at 24 kHz, first chunk after {ttfc} (TTFC), "
        f"generation ended after {ended * 1e3:.0f} ms (RTF {rtf})",
        highlight=False,
        soft_wrap=True,
    )
    stderr.print(
        f"backend {stream.backend}, checkpoint {checkpoint.name}, seed {stream.seed}, ended by {stream.finish_reason}",
        highlight=False,
        soft_wrap=True,
    )
    for switch in stream.switches:
        stderr.print(f"[yellow]switched[/] {switch}", highlight=False, soft_wrap=True)
