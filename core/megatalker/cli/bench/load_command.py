"""``megatalker load``: many emulated listeners at once, on an engine in this process or on a server."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from megatalker.cli.console import say_plainly, stdout
from megatalker.cli.options import (
    BackendOption,
    CheckpointOption,
    CodecOption,
    ConfigOption,
    DeviceOption,
    DtypeOption,
    given,
    make_folder,
    read_settings,
)
from megatalker.cli.status import Status
from megatalker.errors import InvalidRequestError

if TYPE_CHECKING:
    from megatalker.cli.bench.traffic import Traffic

LONGEST_S = 86_400.0
MOST_AT_ONCE = 100_000
"""The most listeners at one moment: each is a task of this process."""
MOST_REQUESTS = 1_000_000
"""The most requests of one load."""


def load(
    streams: Annotated[str | None, typer.Option(help="Endless streams at once: numbers, comma-separated.")] = None,
    rate: Annotated[str | None, typer.Option(help="Requests a second at random moments: numbers.")] = None,
    burst: Annotated[str | None, typer.Option(help="Requests at one moment: numbers.")] = None,
    capacity: Annotated[
        bool, typer.Option("--capacity", help="Search the most endless streams at once without an underrun.")
    ] = False,
    most: Annotated[int, typer.Option(min=1, max=MOST_AT_ONCE, help="The most streams that --capacity tries.")] = 1024,
    seconds: Annotated[float, typer.Option(min=0.1, max=LONGEST_S, help="Seconds of each load.")] = 15.0,
    length: Annotated[
        float, typer.Option(min=0.08, max=LONGEST_S, help="Seconds of speech of a request, whatever its text.")
    ] = 4.0,
    natural: Annotated[bool, typer.Option("--natural", help="Speech ends where the model ends it.")] = False,
    live: Annotated[float | None, typer.Option(min=0.1, max=1000, help="Words a second at which text is fed.")] = None,
    ahead: Annotated[
        float | None, typer.Option(min=0.1, max=LONGEST_S, help="Seconds that speech may be ahead of playback.")
    ] = None,
    ramp: Annotated[float, typer.Option(min=0, max=LONGEST_S, help="Seconds over which endless streams begin.")] = 0.0,
    texts: Annotated[Path | None, typer.Option(help="File with a text to say on each line.")] = None,
    url: Annotated[
        str | None,
        typer.Option(help="Of a server, or of several, comma-separated, by turns; their key: setting server.api_key."),
    ] = None,
    connections: Annotated[
        int,
        typer.Option(
            min=1, max=1000, help="WebSockets to each URL, by turns: a balancer sends a whole one to one server."
        ),
    ] = 1,
    http: Annotated[
        bool, typer.Option("--http", help="Ask the URL by POST /v1/audio/speech, a connection for each request.")
    ] = False,
    max_streams: Annotated[int | None, typer.Option(min=1, help="Streams decoding at a time.")] = None,
    voice: Annotated[str | None, typer.Option(help="A speaker's name.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for load.json and load.png.")] = None,
    checkpoint: CheckpointOption = None,
    backend: BackendOption = None,
    codec: CodecOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    config: ConfigOption = None,
) -> None:
    """Measure what many listeners at once hear: first chunk, first sound, gaps, speech a second.

    Every listener plays from its first chunk on, without a buffer. They are tasks of one event loop; what they cost is
    in the JSON (listening_cores). Loads run one after another.
    """
    from megatalker.cli.bench.drive import TEXTS, Script
    from megatalker.cli.bench.load_run import Measurement, measure
    from megatalker.cli.bench.traffic import Traffic

    loads = [Traffic("streams", amount, ramp) for amount in _numbers("--streams", streams, whole=True)]
    loads += [Traffic("rate", amount) for amount in _numbers("--rate", rate)]
    loads += [Traffic("burst", amount) for amount in _numbers("--burst", burst, whole=True)]
    for one in loads:
        _require_bounded(one, seconds)
    if not loads and not capacity:
        raise InvalidRequestError("there is no load; give --streams, --rate, --burst or --capacity")
    if out is not None:
        make_folder(out)
    engine_options = given(
        checkpoint=checkpoint, backend=backend, codec=codec, device=device, dtype=dtype, max_streams=max_streams
    )
    if url is not None and engine_options:
        raise InvalidRequestError(f"with --url the server decides about {', '.join(engine_options)}; leave it out here")
    if url is None and (http or connections != 1):
        raise InvalidRequestError("--connections and --http are about servers; give --url, too")
    if http and connections != 1:
        raise InvalidRequestError("--http makes a connection for each request; leave --connections out")
    if http and live is not None:
        raise InvalidRequestError("--http asks for whole texts; leave --live out, or --http")
    script = Script(
        texts=TEXTS if texts is None else _lines(texts),
        length_s=None if natural else length,
        words_a_second=live,
        ahead_s=ahead,
        voice=voice,
    )
    urls = [] if url is None else [one.strip() for one in url.split(",")]
    wanted = Measurement(loads, script, seconds, most if capacity else None, urls, connections, http)
    with Status() as status:
        status.stage("importing torch")
        from megatalker.cli.bench.load_report import errors, plot, table
        from megatalker.cli.bench.report import save

        settings = read_settings(config, **engine_options)
        report = measure(wanted, settings, status.stage)
    stdout.print(table(report))
    for line in errors(report):
        stdout.print(line, highlight=False, soft_wrap=True)
    if report.capacity is not None:
        stdout.print(f"{report.capacity} endless streams at once without an underrun", highlight=False)
    if out is not None:
        for path in save(report, out, "load", partial(plot, report)):
            say_plainly(f"wrote {path}")


def _numbers(option: str, text: str | None, *, whole: bool = False) -> list[float]:
    found = []
    for part in [] if text is None else text.split(","):
        try:
            number = int(part) if whole else float(part)
        except ValueError:
            number = 0
        if not 0 < number < float("inf"):
            expected = "whole numbers from 1 on" if whole else "numbers above 0"
            raise InvalidRequestError(f"{option} is {text!r}, expected {expected}, comma-separated")
        found.append(number)
    return found


def _require_bounded(load: "Traffic", seconds: float) -> None:
    requests, most = (load.amount * seconds, MOST_REQUESTS) if load.pattern == "rate" else (load.amount, MOST_AT_ONCE)
    if requests > most:
        raise InvalidRequestError(f"{load} are {requests:g} requests, expected {most} at most; ask for fewer")


def _lines(path: Path) -> list[str]:
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"--texts: {str(path)!r} cannot be read: {error}") from error
    if not lines:
        raise InvalidRequestError(f"--texts: {str(path)!r} holds no text")
    return lines
