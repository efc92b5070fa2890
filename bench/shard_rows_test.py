"""Rows that shard.py makes of its timings."""

import shard

INFO = {"parameters_held": 1e6}


def answers(*seconds):
    return [{"seconds": value, "peak_rss_bytes": 1e6} for value in seconds]


def test_two_processes_are_held_against_one_turn_by_turn():
    found = shard.rows_of({"ours-fp8": answers(2, 3, 4), "ours-fp8-fsdp": answers(1, 1, 1)}, lambda name: INFO, tokens=8)
    assert [row["of_one_process"] for row in found] == [1, 3]
    assert found[1]["tokens_per_s"] == 8 and " 3.00 of one process" in shard.text(found[1])


def test_without_its_one_process_a_contestant_has_no_ratio():
    (found,) = shard.rows_of({"ours-bf16-ddp": answers(1, 2)}, lambda name: INFO, tokens=8)
    assert found["of_one_process"] is None and "    - of one process" in shard.text(found)
