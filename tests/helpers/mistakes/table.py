"""Writes ``conformance_tests/MISTAKES.md``: every deliberate mistake, and the tests that catch it."""

from pathlib import Path

from megatalker.interfaces import CodecBackend, TalkerBackend
from mistakes import CATALOGUE, Mistake

TABLE = Path(__file__).parents[3] / "conformance_tests" / "MISTAKES.md"
HEAD = """\
# Mistakes that the suite catches

Each line is a backend that was broken on purpose (`tests/helpers/mistakes`), and the tests that fail for it; the same
backends without the mistake pass them. `tests/conformance/test_meta.py` runs them all and keeps this table true.
"""


def render() -> str:
    """The whole file."""
    return HEAD + _section("Talkers", TalkerBackend) + _section("Codecs", CodecBackend)


def _section(title: str, kind: type) -> str:
    chosen = [mistake for mistake in CATALOGUE if isinstance(mistake.backend, kind)]
    return f"\n## {title}: {len(chosen)}\n\n| mistake | caught by |\n|---|---|\n" + "".join(map(_line, chosen))


def _line(mistake: Mistake) -> str:
    tests = ", ".join(f"`{test}`" for test in sorted(mistake.caught_by))
    options = f" with `{' '.join(mistake.options)}`" if mistake.options else ""
    return f"| `{mistake.backend.name}`: {mistake.backend.summary} | {tests}{options} |\n"


if __name__ == "__main__":
    TABLE.write_text(render())
