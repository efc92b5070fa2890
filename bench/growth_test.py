"""Figures that growth.py makes of sizes and timings."""

from types import SimpleNamespace

import gpt_step
import growth
import pytest


def arguments(over, sizes, tokens=64):
    return SimpleNamespace(over=over, sizes=sizes, tokens=tokens, **gpt_step.PRESETS["small"])


def test_a_longer_context_has_a_smaller_batch():
    shapes = list(growth.shapes(arguments("context", [16, 64])))
    assert [(shape["context"], shape["batch"]) for shape in shapes] == [(16, 4), (64, 1)]


def test_the_batch_alone_grows():
    shapes = list(growth.shapes(arguments("batch", [4, 8])))
    assert [(shape["context"], shape["batch"]) for shape in shapes] == [(256, 4), (256, 8)]


def test_a_context_that_does_not_divide_the_tokens_is_refused():
    with pytest.raises(SystemExit, match="64 and 48"):
        list(growth.shapes(arguments("context", [48])))


def test_flatness_is_held_against_the_first_size():
    runners = [
        gpt_step.Runner("a", [], {}, restart=False, seconds=[1.0, 9.0, 2.0]),
        gpt_step.Runner("b", [], {}, restart=False, seconds=[5.0]),
    ]
    rows = growth.rows_of(runners, [4, 8], [100, 200])
    assert [row["flatness"] for row in rows] == [1.0, 0.8]
    assert "0.80" in growth.table("batch", rows)
