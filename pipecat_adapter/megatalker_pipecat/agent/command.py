"""The command line of ``megatalker-agent``."""

import argparse
import asyncio
import sys
from pathlib import Path

from pipecat.runner.run import app, main

from megatalker.errors import MegatalkerError, SettingsError
from megatalker_pipecat.agent.ends import ends_here
from megatalker_pipecat.agent.engine import engine_at_hand
from megatalker_pipecat.agent.logs import log_decisions
from megatalker_pipecat.agent.phone import PROVIDERS
from megatalker_pipecat.agent.plan import Plan
from megatalker_pipecat.agent.reception import Reception
from megatalker_pipecat.agent.terminal import talk_here
from megatalker_pipecat.agent.transports import offer, offered


def run() -> None:
    """Start the agent as its arguments say; errors of ours end it with one line."""
    try:
        start()
    except MegatalkerError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - a command's output
        sys.exit(1)


def start() -> None:
    """Read the arguments, check the configuration, then talk here or serve the browser page."""
    own = own_arguments()
    options, others = own.parse_known_args()
    here = options.local or options.out is not None
    if options.out is not None and not options.text:
        raise SettingsError("--out writes the answers to typed text; add --text")
    if here and others:
        own.error(f"{' '.join(others)}: not with --local or --out, where nothing is served")
    only = transport_asked_for(own, others, listens=not options.text)
    parser = argparse.ArgumentParser(prog="megatalker-agent", description=__doc__, parents=[own])
    if {"-h", "--help"} & set(others):
        main(parser)  # prints the runner's arguments, too, and exits
    log_decisions(bool({"-v", "--verbose"} & set(others)))
    plan = Plan.read(text_only=options.text, config_file=options.config)
    ends = ends_here(plan, options.out) if here else None
    if ends is not None:
        with engine_at_hand(plan):
            asyncio.run(talk_here(plan, ends))
        return
    reception = Reception(plan)
    app.router.lifespan_context = reception.open
    with reception.page.serve(app):
        offer(app, listens=plan.stt is not None, only=only)
        parser.set_defaults(reception=reception)
        main(parser)


def own_arguments() -> argparse.ArgumentParser:
    """The agent's arguments besides those of Pipecat's runner."""
    parser = argparse.ArgumentParser(prog="megatalker-agent", add_help=False)
    parser.add_argument("--text", action="store_true", help="type instead of talking; needs no speech to text")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--local", action="store_true", help="this machine's sound device instead of a browser")
    where.add_argument("--out", type=Path, metavar="WAV", help="with --text: type here, write the speech into a file")
    parser.add_argument("--config", type=Path, metavar="TOML", help="settings file (default: megatalker.toml)")
    return parser


def transport_asked_for(own: argparse.ArgumentParser, others: list[str], *, listens: bool) -> str | None:
    """The transport among the runner's arguments; ends the process when it is one that does not work."""
    runners = argparse.ArgumentParser(add_help=False)
    runners.add_argument("-t", "--transport")
    runners.add_argument("-d", "--direct", action="store_const", const="daily", dest="transport")
    asked: str | None = runners.parse_known_args(others)[0].transport
    if asked is not None and asked not in (works := offered(listens=listens)):
        hint = " or, without --text, by telephone" if asked in PROVIDERS else ""
        own.error(f"the agent is not reached by {asked}; it is by {', '.join(works)}{hint}")
    return asked
