"""The page about checkpoints: what parity and gauge wrote becomes maps of where FP16 overflows, before and after."""

import json
import re
import xml.etree.ElementTree as xml
from base64 import b64decode
from collections import Counter
from io import BytesIO
from typing import Any

import plimsoll
import pytest
from plimsoll.report.headroom_map import HeadroomMap, columns_of, places, rows_of
from plimsoll.report.heat_map import heat_maps

pytest.importorskip("matplotlib")
from PIL import Image

BLOCK = "encoder.block.{}.layer.{}."
NAMES = [
    BLOCK.format(block, layer) + rest
    for block in (0, 2, 10)
    for layer, rest in (
        (0, "layer_norm/input"),
        (0, "layer_norm/output"),
        (0, "SelfAttention.q/output"),
        (1, "layer_norm/input"),
        (1, "DenseReluDense.wo/hidden"),
        (1, "DenseReluDense.wo/output"),
    )
]
NAMES += [
    "decoder.block.0.layer.0.layer_norm/input",
    "decoder.block.0.layer.0.SelfAttention.o/output",
    "decoder.block.0.layer.1.layer_norm/input",
    "decoder.block.0.layer.1.EncDecAttention.k/output",
    "decoder.block.0.layer.2.layer_norm/input",
    "decoder.block.0.layer.2.DenseReluDense.wi/output",
    "encoder.final_layer_norm/input",
    "encoder.final_layer_norm/output",
    "lm_head/output",
]
WO = BLOCK.format(2, 1) + "DenseReluDense.wo/output"


def test_rows_are_blocks_and_columns_what_is_in_them():
    found = places(NAMES)
    assert len(set(found.values())) == len(NAMES)  # no two values share a cell
    assert rows_of(list(found.values())) == ["encoder 0", "encoder 2", "encoder 10", "encoder end", "decoder 0", "lm_head"]
    assert columns_of(list(found.values())) == [
        *(("self-attention", name) for name in ("stream", "normed", "q", "o")),
        *(("cross-attention", name) for name in ("stream", "k")),
        *(("feed-forward", name) for name in ("stream", "wi", "hidden", "wo")),
    ]


def test_values_of_other_models_have_their_place():
    found = places(["blocks.0.attention.qkv/output", "blocks.11.mlp.fc2/output", "head/output"])
    assert rows_of(list(found.values())) == ["blocks.0", "blocks.11", "head"]
    assert len(set(found.values())) == 3


def test_the_map_is_a_cell_for_each_value():
    before = HeadroomMap("before <gauge>", {name: -4.9 if name == WO else 5.0 for name in NAMES})
    after = HeadroomMap("after", {name: None if name == WO else 3.0 for name in NAMES})
    assert before.overflows == after.overflows == 1
    labels = Counter(text.text for text in xml.fromstring(heat_maps([before, after])).findall(".//{*}text"))
    assert labels["-4.9"] == labels["Inf"] == 1 and labels["5.0"] == labels["3.0"] == len(NAMES) - 1
    assert (
        labels["before <gauge>"] == labels["after"] == labels["encoder 10"] == 1
        and labels["cross-attention"] == labels["wo"] == 2
    )
    assert heat_maps([before, after]) == heat_maps([before, after])  # so that a document's picture changes with its figures alone


def test_colours_say_how_far_a_value_is_from_the_end():
    """Red beyond it, white at it, blue where there is room, black where nothing is left."""
    bits = dict(zip(NAMES[:4], (None, -9.0, 0.0, 9.0), strict=True))
    encoded = re.search(r"base64,([^\"]*)", heat_maps([HeadroomMap("", bits)]))
    assert encoded
    image: Any = Image.open(BytesIO(b64decode(encoded[1])))
    found = places(NAMES[:4])
    columns = columns_of(list(found.values()))
    rows = rows_of(list(found.values()))
    expected = {NAMES[0]: (0, 0, 0), NAMES[1]: (178, 24, 43), NAMES[2]: (247, 247, 247), NAMES[3]: (33, 102, 172)}
    for name, colour in expected.items():
        column, row = columns.index((found[name].group, found[name].column)), rows.index(found[name].row)
        at = ((column + 0.5) * image.width / len(columns), (row + 0.5) * image.height / len(rows))
        assert all(abs(a - b) <= 3 for a, b in zip(image.convert("RGB").getpixel(tuple(map(int, at))), colour, strict=True)), name


@pytest.fixture
def files(tmp_path):
    """The file of parity, and the directory of gauge."""
    exact = {"finite": True, "encoder_relative_l2": 0.0, "headroom": {WO: 100.0}, "headroom_fp16": {WO: -4.9}}
    narrow = {"finite": False, "encoder_relative_l2": None, "headroom": {WO: None}, "first_non_finite": WO}
    (tmp_path / "parity.json").write_text(
        json.dumps({"inputs": 1, "decoder_tokens": 0, "dtypes": {"fp32": exact, "fp16": narrow}}, indent=2)
    )
    (tmp_path / "gauged").mkdir()
    (tmp_path / "gauged" / "plimsoll_gauge.json").write_text(
        json.dumps(
            {
                "exponents": {"residual": -8},
                "fp32": {"bit_identical": True},
                "fp16": {"finite": True, "encoder_relative_l2": 0.0123},
                "values": [
                    {"name": WO, "headroom_bits_before": -4.9, "headroom_bits": 3.1},
                    {"name": "lm_head/output", "headroom_bits_before": None, "headroom_bits": None},
                ],
            }
        )
    )
    return tmp_path / "parity.json", tmp_path / "gauged"


def test_a_page_shows_parity_and_gauge(files, tmp_path):
    page = plimsoll.report(files, tmp_path / "page.html").read_text()
    assert "<h1>Checkpoints: parity, gauged</h1>" in page and "Plotly.newPlot" not in page
    assert page.count("data:image/svg+xml") == 2 and not re.search(r'(src|href)="(?!data:)', page)
    assert f"<td>fp16</td><td>NaN</td><td>{WO}</td>" in page
    assert "before gauge: 1 of 1 values beyond FP16&#x27;s range; after gauge: 0 of 1" in page
    assert "r = -8; FP32: the same bits; FP16: relative L2 0.012" in page


def test_a_file_that_is_neither_is_named(tmp_path):
    (tmp_path / "other.json").write_text('{"a": 1}')
    with pytest.raises(ValueError, match="other.json: expected"):
        plimsoll.report(tmp_path / "other.json", tmp_path / "page.html")
