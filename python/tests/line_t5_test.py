"""plimsoll line of T5s: what each format costs, FP16 gauged, a plan for codes, and who follows it."""

import json
import shutil

import plimsoll as package
import pytest
import torch
from gauge_program import hugging_face
from line_models import line
from line_t5_models import (
    classes_of,
    divergence,
    examples,
    log_probabilities,
    save_small,
    small,
    spread_cross,
    spread_head,
    spread_hidden,
    spread_stream,
    spread_values,
    targets_of,
    write_examples,
)
from plimsoll.common import recipe as recipes
from plimsoll.t5 import T5EncoderModel, T5ForConditionalGeneration
from program import PROGRAM, done, plimsoll
from t5_command import SENTENCES, new_model
from t5_models import save

pytestmark = pytest.mark.skipif(not PROGRAM.is_file(), reason="bin/plimsoll is not built")

COUNT = 40
ROWS = examples(COUNT)
HELD_OUT = ROWS[1::2]
TARGETS = targets_of(None, HELD_OUT)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_examples(tmp_path_factory.mktemp("data") / "examples.jsonl", ROWS)


@pytest.mark.parametrize("kind", ["v1.0", "v1.1", "few buckets", "mT5, tied", "UMT5", "UMT5, untied"])
def test_formats_are_judged_as_they_are_run(kind, data, tmp_path):
    _, folder, _ = save_small(kind, tmp_path / "model")
    result, found = line(folder, data, tmp_path / "lined", "--max-kl", 100)
    assert result.returncode == 0, result.stderr
    assert list(found["formats"]) == ["bf16", "fp16", "fp8", "mxfp4", "nvfp4"]
    assert found["plan"] is None and found["gauge"] is None and found["products"] == []
    assert found["tokens"]["held_out"] == sum(map(len, TARGETS))
    kl = {name: entry["logits_kl"] for name, entry in found["formats"].items()}
    for name, entry in found["formats"].items():
        want, error = divergence(folder, tmp_path / "lined", name, HELD_OUT, TARGETS)
        assert abs(entry["logits_kl"] - want) <= error, name
        assert entry["holds"] and entry["finite"]
    assert kl["fp16"] < kl["bf16"] < kl["fp8"] < min(kl["nvfp4"], kl["mxfp4"])
    width = {name: entry["bytes_per_weight"] for name, entry in found["formats"].items()}
    assert width["bf16"] == width["fp16"] == 2 and width["mxfp4"] < width["nvfp4"] < width["fp8"]


@torch.no_grad()
def test_model_without_a_fault_is_written_as_it_is(data, tmp_path):
    theirs, folder, _ = save_small("v1.0", tmp_path / "model")
    (folder / "plimsoll_gauge.json").write_text("of another model")
    line(folder, data, tmp_path / "lined", "--max-kl", 100)
    written = T5ForConditionalGeneration.from_pretrained(tmp_path / "lined")
    for name, parameter in T5ForConditionalGeneration.from_pretrained(folder).named_parameters():
        assert torch.equal(parameter, written.get_parameter(name)), name
    assert not (tmp_path / "lined" / "plimsoll_gauge.json").exists()
    ids = torch.tensor([ROWS[0]["input_ids"]])
    again = hugging_face(tmp_path / "lined")(input_ids=ids, decoder_input_ids=ids).logits
    assert torch.equal(again, theirs(input_ids=ids, decoder_input_ids=ids).logits)


@torch.no_grad()
def test_examples_without_a_target_have_the_text_that_fp32_writes(tmp_path):
    rows = examples(12, has_target=False)
    rows[1]["decoder_input_ids"] = [0, 8, 9, 3]
    rows[3]["decoder_input_ids"] = [0]
    rows[5]["target"] = [9, 3]
    theirs = small("v1.1", ends=60.0)
    folder = save(theirs, tmp_path / "model")
    held_out = rows[1::2]
    targets = targets_of(theirs, held_out)
    assert len({len(target) for target in targets[3:]}) > 1 and targets[0] == [8, 9, 3] and targets[2] == [9, 3, 1]
    _, found = line(folder, write_examples(tmp_path / "in.jsonl", rows), tmp_path / "lined", "--max-kl", 100)
    assert found["tokens"]["held_out"] == sum(map(len, targets))
    want, error = divergence(folder, folder, "fp8", held_out, targets)
    assert abs(found["formats"]["fp8"]["logits_kl"] - want) <= error
    ours = log_probabilities(T5ForConditionalGeneration.from_pretrained(folder, "fp16"), held_out, targets)
    loss = -ours.gather(1, torch.tensor(sum(targets, [])).unsqueeze(1)).mean()
    assert found["formats"]["fp16"]["perplexity"] == pytest.approx(loss.exp().item(), rel=1e-12)


def test_texts_are_read_a_line_each_and_tokens_are_bounded(tmp_path):
    new_model(tmp_path / "model")
    (tmp_path / "in.txt").write_text("\n".join(SENTENCES))
    _, found = line(tmp_path / "model", tmp_path / "in.txt", tmp_path / "all", "--max-kl", 100)
    both = found["tokens"]["search"] + found["tokens"]["held_out"]
    _, found = line(tmp_path / "model", tmp_path / "in.txt", tmp_path / "few", "--max-kl", 100, "--tokens", both - 1)
    fewer = found["tokens"]["search"] + found["tokens"]["held_out"]
    assert both / 2 < fewer < both
    _, found = line(tmp_path / "model", tmp_path / "in.txt", tmp_path / "two", "--max-kl", 100, "--tokens", 4)
    assert all(found["tokens"][part] > 0 for part in ("search", "held_out"))
    assert (tmp_path / "two" / "spiece.model").read_bytes() == (tmp_path / "model" / "spiece.model").read_bytes()


@pytest.mark.parametrize("kind", ["v1.0", "silu, tied", "mT5", "UMT5, untied"])
@torch.no_grad()
def test_fp16_that_overflows_is_gauged(kind, data, tmp_path):
    theirs = small(kind)
    for block in theirs.encoder.block:
        block.layer[1].DenseReluDense.wo.weight[3] *= 3e5
    folder, out = save(theirs, tmp_path / "model"), tmp_path / "lined"
    result, found = line(folder, data, out, "--max-kl", 0.05)
    assert not found["formats"]["fp16"]["finite"] and not found["formats"]["fp16"]["holds"]
    assert found["formats"]["fp16 gauged"]["finite"] and found["formats"]["fp16 gauged"]["holds"], result.stdout
    want, error = divergence(folder, out, "fp16", HELD_OUT, TARGETS, fixes=None)
    assert abs(found["formats"]["fp16 gauged"]["logits_kl"] - want) <= error
    certificate = json.loads((out / "plimsoll_gauge.json").read_text())
    assert certificate["fp32"]["bit_identical"] and certificate["calibration"]["inputs"] == COUNT / 2
    assert certificate["calibration"]["decoder_tokens"] == found["tokens"]["search"]
    again = hugging_face(out, classes_of(kind))
    assert torch.equal(log_probabilities(again, HELD_OUT, TARGETS), log_probabilities(theirs, HELD_OUT, TARGETS))
    assert log_probabilities(again.half(), HELD_OUT, TARGETS).isfinite().all()


SPREADS = [
    ("v1.0", spread_values),
    ("v1.0", spread_hidden),
    ("v1.1", spread_stream),
    ("mT5", spread_head),
    ("UMT5", spread_cross),
    ("UMT5, untied", spread_hidden),
]


@pytest.fixture(scope="module", params=SPREADS, ids=lambda each: f"{each[0]} {each[1].__name__}")
def lined(request, data, tmp_path_factory):
    """(source's directory, the one written, its figures, the products with outliers, the command's output)."""
    kind, spread = request.param
    root = tmp_path_factory.mktemp("lined")
    _, plain, _ = save_small(kind, root / "plain")
    usual, _ = divergence(plain, plain, "fp8", HELD_OUT, TARGETS)
    _, folder, names = save_small(kind, root / "model", spread)
    result, found = line(folder, data, root / "lined", "--max-kl", 1.5 * usual)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder, root / "lined", found, names, result.stdout


def test_plan_spares_the_products_with_outliers_alone(lined):
    _, out, found, names, output = lined
    formats = found["formats"]
    assert formats["bf16"]["holds"] and not formats["fp8"]["holds"] and formats["fp8 planned"]["holds"]
    assert formats["fp8 planned"]["logits_kl"] <= found["max_kl"] < formats["fp8"]["logits_kl"]
    assert sorted(found["plan"]["high_precision"]) == sorted(names)
    assert all(name in output for name in names)
    assert json.loads((out / "config.json").read_text())["plimsoll_plan"]["high_precision"] == found["plan"]["high_precision"]
    alone = {each["name"]: each["kl_alone"] for each in found["products"]}
    assert min(alone[name] for name in names) > max(cost for name, cost in alone.items() if name not in names)
    spared = sum(each["weights"] for each in found["products"] if each["high_precision"])
    assert found["plan"]["narrow_share"] == pytest.approx(1 - spared / sum(each["weights"] for each in found["products"]))


def test_promise_is_kept_by_the_model_as_it_is_loaded(lined, data, tmp_path):
    folder, out, found, names, _ = lined
    planned = found["formats"]["fp8 planned"]
    want, error = divergence(folder, out, "fp8", HELD_OUT, TARGETS)
    assert abs(planned["logits_kl"] - want) <= error and want <= found["max_kl"]
    # Parity reads the decoder's input where one is given: that of the targets, without their ends.
    given = [{**row, "decoder_input_ids": [0, *row["target"]]} for row in HELD_OUT]
    file = write_examples(tmp_path / "held_out.jsonl", given)
    words = ("--data", file, "--dtypes", "fp8", "--max-new-tokens", 2, "--audit", tmp_path / "audit")
    done("parity", "--model", out, *words, "--json", tmp_path / "parity")
    kl = json.loads((tmp_path / "parity").read_text())["dtypes"]["fp8"]["logits_kl"]
    assert abs(kl - want) <= error
    rows = [json.loads(row) for row in (tmp_path / "audit").read_text().splitlines()]
    products = [row for row in rows if row["run"] == "fp8" and row["op"].startswith("gemm") and row["layer"]]
    formats: dict[str, set[str]] = {}
    for row in products:
        formats.setdefault(row["layer"], set()).update(operand["format"] for operand in row["operands"])
    assert {layer for layer, each in formats.items() if "e4m3" not in each} >= set(names[:1])
    assert all(("e4m3" in each) != (layer in names) for layer, each in formats.items()), formats


@torch.no_grad()
def test_planned_weights_are_values_wherever_the_model_is_loaded(lined, tmp_path):
    _, out, _, names, _ = lined
    file = write_examples(tmp_path / "in.jsonl", ROWS[:1])
    for dtype in ("fp8", "nvfp4", "mxfp4"):
        model = T5ForConditionalGeneration.from_pretrained(out, dtype)
        stay = {name for name, weight in model.named_parameters() if weight.numel() > 0 and weight.dim() == 2}
        tables = {name for name in stay if "relative_attention_bias" in name} | {"shared.weight"}
        assert stay - tables == {f"{name}.weight" for name in names}
        ids = torch.tensor([ROWS[0]["input_ids"]])
        written = model.generate(ids, max_new_tokens=4)
        # A step at a time chooses what the whole text's logits do.
        logits = model(input_ids=ids, decoder_input_ids=written[:, :-1]).logits
        assert torch.equal(logits.argmax(-1), written[:, 1:])
        words = ("--input", file, "--dtype", dtype, "--max-new-tokens", 4, "--json", tmp_path / "written")
        done("t5", "generate", "--model", out, *words)
        ids_of_command = json.loads((tmp_path / "written").read_text())["ids"]
        assert ids_of_command == [token for token in written[0, 1:].tolist() if token != 1]


def test_plan_outlives_gauge_and_save_pretrained(lined, data, tmp_path):
    _, out, found, names, _ = lined
    done("gauge", "--model", out, "--out", tmp_path / "gauged", "--calibrate", data)
    T5ForConditionalGeneration.from_pretrained(out).save_pretrained(tmp_path / "saved")
    for folder in (tmp_path / "gauged", tmp_path / "saved"):
        assert (
            json.loads((folder / "config.json").read_text())["plimsoll_plan"]["high_precision"] == found["plan"]["high_precision"]
        )
        model = T5ForConditionalGeneration.from_pretrained(folder, "fp8")
        assert all(model.get_parameter(f"{name}.weight").numel() > 0 for name in names)
    # Products that an encoder alone lacks are no error.
    T5EncoderModel.from_pretrained(out, "fp8")


def test_a_second_line_keeps_the_products_of_the_first(lined, data, tmp_path):
    _, out, found, names, _ = lined
    _, again = line(out, data, tmp_path / "same", "--max-kl", found["max_kl"])
    assert again["plan"] is None and again["formats"]["fp8"]["logits_kl"] == found["formats"]["fp8 planned"]["logits_kl"]
    _, again = line(out, data, tmp_path / "stricter", "--max-kl", found["formats"]["fp8 planned"]["logits_kl"] / 2)
    assert again["plan"] is not None and set(names) < set(again["plan"]["high_precision"])
    assert not set(names) & {each["name"] for each in again["products"]}


def edit_plan(folder, to, plan):
    shutil.copytree(folder, to)
    config = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({**config, "plimsoll_plan": plan}))
    return to


@torch.no_grad()
def test_tied_head_stays_in_bf16_when_a_plan_says_so(tmp_path):
    _, folder, _ = save_small("v1.0", tmp_path / "model")
    names = [f"encoder.block.0.layer.0.SelfAttention.{part}" for part in "qk"]
    head = T5ForConditionalGeneration.from_pretrained(
        edit_plan(folder, tmp_path / "head", {"high_precision": ["lm_head"]}), "fp8"
    )
    some = T5ForConditionalGeneration.from_pretrained(edit_plan(folder, tmp_path / "some", {"high_precision": names}), "fp8")
    coded, values = (T5ForConditionalGeneration.from_pretrained(folder, dtype) for dtype in ("fp8", "bf16"))
    assert head.get_parameter("shared.weight").dtype == torch.bfloat16
    assert coded.get_parameter("shared.weight").dtype == torch.float32
    ids = torch.tensor([ROWS[0]["input_ids"]])
    outputs = [model(input_ids=ids, decoder_input_ids=ids) for model in (head, some, coded, values)]
    apart = [output.logits.double().sub(outputs[-1].logits.double()).norm().item() for output in outputs]
    assert 0 < apart[0] < apart[2] and apart[1] > 0 and apart[1] != apart[2]
    assert torch.equal(outputs[0].encoder_last_hidden_state, outputs[2].encoder_last_hidden_state)
    assert not torch.equal(outputs[1].encoder_last_hidden_state, outputs[2].encoder_last_hidden_state)


def test_training_computes_the_planned_products_in_high_precision(tmp_path):
    names = ["encoder.block.1.layer.0.SelfAttention.k", "decoder.block.0.layer.2.DenseReluDense.wo"]
    _, folder, _ = save_small("v1.1", tmp_path / "model")
    model = T5ForConditionalGeneration.from_pretrained(edit_plan(folder, tmp_path / "planned", {"high_precision": names}), "bf16")
    ids = torch.randint(3, 120, (2, 16), generator=torch.Generator().manual_seed(1))
    with package.audit() as audit:
        with package.pytorch.fp8_autocast(fp8_recipe=recipes.Float8CurrentScaling()):
            loss = model.train()(input_ids=ids, labels=ids).loss
        loss.backward()
    formats: dict[str, set[str]] = {}
    for row in audit.rows:
        if row.op.startswith("gemm") and "block" in row.layer:
            formats.setdefault(row.layer, set()).update(operand.format for operand in row.operands)
            assert ("plan" in row.reason) == (row.layer in names), row
    assert all(formats[name] == {"bf16"} for name in names)
    others = [each for layer, each in formats.items() if layer not in names]
    assert len(others) > 20 and all("e4m3" in each for each in others)


@pytest.mark.parametrize(
    "plan", [{"high_precision": ["encoder.block.9.layer.0.SelfAttention.q"]}, {"high_precision": "all"}, ["lm_head"]]
)
def test_plans_of_another_kind_are_one_clear_error(plan, data, tmp_path):
    _, folder, _ = save_small("v1.1", tmp_path / "model")
    folder = edit_plan(folder, tmp_path / "planned", plan)
    for words in (
        ("parity", "--data", data),
        ("line", "--data", data, "--out", tmp_path / "out"),
        ("gauge", "--out", tmp_path / "out"),
    ):
        result = plimsoll(words[0], "--model", folder, *words[1:])
        assert result.returncode == 1 and "plan" in result.stderr and len(result.stderr.splitlines()) == 1, result.stderr
        assert str(folder / "config.json") in result.stderr
    with pytest.raises((RuntimeError, ValueError), match="plan"):
        T5ForConditionalGeneration.from_pretrained(folder)
    assert not (tmp_path / "out").exists()


def test_errors_say_what_was_expected_and_leave_nothing(data, tmp_path):
    theirs, folder, _ = save_small("v1.1", tmp_path / "model")
    theirs.encoder.save_pretrained(tmp_path / "encoder")
    (tmp_path / "text").write_text("a text\nanother\n")
    one = write_examples(tmp_path / "one.jsonl", ROWS[:1])
    bad = write_examples(tmp_path / "bad.jsonl", [ROWS[0], {"input_ids": [4], "target": [130]}])
    bert = edit_plan(folder, tmp_path / "bert", {})
    config = json.loads((bert / "config.json").read_text())
    (bert / "config.json").write_text(json.dumps({**config, "model_type": "bert"}))
    for words, code, expected in (
        (("--model", tmp_path / "encoder", "--data", data), 2, "expected a model with a decoder, got"),
        (("--model", bert, "--data", data), 1, "model_type: expected t5, mt5 or umt5"),
        (("--model", folder, "--data", tmp_path / "text"), 1, "expected spiece.model, found none"),
        (("--model", folder, "--data", one), 1, "expected at least 2 examples, one to search with and one held out, got 1"),
        (("--model", folder, "--data", bad), 1, "line 2: target: expected an array of ids from 0 to 129"),
        (("--model", folder, "--data", data, "--context", 8), 2, "--context: expected a decoder"),
        (("--model", folder, "--data", data, "--tokens", 3), 2, "--tokens"),
        (("--model", tmp_path, "--data", data), 2, f"expected a Hugging Face directory, got {tmp_path} without config.json"),
    ):
        result = plimsoll("line", *words, "--out", tmp_path / "out")
        assert (result.returncode, result.stdout) == (code, "") and expected in result.stderr, result.stdout + result.stderr
        assert len(result.stderr.splitlines()) == 1, result.stderr
        assert not (tmp_path / "out").exists() and not (tmp_path / "out.partial").exists()


def test_report_draws_the_line(lined, tmp_path):
    _, out, _, names, _ = lined
    page = package.report(out, tmp_path / "line.html").read_text()
    assert "how far it may be loaded" in page and all(name in page for name in names) and "fp8 planned" in page
