"""Figures that gpt_step.py makes of its timings."""

import gpt_step
import torch
import torch_gpt


def runner(name, *seconds):
    return gpt_step.Runner(name, [], {}, restart=False, seconds=list(seconds))


def test_the_peer_is_the_fastest_of_the_tuned_and_compiled_runs():
    runners = [
        runner("fp8", 1.0, 9.0, 1.0),
        runner("torch-bf16", 0.5),
        runner("torch-fp32-tuned", 3.0),
        runner("torch-bf16-compiled", 2.0),
    ]
    peer, rows = gpt_step.rows_of(runners, [], tokens=100)
    assert peer == "torch-bf16-compiled"
    assert [row["speed_over_peer"] for row in rows] == [2.0, 4.0, 2.0 / 3.0, 1.0]
    assert rows[0]["tokens_per_s"] == 100
    assert "peer: torch-bf16-compiled" in gpt_step.table(peer, rows)


def test_without_a_peer_there_is_no_ratio():
    peer, rows = gpt_step.rows_of([runner("fp8", 1.0)], [], tokens=100)
    assert (peer, rows[0]["speed_over_peer"]) == (None, None)
    assert "peer: none of" in gpt_step.table(peer, rows)


def test_one_thread_is_held_against_all():
    _, rows = gpt_step.rows_of([runner("fp8", 1.0)], [runner("fp8", 1.9)], tokens=100)
    assert rows[0]["speed_over_one_thread"] == 1.9


def test_saved_bytes_are_those_of_activations_alone():
    layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    x = torch.ones(2, 64)
    assert torch_gpt.saved_bytes(lambda: layers(x).sum().backward(), layers.parameters()) == 2 * x.nbytes
