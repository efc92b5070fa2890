"""Reports of `plimsoll parity --json FILE`, `plimsoll gauge` (plimsoll_gauge.json) and `plimsoll line` (plimsoll_line.json) on a
checkpoint, as HTML."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from plimsoll._files import read_text
from plimsoll.report.headroom_map import HeadroomMap
from plimsoll.report.heat_map import heat_maps
from plimsoll.report.line import FILE as LINE_FILE
from plimsoll.report.line import is_line, line_html

CERTIFICATE = "plimsoll_gauge.json"
COLUMNS = {
    "perplexity": "perplexity",
    "encoder_relative_l2": "encoder, relative L2",
    "logits_kl": "KL, nats",
    "logits_kl_p99": "99 %",
    "logits_kl_p999": "99.9 %",
    "top1_agreement": "top-1 agreement",
    "top5_agreement": "top-5 agreement",
    "string_match": "same text",
    "accuracy": "accuracy",
    "bytes_per_weight": "bytes a weight",
    "tokens_per_s": "tokens/s",
    "first_non_finite": "Inf or NaN from",
}
FORMS = {"perplexity": ".6g", "tokens_per_s": ",.0f"}


@dataclass
class Checkpoint:
    label: str
    maps: list[HeadroomMap]
    table: str = ""  # HTML
    whole: str = ""  # HTML of all of it, in place of maps and table

    def html(self) -> str:
        """The picture says how many values are beyond FP16's largest number, and shows which."""
        if self.whole:
            return self.whole
        return f"<h2>{escape(self.label)}</h2>{self.table}{self._headroom()}"

    def _headroom(self) -> str:
        if not self.maps:
            return ""
        counts = "; ".join(f"{each.title}: {each.overflows} of {len(each.bits)} values beyond FP16's range" for each in self.maps)
        return f"<p>Bits of headroom in FP16. {escape(counts)}.</p>{self._picture()}"

    def _picture(self) -> str:
        """Apart from the page, whose other pictures use the same names inside."""
        if not any(each.bits for each in self.maps):
            return ""
        data = b64encode(heat_maps(self.maps).encode()).decode()
        return f'<img alt="headroom of each value" style="max-width: 100%" src="data:image/svg+xml;base64,{data}">'


def _cell(name: str, value: Any) -> str:
    return "NaN" if value is None else format(value, FORMS.get(name, ".3g")) if isinstance(value, (int, float)) else str(value)


def _figures(entries: dict[str, Any]) -> str:
    names = [name for name in COLUMNS if any(name in entry for entry in entries.values())]
    head = "".join(f"<th>{text}</th>" for text in ["dtype", *(COLUMNS[name] for name in names)])
    rows = []
    for dtype, entry in entries.items():
        cells = [dtype, *(_cell(name, entry[name]) if name in entry else "–" for name in names)]
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _of_parity(label: str, found: dict[str, Any]) -> Checkpoint:
    dtypes = found["dtypes"]
    maps = []
    if "headroom_fp16" in dtypes.get("fp32", {}):
        maps.append(HeadroomMap("FP32's values in FP16", dtypes["fp32"]["headroom_fp16"]))
    if "headroom" in dtypes.get("fp16", {}):
        maps.append(HeadroomMap("as FP16 computes them", dtypes["fp16"]["headroom"]))
    rows = {"reference": found["reference"], **dtypes} if "reference" in found else dtypes
    return Checkpoint(label, maps, _figures(rows) + _against(found))


def _against(found: dict[str, Any]) -> str:
    if "reference" not in found:
        return ""
    return f"<p>{escape(str(found.get('model')))} against FP32 of {escape(str(found.get('against')))}, the reference.</p>"


def _of_certificate(label: str, found: dict[str, Any]) -> Checkpoint:
    before = {value["name"]: value["headroom_bits_before"] for value in found["values"]}
    after = {value["name"]: value["headroom_bits"] for value in found["values"]}
    zeros = [name for name in before if before[name] is None]  # a value of nothing but zeros has headroom without end
    maps = [
        HeadroomMap(title, {name: bits for name, bits in each.items() if name not in zeros})
        for title, each in (("before gauge", before), ("after gauge", after))
    ]
    fp16 = found["fp16"]
    text = f"r = {found['exponents']['residual']}; FP32: {'the same bits' if found['fp32']['bit_identical'] else 'other bits'}; FP16: "
    places = {"encoder_relative_l2": "at the encoder's output", "logits_relative_l2": "of the logits"}
    found_l2 = [f"relative L2 {fp16[name]:.2g} {place}" for name, place in places.items() if name in fp16]
    text += found_l2[0] if found_l2 else "Inf or NaN remain"
    return Checkpoint(label, maps, f"<p>{escape(text)}</p>")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_bits(value: Any) -> bool:
    return value is None or _is_number(value) and math.isfinite(value)


def _is_map(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_bits(bits) for bits in value.values())


def _is_parity(found: dict[str, Any]) -> bool:
    dtypes = found["dtypes"].values()
    return isinstance(found.get("reference", {}), dict) and all(
        isinstance(entry, dict) and all(_is_map(entry[name]) for name in ("headroom_fp16", "headroom") if name in entry)
        for entry in dtypes
    )


def _is_certificate(found: dict[str, Any]) -> bool:
    values, exponents, fp32, fp16 = (found.get(name) for name in ("values", "exponents", "fp32", "fp16"))
    if not (isinstance(values, list) and isinstance(exponents, dict) and isinstance(fp32, dict) and isinstance(fp16, dict)):
        return False
    are_values = all(
        isinstance(value, dict)
        and isinstance(value.get("name"), str)
        and all(name in value and _is_bits(value[name]) for name in ("headroom_bits_before", "headroom_bits"))
        for value in values
    )
    figures = [fp16[name] for name in ("encoder_relative_l2", "logits_relative_l2") if name in fp16]
    return are_values and "residual" in exponents and "bit_identical" in fp32 and all(_is_number(figure) for figure in figures)


def _expect(holds: bool, path: Path, expected: str) -> None:
    if not holds:
        raise ValueError(f"report: {path}: expected {expected}, got members of another kind")


def read_checkpoint(path: Path) -> Checkpoint | None:
    """None: the file is no result of parity or line and no certificate, nor has the directory one. Raises ValueError for one of these whose
    members are not what `plimsoll` writes."""
    if path.is_dir():
        path = path / (LINE_FILE if (path / LINE_FILE).is_file() else CERTIFICATE)
    if path.suffix != ".json" or not path.is_file():
        return None
    try:
        found = json.loads(read_text(path))
    except (ValueError, RecursionError):
        return None  # a log of JSON lines
    if not isinstance(found, dict):
        return None
    label = path.resolve().parent.name if path.name in (CERTIFICATE, LINE_FILE) else path.stem
    if "max_kl" in found:
        _expect(is_line(found), path, "what `plimsoll line` writes")
        return Checkpoint(label, [], whole=line_html(label, found))
    if isinstance(found.get("dtypes"), dict):
        _expect(_is_parity(found), path, "what `plimsoll parity --json` writes")
        return _of_parity(label, found)
    if "exponents" not in found or "values" not in found:
        return None
    _expect(_is_certificate(found), path, "a certificate of `plimsoll gauge`")
    return _of_certificate(label, found)
