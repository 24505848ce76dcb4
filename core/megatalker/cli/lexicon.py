"""``megatalker lexicon``: files of words and respellings."""

from pathlib import Path
from typing import Annotated

import typer

from megatalker.cli.console import stdout

lexicon = typer.Typer(add_completion=False, no_args_is_help=True, help="Files of words and respellings.")


@lexicon.callback()
def _lexicon() -> None:
    """Keep ``check`` a command of its own: typer would take its only command for the whole."""


@lexicon.command()
def check(
    file: Annotated[Path, typer.Argument(help="The file.")],
    text: Annotated[str | None, typer.Option(help="Show what is spoken for this text.")] = None,
    language: Annotated[str, typer.Option(help="Language of --text: english, en, ...")] = "auto",
    normalize: Annotated[
        bool, typer.Option("--normalize", help="Write numbers and the like in --text out, too.")
    ] = False,
) -> None:
    """Check FILE, and count its words by language."""
    from megatalker.errors import InvalidRequestError
    from megatalker.prompt.cleaning import clean
    from megatalker.prompt.languages import NAMES, resolve
    from megatalker.prompt.rewriting.lexicon_files import read_lexicon
    from megatalker.prompt.rewriting.normalisation import normaliser_of
    from megatalker.prompt.rewriting.rewriter import TextRewriter

    words = read_lexicon(file)
    for name, count in words.counts().items():
        stdout.print(f"{name or 'every language'}: {count} words", highlight=False, markup=False)
    if text is None:
        return
    meant = resolve(language, ("auto", *NAMES.values()))
    if meant is None:
        raise InvalidRequestError(f"unknown language {language!r}, expected auto or one of {', '.join(NAMES.values())}")
    told = None if meant == "auto" else meant
    rewriter = TextRewriter(words.tables(told), normaliser_of(told) if normalize else None)
    stdout.print(rewriter.whole(clean(text)), highlight=False, markup=False, soft_wrap=True)
