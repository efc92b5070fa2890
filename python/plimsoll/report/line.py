"""Report of `plimsoll line` (plimsoll_line.json): what each format costs, what stands closest to the line, and the plan."""

from __future__ import annotations

import math
from base64 import b64encode
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any

from plimsoll.report.headroom_map import HeadroomMap
from plimsoll.report.heat_map import STYLE, heat_maps, matplotlib_package
from plimsoll.report.style import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FILE = "plimsoll_line.json"
SHOWN = 24  # culprits in a panel
COLUMNS = {
    "holds": "holds",
    "finite": "finite",
    "perplexity": "perplexity",
    "logits_kl": "KL, nats",
    "logits_kl_p99": "99 %",
    "logits_kl_p999": "99.9 %",
    "top1_agreement": "top 1",
    "bytes_per_weight": "bytes a weight",
}
FP16_LARGEST, E4M3_LARGEST = 65504.0, 448.0
FREE, SPARED = COLOURS[1], COLOURS[2]


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "NaN" if value is None else f"{value:.4g}"


def _codes(found: dict[str, Any]) -> str:
    """Name of the codes that the plan is for."""
    return str(found.get("codes", "fp8"))


def _formats(found: dict[str, Any]) -> str:
    head = "".join(f"<th>{text}</th>" for text in ("format", *COLUMNS.values()))
    rows = []
    for name, entry in found["formats"].items():
        cells = [name, *(_cell(entry[column]) for column in COLUMNS)]
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _text(found: dict[str, Any]) -> str:
    tokens = found["tokens"]
    lines = [
        f"Against FP32, on {tokens['held_out']} tokens held out; another {tokens['search']} served to search. "
        f"A format holds if its mean KL is at most {found['max_kl']:g} nats.",
        "The lines below: that bound, which is of all products together, and FP16's largest number.",
    ]
    plan, gauge = found["plan"], found["gauge"] or {}
    if plan is not None:
        spared = sum(bool(each["high_precision"]) for each in found["products"])
        before = len(plan["high_precision"]) - spared  # a plan that the source had
        beside = f" beside {before} of the source's plan" if before > 0 else ""
        lines.append(
            f"Plan: {spared} of {len(found['products'])} products stay in BF16{beside}, {100 * plan['narrow_share']:.1f} % of the "
            f"weights are {_codes(found)} codes."
        )
    if "certificate" in gauge:
        lines.append("FP16 fails as the weights are; gauge moved them by powers of two, and they are FP32's same function.")
    if "error" in gauge:
        lines.append(f"FP16 fails, and gauge: {gauge['error']}.")
    return "".join(f"<p>{escape(line)}</p>" for line in lines) + _spared(found)


def _spared(found: dict[str, Any]) -> str:
    """The products that stay in BF16, folded: a large model may have a hundred."""
    names = (found["plan"] or {}).get("high_precision", [])
    items = "".join(f"<li>{escape(name)}</li>" for name in names)
    return f"<details><summary>the {len(names)} products in BF16</summary><ul>{items}</ul></details>" if names else ""


def _panel(axes: Axes, names: list[str], values: list[float], colours: list[str], line: float, title: str) -> None:
    axes.barh(range(len(names)), values, color=colours)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.axvline(line, color="#000000", linewidth=1.5)
    axes.set_title(title, loc="left", fontweight="bold")
    axes.spines[["top", "right"]].set_visible(False)


def _products(axes: Axes, found: dict[str, Any]) -> None:
    largest = max((each["kl_alone"] or 0 for each in found["products"]), default=0) or 1
    # Values that are not finite stand beyond all others.
    rows = [(each["kl_alone"] if each["kl_alone"] is not None else 10 * largest, each) for each in found["products"]]
    rows = sorted(rows, key=lambda row: -row[0])[:SHOWN]
    least = min((value for value, _ in rows if value > 0), default=1e-6)
    _panel(
        axes,
        [each["name"] for _, each in rows],
        [max(value, least / 2) for value, _ in rows],
        [SPARED if each["high_precision"] else FREE for _, each in rows],
        found["max_kl"],
        f"KL of a product alone in {_codes(found)} codes, nats; orange: stays in BF16",
    )
    axes.set_xscale("log")


def _values(axes: Axes, found: dict[str, Any]) -> None:
    rows = [value for value in found["values"] if value["headroom_bits"] is not None][:SHOWN]
    bits = [value["headroom_bits"] for value in rows]
    colours = [SPARED if each < 0 else FREE for each in bits]
    _panel(axes, [value["name"] for value in rows], bits, colours, 0.0, "headroom in FP16, bits")


def _picture(svg: str, text: str) -> str:
    data = b64encode(svg.encode()).decode()
    return f'<img alt="{text}" style="max-width: 100%" src="data:image/svg+xml;base64,{data}">'


def _culprits(found: dict[str, Any]) -> str:
    matplotlib = matplotlib_package()
    panels = [draw for draw, rows in ((_products, found["products"]), (_values, found["values"])) if rows]
    if not panels:
        return ""
    with matplotlib.rc_context(STYLE):
        figure = matplotlib.figure.Figure(figsize=(12, 5), layout="constrained")
        for axes, draw in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            draw(axes, found)
        text = StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return _picture(text.getvalue(), "culprits first")


def _headroom(found: dict[str, Any]) -> str:
    """Every value by block, in the formats that hold it without a scale; BF16 and FP32 have a hundred bits more."""
    seen = {value["name"]: value["headroom_bits"] for value in found["values"] if value["amax"] != 0}
    if not seen:
        return ""
    lower = math.log2(FP16_LARGEST / E4M3_LARGEST)
    narrow = {name: None if bits is None else bits - lower for name, bits in seen.items()}
    maps = [HeadroomMap("FP16, on your text", seen), HeadroomMap("E4M3 without a scale", narrow)]
    return "<h2>Headroom of every value</h2>" + "".join(_picture(heat_maps([each]), f"headroom in {each.title}") for each in maps)


def _costs(found: dict[str, Any]) -> str:
    """Every product by block: how far its KL alone is below the bound, in bits."""
    if not found["max_kl"] > 0:
        return ""
    bits = {
        f"{each['name']}/KL": None if each["kl_alone"] is None else math.log2(found["max_kl"] / each["kl_alone"])
        for each in found["products"]
        if each["kl_alone"] is None or each["kl_alone"] > 0
    }
    if not bits:
        return ""
    title = f"{_codes(found)} codes: bits from a product's KL alone up to {found['max_kl']:g} nats"
    return "<h2>Cost of every product</h2>" + _picture(heat_maps([HeadroomMap(title, bits)]), "cost")


def is_line(found: dict[str, Any]) -> bool:
    """Whether the members are those that `plimsoll line` writes."""
    formats, tokens, products, values = (found.get(name) for name in ("formats", "tokens", "products", "values"))
    if not (isinstance(formats, dict) and isinstance(tokens, dict) and isinstance(products, list) and isinstance(values, list)):
        return False
    return (
        all(isinstance(entry, dict) and all(column in entry for column in COLUMNS) for entry in formats.values())
        and all({"name", "kl_alone", "high_precision"} <= set(each) for each in products)
        and all({"name", "amax", "headroom_bits"} <= set(each) for each in values)
        and {"search", "held_out"} <= set(tokens)
        and "max_kl" in found
        and "gauge" in found
        and (found.get("plan", 0) is None or {"high_precision", "narrow_share"} <= set(found.get("plan") or {}))
    )


def line_html(label: str, found: dict[str, Any]) -> str:
    parts = (_formats(found), _text(found), _culprits(found), _costs(found), _headroom(found))
    return f"<h2>{escape(label)}: how far it may be loaded</h2>" + "".join(parts)
