"""A session without the extra ``official``, in one process. Takes a base checkpoint, writes ``found.json``."""

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from declared import allow_only


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


def session(base: str) -> dict[str, Any]:
    from megatalker.checkpoint import Checkpoint
    from megatalker.cli.main import app
    from megatalker.cli.verify.order import PARTS, VerifyOptions
    from megatalker.engine import Engine
    from megatalker.serving.server.app import create_app
    from megatalker.settings import Settings
    from megatalker.voices import VoiceCloner
    from megatalker_conformance.verify.program import verify

    app(["say", "Hi.", "--out", "hi.wav", "--no-play", "--seed", "1"], standalone_mode=False)
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
        "errors": {
            "cloning": error_of(lambda: VoiceCloner(Checkpoint.open(base))),
            **{role: error_of(lambda one=one: Engine.open(one, checkpoint=demo)) for role, one in by_name.items()},
        },
    }


def main() -> None:
    allow_only("server")
    found = session(sys.argv[1])
    allow_only("client", "pipecat")
    from megatalker.serving.client import RemoteEngine
    from megatalker_pipecat import MegatalkerTTSService

    found["also"] = [RemoteEngine.__name__, MegatalkerTTSService.__name__]
    Path("found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
