"""Draws ``graph LR`` of arrows between words as SVG, so that the site needs no script of others for it."""

import re
from collections.abc import Iterable

ROW, GAP, HEIGHT, LETTER, MARGIN = 46, 40, 28, 8.2, 8

Arrow = tuple[str, str]


def draw(source: str) -> str:
    """An inline SVG of ``source``, which holds a line ``a --> b`` for each arrow and a single word for other nodes.

    Arrows that follow from others are left out: of a → b, b → c and a → c the last.
    """
    arrows = re.findall(r"(\w+) --> (\w+)", source)
    nodes = dict.fromkeys(re.findall(r"\b(?!graph\b|LR\b)\w+", source))
    columns = _columns(nodes, arrows)
    width = {rank: max(len(name) for name in names) * LETTER + 20 for rank, names in columns.items()}
    height = max(map(len, columns.values())) * ROW + MARGIN
    place, left = {}, float(MARGIN)
    for rank in sorted(columns):
        top = (height - len(columns[rank]) * ROW) / 2 + (ROW - HEIGHT) / 2
        place |= {name: (left, top + ROW * row, width[rank]) for row, name in enumerate(columns[rank])}
        left += width[rank] + GAP
    drawn = _reduced(arrows)
    lines = [_arrow(place[origin], place[target]) for origin, target in drawn]
    note = "" if len(drawn) == len(arrows) else "<figcaption>Arrows that follow from others are not drawn.</figcaption>"
    right = left - GAP + MARGIN
    boxes = [_box(name, *where) for name, where in place.items()]
    return (
        f'<figure class="graph"><svg width="{right:.0f}" viewBox="0 0 {right:.0f} {height:.0f}" role="img" '
        f'aria-label="{len(nodes)} parts and what they import"><defs><marker id="tip" viewBox="0 0 8 8" refX="8" '
        'refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z"/></marker></defs>'
        + "".join(lines + boxes)
        + f"</svg>{note}</figure>"
    )


def _reached(start: str, arrows: Iterable[Arrow]) -> set[str]:
    found, rest = set(), [start]
    while rest:
        here = rest.pop()
        rest += (further := {target for origin, target in arrows if origin == here} - found)
        found |= further
    return found


def _reduced(arrows: list[Arrow]) -> list[Arrow]:
    def follows(origin: str, target: str) -> bool:
        others = [between for one, between in arrows if one == origin and between != target]
        return any(target in _reached(between, arrows) for between in others)

    return [arrow for arrow in arrows if not follows(*arrow)]


def _columns(nodes: Iterable[str], arrows: list[Arrow]) -> dict[int, list[str]]:
    """Nodes by the length of the longest way to them; those without one, right before what they reach."""
    columns: dict[int, list[str]] = {}

    def rank(node: str) -> int:
        return max((rank(origin) + 1 for origin, target in arrows if target == node), default=0)

    for node in nodes:
        before = [rank(target) - 1 for origin, target in arrows if origin == node]
        columns.setdefault(rank(node) or min(before, default=0), []).append(node)
    return columns


def _box(name: str, left: float, top: float, width: float) -> str:
    middle = f'x="{left + width / 2:.0f}" y="{top + HEIGHT / 2 + 5:.0f}"'
    frame = f'<rect x="{left:.0f}" y="{top:.0f}" width="{width:.0f}" height="{HEIGHT}" rx="5"/>'
    return f'{frame}<text {middle} text-anchor="middle">{name}</text>'


def _arrow(origin: tuple[float, float, float], target: tuple[float, float, float]) -> str:
    begin, end = (origin[0] + origin[2], origin[1] + HEIGHT / 2), (target[0], target[1] + HEIGHT / 2)
    bend = (end[0] - begin[0]) / 2
    return (
        f'<path class="arrow" marker-end="url(#tip)" d="M{begin[0]:.0f} {begin[1]:.0f} '
        f'C{begin[0] + bend:.0f} {begin[1]:.0f} {end[0] - bend:.0f} {end[1]:.0f} {end[0]:.0f} {end[1]:.0f}"/>'
    )
