"""A headroom map as SVG, which pages and documents show without a script."""

from __future__ import annotations

from html import escape
from itertools import groupby

from plimsoll.report.headroom_map import Bits, HeadroomMap, columns_of, places, rows_of

CELL = (32, 17)  # width, height
LABELS, HEAD, GAP = 84, 62, 28
# Bits and their colours, as in the heat maps of training: white where a value reaches the format's end.
COLOURS = ((-2.0, (178, 24, 43)), (0.0, (247, 247, 247)), (6.0, (33, 102, 172)))
NOT_FINITE = "#000000"


def _colour(bits: Bits) -> str:
    if bits is None:
        return NOT_FINITE
    bits = min(max(bits, COLOURS[0][0]), COLOURS[-1][0])
    for (low, first), (high, last) in zip(COLOURS, COLOURS[1:]):
        if bits <= high:
            share = (bits - low) / (high - low)
            return "#" + "".join(f"{round(a + share * (b - a)):02x}" for a, b in zip(first, last))
    raise AssertionError(bits)


def _text(x: float, y: float, text: str, **style: str | int) -> str:
    attributes = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in style.items())
    return f'<text x="{x:g}" y="{y:g}"{attributes}>{escape(text)}</text>'


def _cell(x: float, y: float, bits: Bits, name: str) -> str:
    width, height = CELL
    colour = _colour(bits)
    is_dark = bits is None or not -1.2 < bits < 3.5
    label = "Inf" if bits is None else f"{round(bits, 1) + 0.0:.1f}"  # without -0
    what = "Inf or NaN" if bits is None else f"{bits:.2f} bits"
    return (
        f'<g><title>{escape(name)}: {what}</title><rect x="{x:g}" y="{y:g}" width="{width - 1}" height="{height - 1}" fill="{colour}"/>'
        + _text(x + width / 2 - 0.5, y + height - 5, label, text_anchor="middle", font_size=9, fill="#fff" if is_dark else "#222")
        + "</g>"
    )


def heat_maps(maps: list[HeadroomMap]) -> str:
    """Side by side, of the same rows and columns: those of all values."""
    found = places(list(dict.fromkeys(name for each in maps for name in each.bits)))
    rows, columns = rows_of(list(found.values())), columns_of(list(found.values()))
    width, height = CELL
    drawn = []
    for index, each in enumerate(maps):
        left = LABELS + index * (len(columns) * width + GAP)
        drawn.append(_text(left, 14, each.title, font_weight="bold"))
        for group, members in groupby(enumerate(columns), key=lambda column: column[1][0]):
            first = next(members)[0]
            drawn.append(_text(left + first * width, 34, group, font_size=11))
        for number, (_, column) in enumerate(columns):
            drawn.append(_text(left + (number + 0.5) * width, 52, column, text_anchor="middle", font_size=9))
        for name, bits in each.bits.items():
            place = found[name]
            column = columns.index((place.group, place.column))
            drawn.append(_cell(left + column * width, HEAD + rows.index(place.row) * height, bits, name))
    labels = [_text(LABELS - 8, HEAD + (index + 1) * height - 5, row, text_anchor="end", font_size=11) for index, row in enumerate(rows)]
    size = (LABELS + len(maps) * (len(columns) * width + GAP) - GAP + 4, HEAD + len(rows) * height + 4)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]}" height="{size[1]}" viewBox="0 0 {size[0]} {size[1]}" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="#222"><rect width="100%" height="100%" fill="#fff"/>{"".join(drawn + labels)}</svg>\n'
    )
