"""`--recipe auto` under plimsoll finetune and plimsoll compare."""

import json
import pathlib
import signal

import pytest
import torch
from finetune_runs import PLAN, logged, save_chats, save_model, stop_at_step_4, words_of
from program import PROGRAM, done
from safetensors.torch import load_file

pytestmark = pytest.mark.skipif(not PROGRAM.is_file(), reason="bin/plimsoll is not built")

TEXT = pathlib.Path(__file__).resolve().parents[2] / "LICENSE"
# Bounds between the errors of these models' operands, and no patience, so that products go up and down in a few steps.
LIMITS = {"every": 1, "votes": 1, "ballots": 2, "quiet": 1, "window": 1, "demote_share": 1}
RESTLESS = json.dumps({"name": "auto", "bound": [1.1] * 3, **LIMITS})
THREE_RUNGS = json.dumps({"name": "auto", "ladder": "e2m1>e4m3>bf16", "bound": [1.13, 1.13, 1.4], **LIMITS})
SIZES = ["--steps=10", "--layers=2", "--dim=32", "--heads=2", "--context=32", "--batch=4", "--warmup=2", "--eval-windows=4"]


def steps_of(lines):
    """Numbers and decisions of a run, timing left out."""
    return [{name: line[name] for name in ("step", "loss", "precision")} for line in lines if "loss" in line]


def changes_of(lines):
    return [(line["step"], change) for line in steps_of(lines) for change in line["precision"].get("changes", [])]


@pytest.mark.parametrize(("trained", "recipe"), [("--full", RESTLESS), ("--full", THREE_RUNGS), ("--lora=r=4", RESTLESS)])
def test_a_fine_tuning_run_that_is_killed_decides_as_one_that_is_not(tmp_path, trained, recipe):
    (tmp_path / "model").mkdir()
    model, data = save_model(tmp_path / "model"), save_chats(tmp_path)
    words = words_of(model, data, trained, *PLAN, "--recipe", recipe)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    done(*words, "--out", whole)
    changes = changes_of(logged(whole))
    assert any(step > 4 for step, _ in changes), "expected decisions after the kill"
    # The base under adapters has no gradient, and its products no grad_weight.
    products = {change["product"] for _, change in changes if "lora" not in change["layer"]}
    assert ("grad_weight" in products) == (trained == "--full"), products
    stop_at_step_4([*words, "--out", cut], cut, signal.SIGKILL)
    done(*words, "--out", cut, "--resume")
    assert steps_of(logged(cut)) == steps_of(logged(whole))
    file = "model.safetensors" if trained == "--full" else "adapter_model.safetensors"
    ours, theirs = load_file(cut / file), load_file(whole / file)
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_comparison_runs_each_ladder_as_train_does(tmp_path):
    ladders = ["auto", "auto:mxfp8>fp32", "auto:e2m1>e4m3>bf16"]
    common = ["--data", TEXT, *SIZES, "--threads=1"]
    done("compare", *common, "--recipes", ",".join(["fp32", *ladders]), "--out", tmp_path / "three")
    results = json.loads((tmp_path / "three" / "compare.json").read_text())["results"]
    assert [run["recipe"] for run in results[1:]] == ladders
    for ladder, folder, result in zip(ladders, ("auto", "auto-2", "auto-3"), results[1:], strict=True):
        done("train", *common, "--recipe", ladder, "--out", tmp_path / folder)
        alone = logged(tmp_path / folder)
        assert steps_of(logged(tmp_path / "three" / folder)) == steps_of(alone)
        assert result["precision"] == alone[-1]["precision"]
        assert result["precision"]["formats"] == (ladder.partition(":")[2] or "e4m3>bf16").split(">")
        assert result["difference_percent"] is not None


def test_an_audit_shows_the_formats_of_the_next_step(tmp_path):
    run = tmp_path / "run"
    done("train", "--data", TEXT, *SIZES, "--threads=1", "--recipe", RESTLESS, "--out", run)
    last = {(change["layer"], f"gemm {change['product']}"): change["to"] for _, change in changes_of(logged(run))}
    assert set(last.values()) == {"e4m3", "bf16"}

    def audited(*words):
        done("audit", "--model", run, "--threads=1", "--tokens=32", "--json", tmp_path / "rows", *words)
        rows = [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]
        return {(row["layer"], row["op"]): row for row in rows if row["decided"] == "auto"}

    rows = audited()
    for place, format in last.items():
        assert rows[place]["reason"].startswith(f"{format} after step "), rows[place]
        assert any("e4m3" in operand["format"] for operand in rows[place]["operands"]) == (format == "e4m3"), rows[place]
    new = audited("--recipe", "auto:mxfp8>fp32")
    assert new.keys() == rows.keys() and {row["reason"] for row in new.values()} == {"mxfp8 from the first step on"}
