"""Speech for the talker: made, turned into codes by the finished codec, and forgotten."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from megatalker_demo_voice.codec_model import TrainableCodec
from megatalker_demo_voice.references import reference_mels
from megatalker_demo_voice.shards import Shard, ShardRequest, make_shards
from megatalker_demo_voice.speech import FRAME

_FRAMES_AT_ONCE = 4096
_ARRAYS = ("frames", "speakers", "mels", "mel_speakers")
_NO_REFERENCES = np.zeros((0, 0, 0), np.float16), np.zeros(0, np.uint16)


@dataclass(frozen=True, slots=True)
class CodedShard:
    """Clips as codes."""

    texts: tuple[str, ...]
    frames: NDArray[np.int32]
    speakers: NDArray[np.uint16]
    mels: NDArray[np.float16]
    """``[n, rows, 128]``: references, where made-up speakers speak."""
    mel_speakers: NDArray[np.uint16]
    """``[n]``: the speaker of each."""
    codes: Mapping[str, NDArray[np.uint8]]
    """Codes by codec: ``[frames, groups]``."""

    def save(self, path: Path) -> None:
        partial = path.with_suffix(".partial.npz")
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        np.savez(partial, texts=json.dumps(self.texts), **arrays, **dict(self.codes))  # type: ignore[arg-type]
        partial.rename(path)

    @classmethod
    def load(cls, path: Path) -> "CodedShard":
        with np.load(path) as stored:
            codes = {name: stored[name] for name in stored.files if name not in ("texts", *_ARRAYS)}
            arrays = {name: stored[name] for name in _ARRAYS}
            return cls(texts=tuple(json.loads(str(stored["texts"]))), codes=codes, **arrays)


def code_shards(
    requests: Sequence[ShardRequest],
    codecs: Mapping[str, TrainableCodec],
    folder: Path,
    processes: int,
    device: torch.device,
) -> None:
    """Make each request's speech and leave its codes in ``folder``; shards that are there already are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [request for request in requests if not _coded_path(folder, request).is_file()]
    for request, path in zip(missing, make_shards(missing, processes), strict=True):
        shard = Shard.load(path)
        codes = {name: encode_shard(codec, shard, device) for name, codec in codecs.items()}
        mels, mel_speakers = _NO_REFERENCES
        if request.crowd:
            name, codec = next(iter(codecs.items()))
            mels, mel_speakers = reference_mels(codec, shard, torch.from_numpy(codes[name]), device)
        coded = CodedShard(shard.texts, shard.frames, shard.speakers, mels, mel_speakers, codes)
        coded.save(_coded_path(folder, request))
        shutil.rmtree(path)


def load_coded(requests: Sequence[ShardRequest], folder: Path) -> CodedShard:
    """All shards as one.

    Raises:
        FileNotFoundError: one is missing.
    """
    shards = [CodedShard.load(_coded_path(folder, request)) for request in requests]
    arrays = {name: np.concatenate([getattr(shard, name) for shard in shards]) for name in _ARRAYS}
    return CodedShard(
        texts=tuple(text for shard in shards for text in shard.texts),
        codes={name: np.concatenate([shard.codes[name] for shard in shards]) for name in shards[0].codes},
        **arrays,
    )


@torch.no_grad()
def encode_shard(codec: TrainableCodec, shard: Shard, device: torch.device) -> NDArray[np.uint8]:
    """``[frames, groups]`` codes of all clips, each encoded from its own beginning."""
    ends = np.cumsum(shard.frames)
    out: list[Tensor | None] = [None] * len(ends)
    order = sorted(range(len(ends)), key=lambda index: int(shard.frames[index]))
    while order:
        longest = int(shard.frames[order[-1]])
        size = max(1, _FRAMES_AT_ONCE // longest)
        order, taken = order[:-size], order[-size:]
        spans = [(int(ends[index] - shard.frames[index]), int(ends[index])) for index in taken]
        waves = [torch.from_numpy(shard.samples[begin * FRAME : end * FRAME]) for begin, end in spans]
        batch = pad_sequence(waves, batch_first=True).to(device).float() / 32768
        codes = codec.encode(batch).to("cpu", torch.uint8)
        for index, (begin, end), rows in zip(taken, spans, codes, strict=True):
            out[index] = rows[: end - begin]
    return torch.cat([rows for rows in out if rows is not None]).numpy()


def _coded_path(folder: Path, request: ShardRequest) -> Path:
    return folder / f"{request.seed}-{request.index:04d}.npz"
