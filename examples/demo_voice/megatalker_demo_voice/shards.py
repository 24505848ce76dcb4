"""Speech in bulk: shards of clips, each made by a fresh process, so that the same seed gives the same bytes."""

import json
import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from megatalker_demo_voice.crowd import cast
from megatalker_demo_voice.espeak import Espeak, EspeakFiles
from megatalker_demo_voice.speech import FRAME, Clip, speak
from megatalker_demo_voice.splits import is_held_out
from megatalker_demo_voice.text import TextSource

_TURN = 6
"""Clips that a made-up speaker says in a row: a reference stands next to what is said after it."""
_REFERENCE_CHARS = 60
_STORED = ("samples", "frames", "speakers", "phoneme_starts", "phoneme_ids", "phoneme_counts")


@dataclass(frozen=True, slots=True)
class ShardRequest:
    """The shard that one process makes."""

    where: EspeakFiles
    folder: Path
    seed: str
    index: int
    minutes: float
    """Stop after about this much speech."""
    short_share: float = 0.0
    """Share of clips of one to four words."""
    vary: bool = False
    """Draw rate and pitch around the speaker's own, for a codec that is not surprised by them."""
    held_out: bool = False
    """Take only the text that training never sees, and made-up speakers that it never hears."""
    crowd: int = 0
    """Number of made-up speakers, which alternate in place of the three named ones; each begins with a long text."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Clips, end to end."""

    texts: tuple[str, ...]
    symbols: tuple[str, ...]
    """Names of the phoneme ids."""
    samples: NDArray[np.int16]
    frames: NDArray[np.int32]
    """Frames of each clip."""
    speakers: NDArray[np.uint16]
    """Index of each clip's speaker among the shard's speakers."""
    phoneme_starts: NDArray[np.int32]
    """First sample of each phoneme, within its clip."""
    phoneme_ids: NDArray[np.uint8]
    phoneme_counts: NDArray[np.int32]
    """Phonemes of each clip."""

    def save(self, path: Path) -> None:
        """Write ``path`` (.npy files and names, one folder)."""
        path.mkdir(parents=True, exist_ok=True)
        for name in _STORED:
            np.save(path / f"{name}.npy", getattr(self, name))
        # last: a shard without it is not complete
        (path / "texts.json").write_text(json.dumps([self.texts, self.symbols]), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "Shard":
        texts, symbols = json.loads((path / "texts.json").read_text(encoding="utf-8"))
        return cls(tuple(texts), tuple(symbols), **{name: np.load(path / f"{name}.npy") for name in _STORED})


def make_shards(requests: list[ShardRequest], processes: int) -> Iterator[Path]:
    """Make shards that are not there yet, several at a time; yields each one's folder, in the order of ``requests``."""
    # forkserver: children neither inherit this process's threads and devices, nor import more than they need
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with context.Pool(processes, maxtasksperchild=1) as pool:
        yield from pool.imap(_make, requests, chunksize=1)


def _make(request: ShardRequest) -> Path:
    path = request.folder / f"{request.seed}-{request.index:04d}"
    if not (path / "texts.json").is_file():
        _pack(*_clips(request)).save(path)
    return path


def _clips(request: ShardRequest) -> tuple[list[Clip], list[int]]:
    """Clips, and the index of each one's speaker."""
    source, speakers = TextSource(f"{request.seed}/{request.index}"), cast(request.crowd, held_out=request.held_out)
    espeak, rng = Espeak(request.where), np.random.default_rng(request.index)
    wanted, made = request.minutes * 750, 0
    clips: list[Clip] = []
    chosen: list[int] = []
    waiting: list[int] = []
    while made < wanted:
        text = source.short_utterance() if rng.random() < request.short_share else source.utterance()
        begins = request.crowd > 0 and len(clips) % _TURN == 0
        if is_held_out(text) != request.held_out or (begins and len(text) < _REFERENCE_CHARS):
            continue
        if not request.crowd:
            speaker = int(rng.integers(len(speakers)))
        elif begins:
            waiting = waiting or rng.permutation(len(speakers)).tolist()
            speaker = waiting.pop()
        rate = pitch = None
        if request.vary:
            rate = round(speakers[speaker].rate * rng.uniform(0.92, 1.12))
            pitch = int(rng.integers(42, 59))
        clip = speak(espeak, text, speakers[speaker], rate=rate, pitch=pitch)
        if clip is not None:
            clips.append(clip)
            chosen.append(speaker)
            made += clip.frames
    return clips, chosen


def _pack(clips: list[Clip], speakers: list[int]) -> Shard:
    symbols = tuple(sorted({symbol for clip in clips for _, symbol in clip.phonemes}))
    ids = {symbol: index for index, symbol in enumerate(symbols)}
    phonemes = [phoneme for clip in clips for phoneme in clip.phonemes]
    return Shard(
        texts=tuple(clip.text for clip in clips),
        symbols=symbols,
        samples=np.concatenate([clip.samples for clip in clips]),
        frames=np.array([len(clip.samples) // FRAME for clip in clips], np.int32),
        speakers=np.array(speakers, np.uint16),
        phoneme_starts=np.array([start for start, _ in phonemes], np.int32),
        phoneme_ids=np.array([ids[symbol] for _, symbol in phonemes], np.uint8),
        phoneme_counts=np.array([len(clip.phonemes) for clip in clips], np.int32),
    )
