"""Where the commands print: results on standard output, everything else on standard error."""

from rich.console import Console

stdout = Console()
stderr = Console(stderr=True)
