"""Opens an engine, speaks, and says how it went."""

import os
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NoReturn

import typer

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.hub import download_bar
from megatalker.cli.captions import captions, write_captions
from megatalker.cli.console import say_plainly
from megatalker.cli.process import process_age
from megatalker.cli.say.destination import Destination
from megatalker.cli.say.standard_input import StandardInput
from megatalker.cli.status import Status
from megatalker.engine import Engine, SpeechStream
from megatalker.engine.speech.outputs import require_complete
from megatalker.errors import InvalidRequestError, MegatalkerError
from megatalker.prompt.rewriting.lexicon_files import read_lexicon
from megatalker.prompt.text import check_text
from megatalker.sampling import SamplingParams
from megatalker.settings import Settings
from megatalker.voices import Voice, VoiceCloner, list_speakers, read_reference
from megatalker.voices.mixing import find_mixed, mix_parts
from megatalker.voices.voice import is_voice_path

INTERRUPTED = 130
"""Exit status that shells report for programs that SIGINT ends."""
BROKEN_PIPE = 141
"""Exit status that shells report for programs that SIGPIPE ends."""


@dataclass(frozen=True, slots=True)
class VoiceOrder:
    """The options that name a voice."""

    name: str | None
    ref_audio: Path | None
    ref_text: str | None
    save_voice: Path | None


@dataclass(frozen=True, slots=True)
class SpeakOptions:
    """The text to say, and how to say it."""

    text: str | None
    """``None``: standard input, while it arrives."""
    voice: VoiceOrder
    language: str | None
    instruct: str | None
    seed: int | None
    sampling: Mapping[str, Any]
    """Fields of ``SamplingParams`` that are not to be the checkpoint's own; a top-k of 0 keeps all."""
    warmup: bool
    clean_text: bool = True
    normalize: Literal["off", "on"] | None = None
    lexicon: Path | None = None
    captions: Path | None = None
    """File of captions, by estimated word times."""
    markup: Literal["none", "tags", "ssml"] | None = None
    cast: Mapping[str, str] | None = None
    """Speakers or voice files by the names that the text gives them."""


def speak(order: SpeakOptions, settings: Settings, destination: Destination, status: Status) -> list[str]:
    """Speak to the end; returns lines that say how it went.

    Raises:
        MegatalkerError: its message says which speech is kept, if there is any.
        typer.Exit: the reader of standard output has closed it.
    """
    with ExitStack() as stack:
        try:
            return _speak(order, settings, destination, status, stack)
        except BrokenPipeError:
            raise typer.Exit(BROKEN_PIPE) from None
        except MegatalkerError as error:
            if destination.seconds and destination.kept not in str(error):
                raise type(error)(f"{error}; {destination.kept}") from error
            raise
        except KeyboardInterrupt:
            _leave_at_once(destination, status)
        finally:
            destination.close()


def _leave_at_once(destination: Destination, status: Status) -> NoReturn:
    destination.close()
    status.stop()
    say_plainly(f"interrupted; {destination.kept}")
    sys.stderr.flush()
    os._exit(INTERRUPTED)  # the usual way out would wait for a compilation under way, which nothing can stop


def _speak(
    order: SpeakOptions, settings: Settings, destination: Destination, status: Status, stack: ExitStack
) -> list[str]:
    lexicon = None if order.lexicon is None else read_lexicon(order.lexicon)
    status.stage(f"opening checkpoint {settings.checkpoint}")
    with download_bar() as progress:
        checkpoint = Checkpoint.open(settings.checkpoint, progress=progress)
    voice, sampling = choose_voice(checkpoint, order.voice), _sampling(checkpoint, order.sampling)
    status.stage("loading the backends")
    engine = stack.enter_context(Engine.open(settings, checkpoint=checkpoint))
    if order.warmup:
        status.stage("warming up")
        engine.warmup()
    status.stage("speaking")
    began = time.monotonic()
    stream = engine.speak(
        order.text,
        voice=voice,
        language=order.language,
        instruct=order.instruct,
        sampling=sampling,
        seed=order.seed,
        clean_text=order.clean_text,
        normalize=order.normalize,
        lexicon=lexicon,
        word_times=order.captions is not None,
        markup=order.markup,
        cast=None if order.cast is None else {name: _named(checkpoint, one) for name, one in order.cast.items()},
    )
    source = None if order.text is not None else StandardInput(stream)
    if source is not None:
        source.start()
    first_sample: float | None = None
    for chunk in stream:
        destination.write(chunk.pcm)
        if first_sample is None:
            first_sample = process_age()
        status.figures(f"{destination.seconds:6.1f} s  {_figures(stream)}")
    ended = time.monotonic() - began
    if source is not None:
        _check(source, settings)
    if stream.finish_reason == "eos" and not destination.seconds:
        where = "standard input" if order.text is None else f"{order.text[:40]!r}"
        raise InvalidRequestError(f"there is nothing to say in {where}; expected at least one letter or digit")
    destination.finish()
    if order.captions is not None:
        write_captions(order.captions, captions(stream.take_words()))
    require_complete(stream.facts())
    return _report(stream, checkpoint, destination, first_sample, ended)


def _check(source: StandardInput, settings: Settings) -> None:
    if source.error is not None:
        raise source.error
    if source.blank:
        check_text("", settings.max_text_chars)  # raises what the same text on the command line does


def choose_voice(checkpoint: Checkpoint, order: VoiceOrder) -> Voice | str | None:
    """Return the voice that options name, cloned where they name a recording; ``None``: the checkpoint's own.

    Raises:
        MegatalkerError: options contradict each other, or a file cannot be used.
    """
    if order.ref_audio is None:
        for option, value in (("--ref-text", order.ref_text), ("--save-voice", order.save_voice)):
            if value is not None:
                raise InvalidRequestError(f"{option} goes with --ref-audio, which is missing")
        return None if order.name is None else _named(checkpoint, order.name)
    if order.name is not None:
        raise InvalidRequestError("--voice and --ref-audio both name a voice; give one of them")
    with VoiceCloner(checkpoint) as cloner:
        cloned = cloner.clone(read_reference(order.ref_audio), reference_text=order.ref_text)
    if order.save_voice is not None:
        cloned.save(order.save_voice)
    return cloned


def _named(checkpoint: Checkpoint, name: str) -> Voice | str:
    if name.lower() in list_speakers(checkpoint):
        return name
    if _is_voice_file(name):
        return Voice.load(name)
    return find_mixed(name, checkpoint, lambda part: Voice.load(part) if is_voice_path(part) else None) or name


def _is_voice_file(name: str) -> bool:
    try:
        if Path(name).is_file():
            return True
    except (OSError, ValueError):  # such as a name that is too long
        return False
    return is_voice_path(name) and mix_parts(name) is None


def _sampling(checkpoint: Checkpoint, changes: Mapping[str, Any]) -> SamplingParams | None:
    if not changes:
        return None
    wanted: dict[str, Any] = dict(changes)
    for name in ("top_k", "predictor_top_k"):
        if wanted.get(name) == 0:
            wanted[name] = None
    return replace(checkpoint.sampling, **wanted)


def _figures(stream: SpeechStream) -> str:
    facts = stream.facts()
    ttfc = "none" if facts.ttfc_s is None else f"{facts.ttfc_s * 1e3:.0f} ms"
    return f"TTFC {ttfc}  RTF {'none' if facts.rtf is None else f'{facts.rtf:.2f}'}"


def _report(
    stream: SpeechStream, checkpoint: Checkpoint, destination: Destination, first_sample: float | None, ended: float
) -> list[str]:
    since_start = "" if first_sample is None else f"first sample {first_sample:.2f} s after the start of the process, "
    return [
        f"{destination.name}: {destination.seconds:.1f} s of speech at {destination.rate / 1000:g} kHz, {since_start}"
        f"{_figures(stream)}, generation took {ended * 1e3:.0f} ms",
        f"backend {stream.backend}, checkpoint {checkpoint.name}, seed {stream.seed}, ended by {stream.finish_reason}",
        *(f"switched {switch}" for switch in stream.switches),
    ]
