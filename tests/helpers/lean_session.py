"""A session without the extra ``official``, in one process. Writes ``found.json``."""

import json
import logging
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from declared import allow_only
from waiting import HANG_S


def error_of(call: Callable[[], Any]) -> str:
    from megatalker.errors import MegatalkerError

    try:
        call()
    except MegatalkerError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def told() -> list[str]:
    """Return a list that collects log messages from now on."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("megatalker").addHandler(handler)
    logging.getLogger("megatalker").setLevel(logging.INFO)
    return lines


SENTENCE = "Three green boats waited near the old harbor."


def post(url: str, content: bytes, kind: str) -> bytes:
    with urlopen(Request(url, content, {"content-type": kind}), timeout=HANG_S) as answer:
        found: bytes = answer.read()
    return found


def form(reference: bytes, **fields: str) -> bytes:
    """Return the body of a form with a file, with ``limit`` between its parts."""
    parts = [
        f'--limit\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}' for name, value in fields.items()
    ]
    head = '--limit\r\ncontent-disposition: form-data; name="reference"; filename="any.wav"\r\n\r\n'
    return "\r\n".join([*parts, head]).encode() + reference + b"\r\n--limit--\r\n"


def clone() -> dict[str, int]:
    """Clone a recording by every face of the program; returns how many bytes of audio each made."""
    from megatalker.checkpoint import Checkpoint
    from megatalker.cli.main import app
    from serving import serving

    said = ["--checkpoint", "demo-base", "--ref-audio", "hi.wav", "--ref-text", SENTENCE, "--seed", "1"]
    app(["say", SENTENCE, *said, "--out", "alike.wav", "--save-voice", "otto.safetensors"], standalone_mode=False)
    added = ["otto", "--ref-audio", "hi.wav", "--ref-text", SENTENCE, "--voices-dir", "voices"]
    app(["voices", "add", *added], standalone_mode=False)
    reference, made = Path("hi.wav").read_bytes(), {"say": Path("alike.wav").stat().st_size}
    real = {"backend": "compiled", "codec": "streaming", "device": "cpu"}
    with serving(Checkpoint.open("demo-base"), server={"voices_dir": Path("voices")}, **real) as served:
        post(
            served.url + "/v1/voices",
            form(reference, name="again", transcript=SENTENCE),
            "multipart/form-data; boundary=limit",
        )
        embedded = {"ref_audio": b64encode(reference).decode(), "ref_text": SENTENCE}
        for name, voice in {"folder": {"voice": "otto"}, "upload": {"voice": "again"}, "request": embedded}.items():
            asked = {"input": SENTENCE, "response_format": "wav", "seed": 1} | voice
            made[name] = len(post(served.url + "/v1/audio/speech", json.dumps(asked).encode(), "application/json"))
    return made


def session() -> dict[str, Any]:
    from megatalker.checkpoint import Checkpoint
    from megatalker.cli.main import app
    from megatalker.cli.verify.order import PARTS, VerifyOptions
    from megatalker.engine import Engine
    from megatalker.serving.server.app import create_app
    from megatalker.settings import Settings
    from megatalker_conformance.verify.program import verify

    app(["say", SENTENCE, "--voice", "otto", "--out", "hi.wav", "--no-play", "--seed", "1"], standalone_mode=False)
    log, settings, demo = told(), Settings.read(device="cpu"), Checkpoint.open("demo")
    with Engine.open(settings, checkpoint=demo) as engine:
        paths = create_app(engine).openapi()["paths"]
    order = VerifyOptions(frames=8, skip=frozenset(PARTS) - {"prompts", "codec"})
    card = verify(demo, settings, order, lambda _: None)
    by_name = {role: settings.model_copy(update={role: "reference"}) for role in ("backend", "codec")}
    return {
        "log": log,
        "paths": list(paths),
        "card": [(check.part, check.name, check.outcome, check.found) for check in card.checks],
        "cloned": clone(),
        "errors": {role: error_of(lambda one=one: Engine.open(one, checkpoint=demo)) for role, one in by_name.items()},
    }


def main() -> None:
    allow_only("server")
    found = session()
    allow_only("client", "pipecat")
    from megatalker.serving.client import RemoteEngine
    from megatalker_pipecat import MegatalkerTTSService

    found["also"] = [RemoteEngine.__name__, MegatalkerTTSService.__name__]
    Path("found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
