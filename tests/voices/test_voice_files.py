"""Voice files that are odd: each is a clear error, and none is waited for, read without end, or spoken with."""

import base64
import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from megatalker.checkpoint import Checkpoint
from megatalker.errors import InvalidRequestError
from megatalker.prompt.plan import PromptPlanner
from megatalker.serving.protocol.voice_files import decode_voice, encode_voice
from megatalker.settings.files import read_regular_file
from megatalker.voices import Voice
from megatalker.voices.voice import UnreadableVoiceError


def content(ids: list[int] | None = None, fields: str | None = None, **tensors: torch.Tensor) -> bytes:
    own = {"speaker": None, "description": None, "reference_text_ids": ids, "checkpoint_fingerprint": None}
    metadata = {"format": "megatalker-voice-1", "voice": fields or json.dumps(own)}
    return bytes(save(tensors, metadata=metadata))


def typed(dtype: str) -> bytes:
    """A file that says that its numbers are of this type."""
    own = json.loads(content(x_vector=torch.zeros(8))[8:].split(b"\0")[0].rstrip())["__metadata__"]
    header = json.dumps(
        {"__metadata__": own, "x_vector": {"dtype": dtype, "shape": [16], "data_offsets": [0, 8]}}
    ).encode()
    return struct.pack("<Q", len(header)) + header + bytes(8)


GOOD = content(x_vector=torch.zeros(8))
CODES = torch.zeros(2, 4, dtype=torch.int64)
X = torch.zeros(8)
ODD: dict[str, bytes] = {
    "FP8": content(x_vector=X.to(torch.float8_e4m3fn)),
    "FP8 of another kind": content(x_vector=X.to(torch.float8_e5m2)),
    "FP8 codes": content([1], x_vector=X, reference_codes=CODES.to(torch.float8_e4m3fn)),
    "a type that torch does not know": typed("F4"),
    "a type that nobody knows": typed("Q4_K"),
    "complex": content(x_vector=X.to(torch.complex64)),
    "NaN": content(x_vector=X * float("nan")),
    "infinity in half": content(x_vector=torch.full((8,), float("inf"), dtype=torch.float16)),
    "no numbers": content(x_vector=torch.zeros(0)),
    "a scalar": content(x_vector=torch.tensor(1.0)),
    "negative codes": content([1], x_vector=X, reference_codes=CODES - 1),
    "codes of no group": content([1], x_vector=X, reference_codes=CODES[:, :0]),
    "huge codes": content([1], x_vector=X, reference_codes=CODES + 2**40),
    "negative ids": content([-5], x_vector=X, reference_codes=CODES),
    "huge ids": content([2**40], x_vector=X, reference_codes=CODES),
    "half a character": content(fields='{"speaker": "\\ud83d"}'),
    "nothing": b"",
    "a header of 8 EiB": struct.pack("<Q", 2**63) + GOOD[8:],
    "brackets": struct.pack("<Q", 300_000) + b"[" * 300_000,
    "17 MB": GOOD + bytes(17 << 20),
} | {f"cut at {size}": GOOD[:size] for size in (1, 8, 60, len(GOOD) - 1)}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_voice_file_is_a_clear_error(name: str, tmp_path: Path) -> None:
    path = tmp_path / "voice.safetensors"
    path.write_bytes(ODD[name])
    for read in (lambda: Voice.load(path), lambda: decode_voice(base64.b64encode(ODD[name]).decode())):
        with pytest.raises(InvalidRequestError, match=r"voice(_file|\.safetensors)'? (is not a|has|cannot be read)"):
            read()


@pytest.mark.parametrize("text", ["\ud83d", "\udc80\udc80", "é", "a", "====", "\0"])
def test_a_voice_file_that_is_no_base64_is_told(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="voice_file is not"):
        decode_voice(text)


def test_a_voice_sent_along_needs_no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/nowhere")
    monkeypatch.setattr(Path, "write_bytes", None)
    voice = Voice(x_vector=torch.arange(8.0))
    assert torch.equal(decode_voice(encode_voice(voice)).x_vector, torch.arange(8.0))


def test_what_is_no_regular_file_is_neither_waited_for_nor_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.safetensors"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero"), tmp_path):
        with pytest.raises(UnreadableVoiceError, match="cannot be read"):
            Voice.load(path)
    for odd in ("a\0b", "\ud800", tmp_path / "nowhere", pipe / "below", "x" * 5000):
        with pytest.raises(InvalidRequestError, match=r"does not exist|cannot be read"):
            Voice.load(odd)
    with pytest.raises(OSError, match="expected at most 3"):
        read_regular_file(Path(__file__), 3)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"group": 3}, "groups"),
        ({"first": 1 << 20}, "below .* in the first"),
        ({"other": 1 << 20}, "in the others"),
        ({"ids": 1 << 23}, "expected ids below"),
        ({}, None),
    ],
)
def test_numbers_that_a_checkpoint_has_no_row_for_are_refused_with_the_request(
    tiny_base: Checkpoint, change: dict[str, Any], complaint: str | None
) -> None:
    config = tiny_base.config
    codes = torch.zeros(2, change.get("group", config.num_code_groups), dtype=torch.int64)
    codes[1, 0], codes[1, -1] = change.get("first", 0), change.get("other", 0)
    voice = Voice(
        x_vector=torch.zeros(config.talker.hidden_size),
        reference_codes=codes,
        reference_text_ids=(change.get("ids", 1),),
    )
    planner = PromptPlanner(tiny_base)
    if complaint is None:
        planner.plan(voice=voice)
        return
    with pytest.raises(InvalidRequestError, match=complaint):
        planner.plan(voice=voice)
