"""Differences, windows and padding of logprobs.py, and when it fails."""

import math

import logprobs
import pytest


def test_differences_count_bits_nats_and_ratios():
    found = logprobs.difference([-1.0, -2.0, -3.0, -4.0], [-1.0, -2.5, -3.0, -3.0])
    assert found["tokens"] == 4 and found["different"] == 2 and found["largest"] == 1 and found["mean"] == 1.5 / 4
    assert math.isclose(found["ratio"], ((1 - math.exp(-0.5)) + (math.e - 1)) / 4)
    assert logprobs.difference([-1.0], [math.nextafter(-1.0, 0)])["different"] == 1
    with pytest.raises(SystemExit, match="expected 1 tokens, got 2"):
        logprobs.difference([0.0], [0.0, 0.0])


def test_windows_overlap_in_the_token_that_is_predicted_last():
    windows = logprobs.windows_of(list(range(8)), 3)
    assert windows == [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7]]
    assert [token for window in windows for token in window[1:]] == list(range(1, 8))
    assert logprobs.windows_of(list(range(7)), 3) == [[0, 1, 2, 3], [3, 4, 5, 6]]


def test_rows_beside_are_of_many_lengths_and_one_is_longer_than_a_window():
    rows = logprobs.rows_beside(list(range(300)), 12, 64)
    assert len(rows) == 12 and max(map(len, rows)) == 96 and min(map(len, rows)) >= 32 and len(set(map(len, rows))) > 5
    assert all(row == list(range(row[0], row[0] + len(row))) for row in rows)
    assert logprobs.rows_beside(list(range(300)), 0, 64) == []


@pytest.mark.parametrize(
    ("side", "rows", "mask", "positions"),
    [
        ("left", [[5, 6, 7], [9, 9, 8]], [[1, 1, 1], [0, 0, 1]], [[0, 1, 2], [0, 0, 0]]),
        ("right", [[5, 6, 7], [8, 9, 9]], [[1, 1, 1], [1, 0, 0]], [[0, 1, 2], [0, 0, 0]]),
    ],
)
def test_padding_is_masked_and_tokens_keep_their_positions(side, rows, mask, positions):
    assert logprobs.pad([[5, 6, 7], [8]], side, token=9) == (rows, mask)
    assert logprobs.positions_of(mask) == positions
    assert logprobs.positions_of([[0, 1, 1]]) == [[0, 0, 1]]


def test_ours_must_be_equal_to_the_last_bit_and_theirs_need_not():
    found = {"fp8": {"train": [-1.0, -2.0], "prefill": [-1.0, -2.0], "decode": [-1.0, -2.0], "serve": [-1.0, -2.0]}}
    rows = logprobs.our_rows(found)
    assert [row["way"] for row in rows] == ["prefill", "decode", "serve"] and logprobs.unequal(rows) == []
    found["fp8"]["serve"] = [-1.0, math.nextafter(-2.0, 0)]
    rows = logprobs.our_rows(found)
    theirs = {"who": "transformers", "dtype": "bf16", "way": "over a cache", **logprobs.difference([-1.0], [-2.0])}
    assert logprobs.unequal([*rows, theirs]) == ["fp8 as serve"]
    assert "1 of 2" in logprobs.table(rows)
