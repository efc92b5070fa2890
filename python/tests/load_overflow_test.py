"""Weights that a narrower dtype cannot hold are counted and named when they are loaded, and the watch begins with them."""

import re
import subprocess
import warnings

import plimsoll
import pytest
import ranks
import torch
from plimsoll.shard import CheckpointSaver, FullyShardedDataParallel, open_checkpoint
from plimsoll.t5 import T5ForConditionalGeneration
from t5_models import inputs, make, save

PROGRAM = plimsoll._library.find().parent / "bin" / "plimsoll"
WO = "encoder.block.1.layer.1.DenseReluDense.wo.weight"
NORM = "decoder.final_layer_norm.weight"
SAID = rf"3 weights are beyond {{}} and became Inf: {re.escape(WO)} \(2 of 1536\), {re.escape(NORM)} \(1 of 32\)"


@pytest.fixture(
    params=[("fp16", torch.float16, 1e6), ("bf16", torch.bfloat16, torch.finfo(torch.float32).max)], ids=["fp16", "bf16"]
)
def beyond(request, tmp_path):
    """(name, dtype, a directory with three weights beyond it and one that is Inf in the file)"""
    name, dtype, value = request.param
    theirs = make("v1.1")
    state = theirs.state_dict()
    with torch.no_grad():
        state[WO][3, 5], state[WO][0, 0], state[NORM][7] = value, -value, value
        state["shared.weight"][9, 9] = torch.inf
    return name, dtype, save(theirs, tmp_path)


def test_from_pretrained_warns(beyond):
    name, dtype, folder = beyond
    with pytest.warns(UserWarning, match=SAID.format(name)):
        ours = T5ForConditionalGeneration.from_pretrained(folder, dtype)
    assert ours.get_parameter(WO).isinf().sum() == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        T5ForConditionalGeneration.from_pretrained(folder, torch.float32)


def test_the_program_warns_on_stderr(beyond, tmp_path):
    name, _, folder = beyond
    (tmp_path / "in.jsonl").write_text('{"input_ids": [5, 6, 1]}\n')
    arguments = ["--input", tmp_path / "in.jsonl", "--max-new-tokens", "2"]
    done = subprocess.run(
        [PROGRAM, "t5", "generate", "--model", folder, "--dtype", name, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 3  # what is computed with them is not finite
    warning, error = done.stderr.splitlines()
    assert re.fullmatch(rf"plimsoll: warning: .*: {SAID.format(name)}", warning), warning
    assert error == "plimsoll: t5 generate: expected finite results, got Inf or NaN for 1 input, the first is input 0"
    parity = subprocess.run(
        [PROGRAM, "parity", "--model", folder, "--dtypes", name, "--data", tmp_path / "in.jsonl"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert re.search(SAID.format(name), parity.stderr), parity.stderr


def test_more_than_eight_tensors_are_counted(tmp_path):
    theirs = make("v1.1")
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter[0] = 1e6
    with pytest.warns(UserWarning, match=r"weights are beyond fp16 .*, and in \d\d more") as said:
        T5ForConditionalGeneration.from_pretrained(save(theirs, tmp_path), torch.float16)
    assert str(said[0].message).count(" of ") == 8


def test_load_state_dict_warns(beyond):
    _, dtype, folder = beyond
    state = T5ForConditionalGeneration.from_pretrained(folder, torch.float32).state_dict()
    ours = T5ForConditionalGeneration.from_pretrained(folder, torch.float32)
    ours = ours.half() if dtype == torch.float16 else ours.bfloat16()
    with pytest.warns(UserWarning, match=r"load_state_dict: 3 weights are beyond .*2 of 1536"):
        ours.load_state_dict(state)
    with pytest.raises(ValueError, match="assign=False"):
        ours.load_state_dict(state, assign=True)


@torch.no_grad()
def test_a_report_begins_with_what_is_not_finite(beyond):
    _, dtype, folder = beyond
    with pytest.warns(UserWarning):
        ours = T5ForConditionalGeneration.from_pretrained(folder, dtype, t5_fixes={"no_dynamic_clamp": True})
    ids, mask = inputs(ours, [9, 7])
    with plimsoll.watch() as seen:
        ours(input_ids=ids, attention_mask=mask, decoder_input_ids=ids)
    lines = seen.report().splitlines()
    not_finite = {record["name"] for record in seen.records if record["non_finite"]}
    assert f"{WO.removesuffix('.weight')}/output" in not_finite
    assert f"{len(not_finite)} not finite" in lines[0]
    shown = [line for line in lines if re.match(r"(not finite|[+-][\d.]+ bits|\+inf bits) ", line)]
    first = [", not finite in " in line for line in shown]
    assert all(first[: len(not_finite)]) and not any(first[len(not_finite) :])
    assert not any(line.startswith("+inf") for line in shown[: len(not_finite)])
    nothing_finite = [record for record in seen.records if record["amax"] is None]
    assert nothing_finite and all(r["headroom_bits"] is None and r["non_finite"] for r in nothing_finite)


@ranks.case(1)
def a_sharded_checkpoint_says_what_a_narrow_module_cannot_hold(group):
    run = ranks.shared_folder(group)
    weight = torch.ones(4, 4, dtype=torch.float64)
    weight[1, 2] = 1e39
    CheckpointSaver(run, group).save(1, {"model": {"weight": weight, "bias": torch.zeros(4)}})
    module = FullyShardedDataParallel(torch.nn.Linear(4, 4), group)
    with pytest.warns(UserWarning, match=r"1 weight is beyond .*: weight \(1 of 16, torch.float32\)"):
        module.load_sharded_state_dict(open_checkpoint(run / "step-00000001"))


@pytest.mark.parametrize("name", ranks.names(__name__))
def test_on_ranks(outcomes, name):
    outcomes.check(name)
