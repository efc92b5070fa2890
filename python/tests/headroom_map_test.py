"""The page about checkpoints: what parity and gauge wrote becomes maps of where FP16 overflows, before and after."""
import json
import re
import xml.etree.ElementTree as xml

import plimsoll
import pytest
from plimsoll.report.headroom_map import HeadroomMap, columns_of, places, rows_of
from plimsoll.report.heat_map_svg import heat_maps

BLOCK = "encoder.block.{}.layer.{}."
NAMES = [BLOCK.format(block, layer) + rest for block in (0, 2, 10) for layer, rest in
         ((0, "layer_norm/input"), (0, "SelfAttention.q/output"), (1, "layer_norm/input"), (1, "DenseReluDense.wo/hidden"), (1, "DenseReluDense.wo/output"))]
NAMES += ["decoder.block.0.layer.0.layer_norm/input", "decoder.block.0.layer.0.SelfAttention.o/output", "decoder.block.0.layer.1.layer_norm/input",
          "decoder.block.0.layer.1.EncDecAttention.k/output", "decoder.block.0.layer.2.layer_norm/input", "decoder.block.0.layer.2.DenseReluDense.wi/output",
          "encoder.final_layer_norm/input", "lm_head/output"]
WO = BLOCK.format(2, 1) + "DenseReluDense.wo/output"


def test_rows_are_blocks_and_columns_what_is_in_them():
    found = places(NAMES)
    assert len(set(found.values())) == len(NAMES)  # no two values share a cell
    assert rows_of(list(found.values())) == ["encoder 0", "encoder 2", "encoder 10", "encoder end", "decoder 0", "lm_head"]
    assert columns_of(list(found.values())) == [
        *(("self-attention", name) for name in ("stream", "q", "o")), *(("cross-attention", name) for name in ("stream", "k")),
        *(("feed-forward", name) for name in ("stream", "wi", "hidden", "wo"))]


def test_values_of_other_models_have_their_place():
    found = places(["blocks.0.attention.qkv/output", "blocks.11.mlp.fc2/output", "head/output"])
    assert rows_of(list(found.values())) == ["blocks.0", "blocks.11", "head"]
    assert len(set(found.values())) == 3


def test_the_map_is_a_cell_for_each_value():
    before = HeadroomMap("before <gauge>", {name: -4.9 if name == WO else 5.0 for name in NAMES})
    after = HeadroomMap("after", {name: None if name == WO else 3.0 for name in NAMES})
    assert before.overflows == after.overflows == 1
    root = xml.fromstring(heat_maps([before, after]))
    cells = {title.text: group for group in root.findall("{*}g") for title in group.findall("{*}title")}
    assert len(cells) == 2 * len(NAMES)
    (low,), (gone,) = ([group for text, group in cells.items() if text == f"{WO}: {what}"] for what in ("-4.90 bits", "Inf or NaN"))
    assert low.find("{*}rect").get("fill") == "#b2182b" and low.find("{*}text").text == "-4.9"
    assert gone.find("{*}rect").get("fill") == "#000000" and gone.find("{*}text").text == "Inf"
    assert float(gone.find("{*}rect").get("x")) > float(low.find("{*}rect").get("x"))
    assert gone.find("{*}rect").get("y") == low.find("{*}rect").get("y")


@pytest.fixture
def files(tmp_path):
    """The file of parity, and the directory of gauge."""
    exact = {"finite": True, "encoder_relative_l2": 0.0, "headroom": {WO: 100.0}, "headroom_fp16": {WO: -4.9}}
    narrow = {"finite": False, "encoder_relative_l2": None, "headroom": {WO: None}, "first_non_finite": WO}
    (tmp_path / "parity.json").write_text(json.dumps({"inputs": 1, "decoder_tokens": 0, "dtypes": {"fp32": exact, "fp16": narrow}}, indent=2))
    (tmp_path / "gauged").mkdir()
    (tmp_path / "gauged" / "plimsoll_gauge.json").write_text(json.dumps({
        "exponents": {"residual": -8}, "fp32": {"bit_identical": True}, "fp16": {"finite": True, "encoder_relative_l2": 0.0123},
        "values": [{"name": WO, "headroom_bits_before": -4.9, "headroom_bits": 3.1}, {"name": "lm_head/output", "headroom_bits_before": None, "headroom_bits": None}]}))
    return tmp_path / "parity.json", tmp_path / "gauged"


def test_a_page_shows_parity_and_gauge(files, tmp_path):
    page = plimsoll.report(files, tmp_path / "page.html").read_text()
    assert "<h1>Checkpoints: parity, gauged</h1>" in page and "Plotly.newPlot" not in page
    assert page.count("<svg") == 2 and not re.search(r'(src|href)="(?!data:)', page)
    assert f"<td>fp16</td><td>NaN</td><td>{WO}</td>" in page
    assert "before gauge: 1 of 1 values beyond FP16&#x27;s range; after gauge: 0 of 1" in page
    assert "r = -8; FP32: the same bits; FP16: relative L2 0.012" in page


def test_a_file_that_is_neither_is_named(tmp_path):
    (tmp_path / "other.json").write_text('{"a": 1}')
    with pytest.raises(ValueError, match="other.json: expected"):
        plimsoll.report(tmp_path / "other.json", tmp_path / "page.html")
