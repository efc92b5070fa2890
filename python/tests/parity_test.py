"""`plimsoll parity`: FP32 against itself is exact, narrow dtypes are near it, and where FP16 overflows is on the map."""

import json
import subprocess
from statistics import NormalDist

import plimsoll
import pytest
import torch
from rounding import approx, gamma
from t5_models import inputs, make, save

PROGRAM = plimsoll._library.find().parent / "bin" / "plimsoll"


# Warning of loading about the weights that these tests take beyond FP16; load_overflow_test.py has the whole line.
OVERFLOW = "weights are beyond fp16 and became Inf: encoder.block.1.layer.1.DenseReluDense.wo.weight"


def without_warning(reports):
    return "".join(line for line in reports.splitlines(keepends=True) if OVERFLOW not in line)


def parity(folder, data, out, *arguments):
    done = subprocess.run(
        [PROGRAM, "parity", "--model", folder, "--data", data, "--json", out, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    result = json.loads(out.read_text())
    bad = [dtype for dtype, entry in result["dtypes"].items() if not entry["finite"]]
    said = f"plimsoll: parity: expected finite outputs in {bad[0]}, got Inf or NaN, first in " if bad else ""
    reports = without_warning(done.stderr)
    assert done.returncode == (3 if bad else 0) and reports.startswith(said) and reports.count("\n") == len(bad[:1])
    return result, done.stdout


def write_ids(path, ids, mask, **more):
    rows = [{"input_ids": row[: int(m.sum())].tolist(), **more} for row, m in zip(ids, mask, strict=True)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@torch.no_grad()
def test_each_dtype_against_fp32(tmp_path):
    theirs = make("v1.1")
    ids, mask = inputs(theirs, [9, 6, 7])
    targets = [0, 5, 9, 14]
    data = write_ids(tmp_path / "in.jsonl", ids, mask, decoder_input_ids=targets)
    result, printed = parity(save(theirs, tmp_path / "model"), data, tmp_path / "out.json", "--batch", 2, "--max-new-tokens", 6)
    assert result["inputs"] == 3 and result["decoder_tokens"] == 3 * len(targets)
    exact = result["dtypes"]["fp32"]
    assert exact["encoder_relative_l2"] == exact["logits_kl"] == 0
    assert exact["top1_agreement"] == exact["string_match"] == 1
    low, high = exact["string_match_interval"]
    assert 0 < low < 0.5 and high == 1  # three of three say little
    for dtype, unit in (("bf16", 2**-8), ("fp16", 2**-11), ("fp8", 2**-4)):
        narrow = result["dtypes"][dtype]
        assert narrow["finite"] and 0 < narrow["encoder_relative_l2"] < 8 * unit, dtype
        assert narrow["logits_kl"] > 0
        assert dtype in printed
    assert result["dtypes"]["fp16"]["logits_kl"] < result["dtypes"]["fp8"]["logits_kl"]


@torch.no_grad()
def test_the_divergence_is_that_of_the_definition(tmp_path):
    theirs = make("v1.0")
    ids, mask = inputs(theirs, [8])
    decoder_ids = torch.tensor([[0, 7, 3]])
    folder = save(theirs, tmp_path / "model")
    data = write_ids(tmp_path / "in.jsonl", ids, mask, decoder_input_ids=decoder_ids[0].tolist())
    result, _ = parity(folder, data, tmp_path / "out.json", "--dtypes", "bf16")
    assert list(result["dtypes"]) == ["bf16"]

    def log_probabilities(dtype):
        from plimsoll.t5 import T5ForConditionalGeneration

        model = T5ForConditionalGeneration.from_pretrained(folder, dtype)
        return torch.log_softmax(model(input_ids=ids, decoder_input_ids=decoder_ids).logits.double(), -1)

    want, got = log_probabilities(torch.float32), log_probabilities(torch.bfloat16)
    divergence = float((want.exp() * (want - got)).sum(-1).mean())
    # Sums of the vocabulary's terms in double: of the exponentials, and of the divergence.
    magnitude = float((want.exp() * (want.abs() + got.abs())).sum(-1).mean())
    bound = gamma(4 * theirs.config.vocab_size, torch.float64) * magnitude
    assert abs(result["dtypes"]["bf16"]["logits_kl"] - divergence) <= bound < divergence
    assert result["dtypes"]["bf16"]["top1_agreement"] == float((want.argmax(-1) == got.argmax(-1)).double().mean())


@torch.no_grad()
def test_accuracy_is_the_share_of_targets_written(tmp_path):
    """Targets of four lines: one has no target, two have what the model writes (with and without its end), one has another."""
    theirs = make("v1.1")
    ids, mask = inputs(theirs, [9, 6, 7, 5])
    written = theirs.generate(ids, attention_mask=mask, max_new_tokens=6, min_new_tokens=6)[:, 1:].tolist()
    other = [*written[2][:-1], (written[2][-1] + 1) % theirs.config.vocab_size]
    rows = [{"input_ids": row[: int(m.sum())].tolist()} for row, m in zip(ids, mask, strict=True)]
    for row, target in zip(rows, (written[0], [*written[1], theirs.config.eos_token_id], other), strict=False):
        row["target"] = target
    data = tmp_path / "in.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    result, printed = parity(
        save(theirs, tmp_path / "model"),
        data,
        tmp_path / "out.json",
        "--dtypes",
        "fp32,bf16",
        "--batch",
        3,
        "--max-new-tokens",
        6,
    )
    exact = result["dtypes"]["fp32"]
    ends = sum(theirs.config.eos_token_id in row for row in written[:2])
    assert ends == 0, "draw other weights: the texts must not end by themselves"
    assert exact["accuracy"] == 2 / 3
    # Wilson's interval, 2 of 3: its ends are the roots p of (p - 2 / 3)^2 = z^2 p (1 - p) / 3, each with some ten roundings.
    z2 = NormalDist().inv_cdf(0.975) ** 2
    mean, root = (2 / 3 + z2 / 6) / (1 + z2 / 3), (z2 * (2 / 9 / 3 + z2 / 36)) ** 0.5 / (1 + z2 / 3)
    assert exact["accuracy_interval"] == approx([mean - root, mean + root], 16, torch.float64)
    assert "accuracy" in result["dtypes"]["bf16"] and "accuracy" in printed


@torch.no_grad()
def test_the_map_shows_where_fp16_overflows(tmp_path):
    theirs = make("v1.1")
    theirs.encoder.block[1].layer[1].DenseReluDense.wo.weight[3] *= 3e5
    ids, mask = inputs(theirs, [9])
    data = write_ids(tmp_path / "in.jsonl", ids, mask)
    result, printed = parity(
        save(theirs, tmp_path / "model"), data, tmp_path / "out.json", "--dtypes", "fp32,fp16", "--fixes", "gauge"
    )
    place = "encoder.block.1.layer.1.DenseReluDense.wo/output"
    before = "encoder.block.0.layer.1.DenseReluDense.wo/output"
    exact, narrow = result["dtypes"]["fp32"], result["dtypes"]["fp16"]
    assert exact["headroom_fp16"][place] < 0 < exact["headroom_fp16"][before]
    assert exact["headroom"][place] > 0
    assert not narrow["finite"] and narrow["headroom"][place] is None and narrow["headroom"][before] > 0
    assert narrow["encoder_relative_l2"] is None and narrow["logits_kl"] is None
    assert narrow["first_non_finite"] == place and "first_non_finite" not in exact
    assert f"Inf or NaN from {place}" in printed


@torch.no_grad()
@pytest.mark.parametrize("task", ["score", "encode"])
def test_results_of_t5_that_are_not_finite_are_exit_code_3(tmp_path, task):
    theirs = make("v1.1")
    theirs.encoder.block[1].layer[1].DenseReluDense.wo.weight[3] *= 3e5
    data = write_ids(tmp_path / "in.jsonl", *inputs(theirs, [9, 7]))
    arguments = ["--model", save(theirs, tmp_path / "model"), "--input", data, "--json", tmp_path / "out"]
    if task == "score":
        arguments += ["--target", data]
    for dtype, code in (("fp32", 0), ("fp16", 3)):
        command = [PROGRAM, "t5", task, *arguments, "--dtype", dtype, "--fixes", "none"]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == code, done.stderr
        said = f"plimsoll: t5 {task}: expected finite results, got Inf or NaN for 2 inputs, the first is input 0\n"
        assert OVERFLOW in done.stderr or not code
        assert without_warning(done.stderr) == (said if code else "")
        assert len((tmp_path / "out").read_text().splitlines()) == 2


def test_an_unknown_dtype_is_named(tmp_path):
    done = subprocess.run(
        [PROGRAM, "parity", "--model", tmp_path, "--data", tmp_path, "--dtypes", "fp32,fp4"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 2 and "fp4" in done.stderr and done.stderr.count("\n") == 1
