"""Speaks with the megatalker of another environment, as a command and as a server; `make package` runs it there."""

import os
import subprocess
import sys
import wave
from pathlib import Path
from urllib.request import urlopen

import megatalker
from megatalker.serving.client import RemoteEngine
from megatalker_benchmarks.ready_line import wait_until_ready

COMMAND = str(Path(sys.executable).with_name("megatalker"))
TEXT = "This is an installed package."


def main() -> None:
    where = Path(megatalker.__file__)
    if not where.is_relative_to(sys.prefix):
        sys.exit(f"megatalker was imported from {where}, not from the environment {sys.prefix}")
    subprocess.run([COMMAND, "say", TEXT, "--out", "said.wav", "--no-play", "--seed", "1"], check=True)
    with wave.open("said.wav") as said:
        spoken = said.getnframes()
    served = os.environ | {"MEGATALKER_BACKENDS__COMPILED__COMPILE": "off"}  # minutes of compilation
    server = subprocess.Popen([COMMAND, "serve", "--port", "0"], env=served, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        url = wait_until_ready(server.stderr)["url"]
        with RemoteEngine(url) as engine, engine.speak(TEXT, seed=1) as stream:
            streamed = sum(len(chunk.pcm) for chunk in stream)
        with urlopen(url + "/") as page:
            shown = page.read()
    finally:
        server.terminate()
        server.wait()
    if not (spoken == streamed > 24_000 and b"page.js" in shown):
        sys.exit(f"said {spoken} samples, streamed {streamed}, page {shown[:80]!r}; expected the same, over a second")
    print(f"{where.parent}: said and streamed {spoken / 24_000:.1f} s")  # noqa: T201


if __name__ == "__main__":
    main()
