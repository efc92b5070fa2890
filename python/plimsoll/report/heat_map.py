"""Headroom maps as one SVG, which pages and documents show without a script."""

from __future__ import annotations

import warnings
from io import StringIO
from itertools import groupby
from typing import TYPE_CHECKING, Any

from plimsoll.report.headroom_map import Bits, HeadroomMap, Place, columns_of, places, rows_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CELL = (0.34, 0.19)  # inches
LABELS = (2.4, 0.9)  # inches for the rows' and the columns', and the bar
LETTER = 0.065  # inches of a column's label, which stands upright
# Bits and their colours, as in the heat maps of training: white where a value reaches the format's end.
LOWEST, HIGHEST = -2.0, 6.0
COLOURS = {LOWEST: "#b2182b", 0.0: "#f7f7f7", HIGHEST: "#2166ac"}
NOT_FINITE, BELOW = "#000000", -1e3
STYLE = {"font.size": 8, "font.family": "sans-serif", "svg.fonttype": "none", "svg.hashsalt": "plimsoll"}


def matplotlib_package() -> Any:
    """Imported where something is drawn: it takes longer than the rest of the package."""
    try:
        import matplotlib
        import matplotlib.figure
    except ImportError:
        raise ImportError("report: expected the package matplotlib, found none; pip install matplotlib") from None
    return matplotlib


def _label(bits: Bits) -> str:
    return "Inf" if bits is None else f"{round(bits, 1) + 0.0:.1f}"  # without -0


def _draw(axes: Axes, each: HeadroomMap, found: dict[str, Place], style: dict[str, Any]) -> None:
    rows, columns = rows_of(list(found.values())), columns_of(list(found.values()))
    cells: list[list[float]] = [[float("nan")] * len(columns) for _ in rows]
    for name, bits in each.bits.items():
        row, column = rows.index(found[name].row), columns.index((found[name].group, found[name].column))
        cells[row][column] = BELOW if bits is None else max(bits, LOWEST)
        is_dark = bits is None or not -1.2 < bits < 3.5
        axes.text(column, row, _label(bits), ha="center", va="center", fontsize=6.5, color="white" if is_dark else "#222222")
    axes.imshow(cells, aspect="auto", interpolation="nearest", **style)
    axes.set_title(each.title, loc="left", fontweight="bold")
    axes.set_xticks(range(len(columns)), [column for _, column in columns], rotation=90)
    axes.set_yticks(range(len(rows)), rows)
    axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    axes.spines[:].set_visible(False)
    axes.hlines([row + 0.5 for row in range(len(rows) - 1)], -0.5, len(columns) - 0.5, color="white", linewidth=1)
    axes.vlines([column + 0.5 for column in range(len(columns) - 1)], -0.5, len(rows) - 0.5, color="white", linewidth=1)
    groups = [
        (group, [number for number, _ in members])
        for group, members in groupby(enumerate(columns), key=lambda column: column[1][0])
    ]
    below = axes.secondary_xaxis("bottom")
    below.set_xticks([(members[0] + members[-1]) / 2 for _, members in groups], [group for group, _ in groups])
    below.tick_params(length=0)
    below.spines[:].set_visible(False)
    axes.vlines([members[0] - 0.5 for _, members in groups[1:]], -0.5, len(rows) - 0.5, color="white", linewidth=4)


def heat_maps(maps: list[HeadroomMap]) -> str:
    """Side by side, of the same rows and columns: those of all values."""
    matplotlib = matplotlib_package()
    found = places(list(dict.fromkeys(name for each in maps for name in each.bits)))
    rows, names = len(rows_of(list(found.values()))), [name for _, name in columns_of(list(found.values()))]
    height = LABELS[1] + LETTER * max(map(len, names), default=0) + max(rows, 8) * CELL[1]
    # A title is as wide as its map at least.
    width = max(len(maps) * len(names) * CELL[0], len(maps) * LETTER * max(len(each.title) for each in maps))
    size = (LABELS[0] + width, height)
    span = HIGHEST - LOWEST
    colours = matplotlib.colors.LinearSegmentedColormap.from_list(
        "headroom", [((bits - LOWEST) / span, colour) for bits, colour in COLOURS.items()]
    )
    style = {"cmap": colours.with_extremes(under=NOT_FINITE, bad="none"), "vmin": LOWEST, "vmax": HIGHEST}
    with matplotlib.rc_context(STYLE):
        figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
        drawn = figure.subplots(1, len(maps), sharey=True, squeeze=False)[0]
        for axes, each in zip(drawn, maps, strict=True):
            _draw(axes, each, found, style)
        bar = figure.colorbar(drawn[0].images[0], ax=drawn, pad=0.02, aspect=12, label="bits of headroom")
        bar.outline.set_visible(False)
        text = StringIO()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # letters that the font lacks, numbers that no colour has
            figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()
