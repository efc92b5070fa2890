"""--audit of the commands that run a model several times in one process: each row names its run, and nothing else changes."""

import json
from typing import Any

import pytest
import t5_models
import tiny_llama
import tokenizer_texts
from program import PROGRAM, done, interrupted, plimsoll

pytestmark = pytest.mark.skipif(not PROGRAM.is_file(), reason="bin/plimsoll is not built")

PIECES = 90
SHAPE = "--steps=2 --layers=1 --dim=32 --heads=2 --context=32 --batch=2 --warmup=1 --threads=1 --eval-windows=1".split()
GAUGE = ["--threads=1"]
# A bound that no format keeps, so that FP16 is gauged and a plan is searched.
LINE = "--context=16 --tokens=96 --measurements=3 --max-kl=1e-12 --threads=1".split()
SECOND_FP8 = '{"name": "fp8"}'


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return tiny_llama.write(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(tokenizer_texts.python_source()[:4000])
    return path


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    """(directory, ids to calibrate on, questions)."""
    pytest.importorskip("sentencepiece")
    root = tmp_path_factory.mktemp("t5")
    (root / "model").mkdir()
    words = [
        "The following are multiple choice questions (with answers) about law.",
        "Which has legs? an ant, a stone",
        "Answer: A",
    ]
    letters = [f"▁{letter}" for letter in "ABCD"]
    t5_models.train_tokenizer(root / "model", words * 20, pieces=PIECES, user_defined_symbols=letters)
    t5_models.save(t5_models.make("v1.1", vocab_size=PIECES + 100), root / "model")
    (root / "ids.jsonl").write_text(json.dumps({"input_ids": list(range(3, 20)), "decoder_input_ids": [0, 5, 6]}) + "\n")
    (root / "questions" / "test").mkdir(parents=True)
    (root / "questions" / "dev").mkdir()
    (root / "questions" / "test" / "law_test.csv").write_text("Which has legs?,ant,stone,sea,sky,A\n")
    return root / "model", root / "ids.jsonl", root / "questions"


def read(path):
    """Rows by run, in the order of the runs; their shares add up to 1, and no run has a row twice."""
    runs: dict[str, list[Any]] = {}
    for row in map(json.loads, path.read_text().splitlines()):
        runs.setdefault(row.pop("run"), []).append(row)
    for rows in runs.values():
        assert sum(row["share"] for row in rows) == pytest.approx(1, abs=len(rows) * 2**-52)
        keys = [json.dumps({**row, "calls": 0, "operations": 0, "share": 0}) for row in rows]
        assert len(set(keys)) == len(keys)
    return runs


def formats(rows):
    """Formats of the operands of products."""
    return {operand["format"] for row in rows if row["op"].startswith("gemm") for operand in row["operands"]}


def losses(log):
    """The numbers of a log that do not depend on the clock or on memory."""
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    return [{key: row[key] for key in ("step", "loss", "val_loss", "grad_norm", "final_val_loss") if key in row} for row in rows]


def assert_diff_names(first, second, run):
    """--diff of a file with itself is empty, and that of the two names this run alone."""
    same = plimsoll("audit", "--diff", first, first)
    assert same.returncode == 0 and same.stdout == ""
    differs = plimsoll("audit", "--diff", first, second)
    lines = differs.stdout.splitlines()
    assert differs.returncode == 1 and lines and all(line.startswith(f"{run}: ") for line in lines), differs


def rewritten(path, run, out):
    """The file with another kernel in the rows of a run."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    out.write_text("".join(json.dumps({**row, "kernel": "abacus"} if row["run"] == run else row) + "\n" for row in rows))
    return out


def test_compare_has_the_rows_of_each_recipe_trained_alone(text, tmp_path):
    data = ("--data", text, *SHAPE)
    compared = ("compare", *data, "--recipes", f"fp32,fp8,{SECOND_FP8}")
    done(*compared, "--out", tmp_path / "audited", "--audit", tmp_path / "audit")
    done(*compared, "--out", tmp_path / "plain")
    runs = read(tmp_path / "audit")
    assert list(runs) == ["fp32", "fp8", "fp8-2"] and runs["fp8"] == runs["fp8-2"]
    for recipe in ("fp32", "fp8"):
        done("train", *data, "--recipe", recipe, "--out", tmp_path / recipe, "--audit", tmp_path / f"{recipe}.audit")
        alone = [json.loads(line) for line in (tmp_path / f"{recipe}.audit").read_text().splitlines()]
        assert runs[recipe] == alone and all("run" not in row for row in alone)
    for run in runs:
        log = losses(tmp_path / "audited" / run / "train.jsonl")
        assert log == losses(tmp_path / "plain" / run / "train.jsonl") and any("loss" in row for row in log)
    assert_diff_names(tmp_path / "audit", rewritten(tmp_path / "audit", "fp8-2", tmp_path / "other"), "fp8-2")
    done(*compared, "--out", tmp_path / "audited", "--resume", "--audit", tmp_path / "again")
    again = read(tmp_path / "again")  # of the validation of each, for no step was left to do
    assert list(again) == list(runs)
    assert {row["op"] for rows in again.values() for row in rows if row["op"].startswith("gemm")} == {"gemm output"}


def test_mmlu_names_the_dtypes_and_a_difference_in_one_of_them(t5, tmp_path):
    model, _, questions = t5
    common = ("mmlu", "--model", model, "--data", questions, "--threads=1")
    for name, words in {
        "seed": ("--dtypes=fp32,fp16,fp8",),
        "none": ("--dtypes=fp32,fp16,fp8", "--fixes=none"),
        "fp8": ("--dtypes=fp8",),
    }.items():
        done(*common, *words, "--audit", tmp_path / name, "--json", tmp_path / f"{name}.json")
        done(*common, *words, "--json", tmp_path / f"{name}.plain.json")
        assert (tmp_path / f"{name}.json").read_text() == (tmp_path / f"{name}.plain.json").read_text()
    runs = read(tmp_path / "seed")
    assert list(runs) == ["fp32", "fp16", "fp8"] and formats(runs["fp32"]) == {"fp32"}
    assert "e4m3" in formats(runs["fp8"]) and runs["fp8"] == read(tmp_path / "fp8")["fp8"]
    assert_diff_names(tmp_path / "seed", tmp_path / "none", "fp16")


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_parity_has_its_reference_apart(kind, llama, text, t5, tmp_path):
    model, data, more = (llama, text, ("--tokens=40",)) if kind == "llama" else (t5[0], t5[1], ("--max-new-tokens=2",))
    done("parity", "--model", model, "--data", data, "--dtypes=bf16,fp8", "--threads=1", *more, "--audit", tmp_path / "audit")
    runs = read(tmp_path / "audit")
    assert set(runs) == {"reference", "bf16", "fp8"}
    assert formats(runs["reference"]) == {"fp32"} and "fp32" not in formats(runs["bf16"]) and "e4m3" in formats(runs["fp8"])
    assert_diff_names(tmp_path / "audit", rewritten(tmp_path / "audit", "reference", tmp_path / "other"), "reference")


def gauged(model, tmp_path, *words):
    """The runs of the audit; the certificate is that of a command without one."""
    certificates = []
    for name, more in (("audited", ("--audit", tmp_path / "audit")), ("plain", ())):
        done("gauge", "--model", model, "--out", tmp_path / name, *GAUGE, *words, *more)
        certificates.append((tmp_path / name / "plimsoll_gauge.json").read_text())
    assert certificates[0] == certificates[1]
    runs = read(tmp_path / "audit")
    assert formats(runs["fp32"]) == formats(runs["fp32 gauged"]) == {"fp32"} and formats(runs["fp16 gauged"]) == {"fp16"}
    assert_diff_names(tmp_path / "audit", rewritten(tmp_path / "audit", "fp16 gauged", tmp_path / "other"), "fp16 gauged")
    return runs


def test_gauge_of_a_decoder_names_its_steps(llama, text, tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("".join(f"{line}\n" for line in text.read_text().splitlines()[:4] if line))
    runs = gauged(llama, tmp_path, "--calibrate", short, "--measurements=4", "--train", "--step-targets=64")
    assert list(runs) == ["fp32", "search", "loss scale", "fp32 gauged", "fp16 gauged"]
    backward = {run for run, rows in runs.items() if any(row["op"] == "gemm grad_weight" for row in rows)}
    assert backward == {"fp32", "search", "loss scale"}


def test_gauge_of_a_t5_without_inputs_has_bounds(t5, tmp_path):
    runs = gauged(t5[0], tmp_path)
    assert list(runs) == ["fp32", "bounds", "fp32 gauged", "fp16 gauged"]


def test_line_names_each_format_and_the_steps_of_gauge(llama, text, tmp_path):
    found = []
    for name, more in (("audited", ("--audit", tmp_path / "audit")), ("plain", ())):
        result = plimsoll("line", "--model", llama, "--data", text, "--out", tmp_path / name, *LINE, *more)
        assert result.returncode == 1 and "all products in BF16" in result.stderr, result
        found.append((tmp_path / name / "plimsoll_line.json").read_text())
    assert found[0] == found[1] and json.loads(found[0])["gauge"] is not None
    runs = read(tmp_path / "audit")
    steps = ["gauge fp32", "gauge search", "gauge fp32 gauged", "gauge fp16 gauged"]
    after = ["fp16 gauged", "fp8", "nvfp4", "mxfp4", "plan", "fp8 planned"]
    assert list(runs) == ["fp32", "bounds", "bf16", "fp16", *steps, *after]
    want = {"fp32": {"fp32"}, "bf16": {"bf16"}, "fp16": {"fp16"}, "gauge fp32": {"fp32"}, "fp16 gauged": {"fp16"}}
    assert {run: formats(runs[run]) for run in want} == want
    for run, code in {"fp8": "e4m3", "nvfp4": "e2m1", "mxfp4": "e2m1", "plan": "e4m3"}.items():
        assert formats(runs[run]) == {"bf16", code}
    assert_diff_names(tmp_path / "audit", rewritten(tmp_path / "audit", "gauge search", tmp_path / "other"), "gauge search")


@pytest.mark.parametrize("name", ["compare", "gauge", "line", "mmlu"])
def test_file_that_cannot_be_made_is_one_line_before_anything_is_computed(name, llama, text, t5, tmp_path):
    words = {
        "compare": ["--data", text, *SHAPE, "--out", tmp_path / "out"],
        "gauge": ["--model", llama, "--out", tmp_path / "out"],
        "line": ["--model", llama, "--data", text, "--out", tmp_path / "out", *LINE],
        "mmlu": ["--model", t5[0], "--data", t5[2], "--json", tmp_path / "out"],
    }[name]
    result = plimsoll(name, *words, "--audit", tmp_path / "missing" / "audit")
    assert result.returncode == 1 and result.stderr.count("\n") == 1, result
    assert f"{tmp_path / 'missing' / 'audit'}: cannot create: No such file or directory" in result.stderr
    assert not (tmp_path / "out").exists() and "measuring" not in result.stdout and "step" not in result.stdout.lower().split()


@pytest.mark.parametrize("before", [None, '{"layer": "", "op": "of another run", "kernel": ""}\n'])
def test_command_that_does_not_end_leaves_the_file_as_it_was(before, llama, text, tmp_path):
    audit, out = tmp_path / "audit", tmp_path / "out"
    if before is not None:
        audit.write_text(before)
    left = [audit] if before is not None else []
    words = ["line", "--model", llama, "--data", text, "--out", out, *LINE, "--audit", audit]
    _, error, code = interrupted(words, (tmp_path / "out.partial").exists)
    assert (code, error) == (130, "plimsoll: line: interrupted, nothing is written\n")
    assert list(tmp_path.iterdir()) == left
    refused = plimsoll("gauge", "--model", llama, "--out", llama, "--audit", audit)
    assert refused.returncode == 2 and list(tmp_path.iterdir()) == left
    assert before is None or audit.read_text() == before
    done("gauge", "--model", llama, "--out", out, *GAUGE, "--audit", audit)
    assert set(read(audit)) == {"fp32", "bounds", "fp32 gauged", "fp16 gauged"}


def test_audit_of_two_directories_of_models_is_refused(llama, tmp_path):
    result = plimsoll("compare", llama, llama, "--audit", tmp_path / "audit")
    assert result.returncode == 2 and result.stderr.count("\n") == 1 and "--audit" in result.stderr, result
