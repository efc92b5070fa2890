"""Style that all figures share. Figures are plotly's, as plain dictionaries."""

from __future__ import annotations

from typing import Any

Figure = dict[str, Any]

# Okabe and Ito's colours, which the colour-blind can tell apart.
COLOURS = ("#444444", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARGIN = {"l": 70, "r": 30, "t": 30, "b": 50}
FONT = {"family": "system-ui, sans-serif", "size": 13, "color": "#222"}


def colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def layout(height: int, **more: Any) -> dict[str, Any]:
    return {"height": height, "margin": MARGIN, "font": FONT, "hovermode": "closest", "plot_bgcolor": "#fff", **more}


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    return {"title": {"text": title}, "gridcolor": "#e5e5e5", "zeroline": False, **more}


def log_axis(title: str, **more: Any) -> dict[str, Any]:
    return axis(title, type="log", exponentformat="power", **more)
