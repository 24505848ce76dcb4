"""The consoles of the commands: results go to standard output, everything else to standard error."""

from rich.console import Console

stdout = Console()
stderr = Console(stderr=True)


def say_plainly(line: str) -> None:
    """One line on standard error, as it stands: wrapped by the terminal alone, brackets are no markup."""
    stderr.print(line, markup=False, highlight=False, soft_wrap=True)
