"""plimsoll.watch on a T5 in FP16: where it overflows, what comes of it, and that watching changes no number."""

import json
import subprocess
from typing import Any

import plimsoll
import pytest
import torch
from plimsoll.t5 import T5ForConditionalGeneration
from rounding import approx, gamma
from t5_models import inputs, make, save

PATH = "encoder.block.1.layer.1.DenseReluDense.wo"
PLAIN = {"no_dynamic_clamp": True}


@pytest.fixture
def ours(tmp_path):
    """A function from a change of Hugging Face's model to (ids, mask, ours in FP16)."""

    def build(change=lambda model: None):
        theirs = make("v1.1")
        with torch.no_grad():
            change(theirs)
        model = T5ForConditionalGeneration.from_pretrained(save(theirs, tmp_path), torch.float16)
        return *inputs(theirs, [9, 7]), model

    return build


def largest_output(model, layer, ids, mask):
    seen = []
    handle = layer.register_forward_hook(lambda _, __, y: seen.append(y.abs().max().item()))
    with torch.no_grad():
        model.encoder(input_ids=ids, attention_mask=mask)
    handle.remove()
    return seen[0]


def down_projection_reaches(amax):
    def change(model):
        layer = model.encoder.block[1].layer[1].DenseReluDense.wo
        layer.weight *= amax / largest_output(model, layer, *inputs(model, [9, 7]))

    return change


def watched(case, mode, fixes=PLAIN):
    ids, mask, model = case
    model.t5_fixes = fixes
    with plimsoll.watch(mode) as w, torch.no_grad():
        output = model.encode(ids, mask)
    return w, output


def incident_of(w):
    return next(incident for incident in w.incidents if incident["incident"] == PATH)


@torch.no_grad()
def test_products_of_fp8_codes_are_seen(tmp_path):
    """The same names as in BF16, and, but for the rounding of the codes, the same amaxes."""
    theirs = make("v1.1")
    ids, _ = inputs(theirs, [9])
    seen = {}
    for dtype in ("bf16", "fp8"):
        model = T5ForConditionalGeneration.from_pretrained(save(theirs, tmp_path), dtype)
        model(input_ids=ids, decoder_input_ids=ids)  # from the second call on products are joined in BF16, too
        with plimsoll.watch("guard") as w:
            model(input_ids=ids, decoder_input_ids=ids)
        seen[dtype] = {record["name"]: record["amax"] for record in w.records}
    assert seen["fp8"].keys() == seen["bf16"].keys() and f"{PATH}/output" in seen["fp8"]
    # Each operand of a product rounds to a code once.
    assert all(amax == approx(seen["bf16"][name], 2, torch.float8_e4m3fn) for name, amax in seen["fp8"].items())


def test_guard_warns_before_there_is_an_infinity(ours):
    w, output = watched(ours(down_projection_reaches(30_000)), "guard")
    assert output.isfinite().all() and not w.incidents
    low = [record for record in w.records if record["headroom_bits"] is not None and record["headroom_bits"] < 2]
    assert f"{PATH}/output" in [record["name"] for record in low]
    assert all("layer_norm/" in record["name"] for record in low if not record["name"].startswith(PATH))  # what it adds to
    assert f"{PATH}/output" in w.report()


@torch.no_grad()
@pytest.mark.parametrize("reaches", [30_000, 90_000])
def test_guard_reports_joined_products_as_it_reports_single_ones(ours, reaches):
    """The second call of a model joins q, k and v, wi_0 and wi_1; the first one does not."""

    def change(model):
        attention = model.encoder.block[0].layer[0].SelfAttention
        attention.v.weight *= reaches / largest_output(model, attention.v, *inputs(model, [9, 7]))
        attention.o.weight /= reaches

    ids, mask, model = ours(change)
    model.t5_fixes = PLAIN
    seen = []
    for _ in range(3):
        with plimsoll.watch("guard") as w:
            model.encode(ids, mask)
        seen.append({record["name"]: record for record in w.records})
    single, *joined = seen
    place = "encoder.block.0.layer.0.SelfAttention.v/output"
    for records in joined:
        assert records.keys() == single.keys()
        assert records[place]["amax"] == approx(reaches, 2, torch.float16)  # that of FP32, though FP16 has Inf there
        assert bool(records[place]["non_finite"]) is (reaches > 65504)
        for name, record in records.items():
            near = record["headroom_bits"] is None or record["headroom_bits"] < 4
            want = single[name]["amax"]
            if want is None:  # never finite
                assert record["amax"] is None, name
                continue
            assert not near or record["amax"] == approx(want, 2, torch.float16), name
            assert record["amax"] >= want * (1 - gamma(2, torch.float16)), name  # far from the end that of the joined product


def test_count_tells_how_many_elements(ours):
    w, _ = watched(ours(down_projection_reaches(30_000)), "count")
    record = next(record for record in w.records if record["name"] == f"{PATH}/output")
    assert record["counted"] > 0 and record["overflowed"] == 0
    w, _ = watched(ours(down_projection_reaches(90_000)), "count")
    record = next(record for record in w.records if record["name"] == f"{PATH}/output")
    assert record["overflowed"] > 0


def test_trap_stops_where_the_seed_did_and_shadow_agrees(ours):
    case = ours(down_projection_reaches(90_000))
    trap, output = watched(case, "trap")
    shadow, _ = watched(case, "shadow")
    assert output.isnan().any()
    a, b = incident_of(trap), incident_of(shadow)
    assert trap.incidents[0]["incident"] == shadow.incidents[0]["incident"] == PATH
    for key in ("row", "column", "token", "bad_elements", "operands", "largest_term", "value", "harm"):
        assert a[key] == b[key], key
    assert a["harm"] == "NaN-producing" and "norm" in a["consumers"][0]["path"]
    assert [operand["shape"] for operand in a["operands"]] == [[18, 48], [32, 48]]
    assert abs(a["value"]) > 65504 and a["token"] == a["row"] % 9
    assert a["instruction"] and not b["instruction"]
    assert b["replay"]["headroom_bits"] < 0 and "replay" not in a
    assert PATH in trap.report() and f"row {a['row']}, column {a['column']}" in trap.report()


def scores_reach_infinity(model):
    model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight.fill_(-40)


def gelu_reaches_infinity(model):
    for block in model.encoder.block:
        block.layer[-1].DenseReluDense.wi_0.weight.mul_(100)
        block.layer[-1].DenseReluDense.wo.weight.mul_(0.01)


def keys_reach_infinity(model):
    model.encoder.block[1].layer[0].SelfAttention.k.weight.mul_(5e4)


@pytest.mark.parametrize(
    "change, op",
    [
        (down_projection_reaches(90_000), "gemm output"),
        (keys_reach_infinity, "gemm output"),
        (gelu_reaches_infinity, "aten::pow"),
        (scores_reach_infinity, "aten::add"),
    ],
)
def test_trap_and_shadow_name_the_same_ops(ours, change, op):
    case = ours(change)
    trap, shadow = (watched(case, mode)[0].incidents for mode in ("trap", "shadow"))
    assert trap and trap[0]["op"] == op
    for a, b in zip(trap, shadow, strict=True):
        for key in ("incident", "op", "call", "row", "column", "bad_elements", "harm"):
            assert a[key] == b[key], key
        assert "window" not in a


def test_shadow_runs_the_window_around_the_first_bad_op_again(ours):
    w, _ = watched(ours(down_projection_reaches(90_000)), "shadow")
    incident = w.incidents[0]
    paths = [step["path"] for step in incident["window"]]
    bad = paths.index(PATH)
    assert "DenseReluDense.wi_1" in " ".join(paths[:bad]) and "norm" in " ".join(paths[bad + 1 :])
    before, there = incident["window"][bad - 1]["replay"], incident["window"][bad]["replay"]
    assert before["headroom_bits"] > 0 > there["headroom_bits"]
    assert all(step["replay"]["relative_error"] < 2**-7 for step in incident["window"][: bad + 1])
    assert there["amax"] == approx(90_000, 2, torch.float16)  # of the weight, and of what comes in
    # In FP32 what follows is finite.
    assert all(isinstance(step["replay"]["amax"], float) for step in incident["window"])
    assert incident["window"][bad + 1]["amax"] in ("inf", "nan")
    assert "window" in w.report()


@torch.no_grad()
@pytest.mark.parametrize("mode", ["guard", "trap", "shadow"])
def test_layers_of_plimsoll_pytorch_have_their_path(mode):
    import plimsoll.pytorch as te

    torch.manual_seed(1)
    model: Any = torch.nn.Sequential(
        te.Linear(16, 16), torch.nn.ModuleDict({"mlp": te.LayerNormMLP(16, 32)})["mlp"], te.Linear(16, 16, name="the last")
    ).half()
    model[1].fc1_weight *= 100
    model[1].fc2_weight[3] = 6e4
    with plimsoll.watch(mode) as w:
        model(torch.randn(4, 16).half())
    names = [record["name"] for record in w.records]
    assert {"0/output", "1.fc1/output", "1.fc2/output", "the last/output"} <= set(names)
    if mode == "guard":
        assert next(record for record in w.records if record["name"] == "1.fc2/output")["non_finite"]
    else:
        assert [incident["incident"] for incident in w.incidents] == ["1.fc2"]
    alone = te.Linear(8, 8)
    with plimsoll.watch("guard") as w:
        alone(torch.randn(2, 8))
    assert [record["name"] for record in w.records] == ["Linear/output"]


def test_the_seeds_switches_leave_nothing_to_report(ours):
    for mode in ("trap", "shadow"):
        w, output = watched(ours(down_projection_reaches(90_000)), mode, "seed")
        assert output.isfinite().all() and not w.incidents


def test_gelu_is_absorbed(ours):
    w, output = watched(ours(gelu_reaches_infinity), "shadow")
    assert output.isfinite().all()
    assert {incident["op"] for incident in w.incidents} == {"aten::pow"}
    assert {incident["harm"] for incident in w.incidents} == {"absorbed"}
    assert "aten::tanh" in w.incidents[0]["consumers"][-1]["path"]


def test_what_is_only_written_is_no_consumer():
    big = torch.full((4, 4), 300.0, dtype=torch.float16)
    memory = torch.full((4, 4), float("inf"), dtype=torch.float16)  # as memory that is used again may hold
    with torch.no_grad(), plimsoll.watch("shadow") as w:
        product = plimsoll.pytorch.Linear(4, 4, bias=False, params_dtype=torch.float16)
        product.weight.fill_(300.0)
        assert product(big).isinf().all()
        memory.copy_(big)
        memory.zero_()
        torch.add(big, 1, out=torch.full((4, 4), float("inf"), dtype=torch.float16))
        big + product(big)
    (incident,) = w.incidents
    assert [(each["path"].split(" ")[0], each["harm"]) for each in incident["consumers"]][-1] == ("aten::add", "propagating")
    assert not any("copy_" in each["path"] or "zero_" in each["path"] for each in incident["consumers"])
    assert sum("aten::add" in each["path"] for each in incident["consumers"]) == 1


def test_a_masked_score_beyond_the_format_is_absorbed_by_softmax(ours):
    w, output = watched(ours(scores_reach_infinity), "shadow")
    assert output.isfinite().all()
    assert w.incidents[0]["op"] == "aten::add" and w.incidents[0]["harm"] == "absorbed"


def test_off_sees_nothing_and_no_mode_changes_a_number(ours):
    ids, mask, model = ours()
    expected = model.generate(ids, attention_mask=mask, max_new_tokens=5)
    for mode in ("off", "guard", "count", "trap", "shadow"):
        with plimsoll.watch(mode) as w:
            assert torch.equal(model.generate(ids, attention_mask=mask, max_new_tokens=5), expected)
        assert bool(w.records) is (mode != "off")
        assert not w.incidents


def test_the_switch_of_poptorch_raises_with_the_layer(ours):
    ids, mask, model = ours(down_projection_reaches(90_000))
    model.t5_fixes = PLAIN
    on: Any = plimsoll.enable_floating_point_exceptions(True)
    try:
        with pytest.raises(RuntimeError, match=PATH):
            model.encode(ids, mask)
    finally:
        assert plimsoll.enable_floating_point_exceptions(False) is on
    assert on is not None and on.incidents[0]["incident"] == PATH
    assert model.encode(ids, mask).isnan().any()  # nobody watches any more


def test_a_report_for_machines(ours, tmp_path):
    w, _ = watched(ours(down_projection_reaches(90_000)), "trap")
    w.save(tmp_path / "watch.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "watch.jsonl").read_text().splitlines()]
    assert lines == w.records + w.incidents


def test_the_option_of_the_command(tmp_path):
    theirs = make("v1.1")
    with torch.no_grad():
        down_projection_reaches(90_000)(theirs)
    ids, _ = inputs(theirs, [9, 7])
    (tmp_path / "in.jsonl").write_text("\n".join(json.dumps({"input_ids": row.tolist()}) for row in ids))
    program = plimsoll._library.find().parent / "bin" / "plimsoll"
    command = [
        program,
        "t5",
        "encode",
        "--model",
        save(theirs, tmp_path / "model"),
        "--input",
        tmp_path / "in.jsonl",
        "--dtype",
        "fp16",
        "--fixes",
        "none",
        "--watch",
        "trap",
        "--json",
        tmp_path / "out.jsonl",
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    incident = next(line for line in lines if "incident" in line)
    assert incident["incident"] == PATH and incident["harm"] == "absorbed"  # by Hugging Face's clamp
    assert incident["consumers"][-1]["path"].startswith("aten::clamp")
    assert PATH in result.stderr and "watch" not in result.stdout


def test_unknown_modes_are_refused():
    with pytest.raises(ValueError, match="shadow"):
        plimsoll.watch("shado")
