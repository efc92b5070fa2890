"""Figures that t5.py makes of its timings."""

import in_turn
from t5 import COMPARISON


def test_ours_are_held_against_the_peer_named_for_the_work():
    rows = COMPARISON.rows_of(
        {
            "encode-128": {"hf-bf16": [4.0, 2.0, 3.0], "hf-fp32": [5.0], "fp8": [1.5]},
            "greedy-1": {"hf-bf16": [1.0], "ctranslate2-fp32": [8.0], "fp8": [2.0], "read-fp8": [1.0]},
            "beam-4": {"fp8": [1.0]},
        }
    )
    found = {(row["work"], row["name"]): row for row in rows}
    assert found["encode-128", "fp8"]["peer"] == "hf-bf16"
    assert found["encode-128", "fp8"]["speed_over_peer"] == 2.0
    assert found["greedy-1", "fp8"]["peer"] == "ctranslate2-fp32"
    assert found["greedy-1", "fp8"]["speed_over_peer"] == 4.0
    assert found["greedy-1", "fp8"]["share_of_reading"] == 0.5
    assert found["greedy-1", "hf-bf16"]["share_of_reading"] is None
    assert found["beam-4", "fp8"]["speed_over_peer"] is None
    assert "beam-4" in in_turn.table(rows, [])


def test_peers_are_asked_only_for_what_they_do():
    assert not COMPARISON.does("ctranslate2-fp32", "encode-128")
    assert not COMPARISON.does("read-fp8", "greedy-8")
    assert COMPARISON.does("fp16", "beam-4")
