"""plimsoll audit, --audit of other commands and plimsoll.audit: rows as a table written here expects them of each recipe."""

import json
import os
from typing import Any, cast

import plimsoll as package
import pytest
import tiny_llama
import tokenizer_texts
import torch
from plimsoll.common import recipe as recipes
from program import PROGRAM, done, plimsoll
from transformers import AutoModelForCausalLM

pytestmark = pytest.mark.skipif(not PROGRAM.is_file(), reason="bin/plimsoll is not built")

LAYERS = [
    f"blocks.{block}.{name}"
    for block in range(2)
    for name in ("self_attention.layernorm_qkv", "self_attention.proj", "layernorm_mlp.fc1", "layernorm_mlp.fc2")
]
PRODUCTS = {"output": ("input", "weight"), "grad_input": ("grad_output", "weight"), "grad_weight": ("grad_output", "input")}
TOKENS = 24
PLAIN = {"granularity": "", "source": "", "scale": ""}


def scaled(granularity, source, scale):
    return {"granularity": granularity, "source": source, "scale": scale}


# Form of the scales of (weights, other operands), and the format of gradients, of each recipe; operands in E4M3 otherwise,
# and E2M1 under recipes of four bits.
CODES = {
    "fp8": (scaled("tensor", "delayed", "fp32"), scaled("tensor", "delayed", "fp32"), "e5m2"),
    "fp8-current": (scaled("tensor", "current", "fp32"), scaled("tensor", "current", "fp32"), "e5m2"),
    "fp8-row": (scaled("row", "current", "fp32"), scaled("row", "current", "fp32"), "e5m2"),
    "fp8-block": (scaled("128x128", "current", "power of two"), scaled("1x128", "current", "power of two"), "e4m3"),
    "mxfp8": (scaled("1x32", "current", "e8m0"), scaled("1x32", "current", "e8m0"), "e4m3"),
    "nvfp4": (scaled("16x16", "current", "e4m3"), scaled("1x16", "current", "e4m3"), "e2m1"),
    "nvfp4-4over6": (scaled("16x16", "current", "e4m3"), scaled("1x16", "current", "e4m3"), "e2m1"),
    "ms-eden": (scaled("16x16", "current", "e4m3"), scaled("1x16", "current", "e4m3"), "e2m1"),
    "mxfp4": (scaled("1x32", "current", "e8m0"), scaled("1x32", "current", "e8m0"), "e4m3"),
}


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def audited(folder, tmp_path, *more, command=("audit",), environment=None):
    """Rows of the command's audit, whose shares add up to 1."""
    path = tmp_path / "audit.jsonl"
    option = "--json" if command == ("audit",) else "--audit"
    result = plimsoll(*command, "--model", folder, option, path, "--threads=1", *more, environment=environment)
    assert result.returncode == 0, result.stderr
    rows = read(path)
    assert sum(row["share"] for row in rows) == pytest.approx(1, abs=len(rows) * 2**-52)
    return rows


def products(rows, op):
    return {row["layer"]: row for row in rows if row["op"] == f"gemm {op}"}


def operands(row):
    """{name: (format, form of its scales)}."""
    return {each["name"]: (each["format"], {key: each.get(key, "") for key in PLAIN}) for each in row["operands"]}


def expected(name, op):
    """Operands of a layer's product under a recipe without overrides."""
    if name not in CODES:
        return dict.fromkeys(PRODUCTS[op], (name, PLAIN))
    weight, other, gradient = CODES[name]
    if name == "ms-eden" and op != "output":  # a weight's codes along the other dimension are made apart
        weight = other
    narrow = "e2m1" if gradient == "e2m1" or "fp4" in name else "e4m3"
    formats = {"input": (narrow, other), "weight": (narrow, weight), "grad_output": (gradient, other)}
    return {role: formats[role] for role in PRODUCTS[op]}


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return tiny_llama.write(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_text(tokenizer_texts.python_source(4000))
    return path


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16", *CODES])
def test_rows_of_a_training_step_are_those_of_the_recipe(llama, tmp_path, name):
    rows = audited(llama, tmp_path, "--recipe", name, "--tokens", TOKENS)
    wide = name if name not in CODES else "bf16"
    for op in PRODUCTS:
        layers = products(rows, op)
        assert set(layers) == {*LAYERS, "head"}
        for layer in LAYERS:
            if (name == "ms-eden" or "nvfp4" in name) and layer.startswith("blocks.1."):  # 15 % of two blocks
                assert operands(layers[layer]) == dict.fromkeys(PRODUCTS[op], (wide, PLAIN))
                assert layers[layer]["decided"] == "layer" and "high precision" in layers[layer]["reason"]
                continue
            assert operands(layers[layer]) == expected(name, op), layer
            assert layers[layer]["decided"] == ("recipe" if name in CODES else "dtype")
            assert layers[layer]["reason"] == ""
        assert operands(layers["head"]) == dict.fromkeys(PRODUCTS[op], (wide, PLAIN))
        assert layers["head"]["decided"] == ("layer" if name in CODES else "dtype")
        assert ("high precision" in layers["head"]["reason"]) == (name in CODES)
    assert {row["output"] for row in products(rows, "output").values()} == {wide}
    assert {row["output"] for row in products(rows, "grad_weight").values()} == {"fp32"}
    assert {"norm", "attention", "activation", "embedding", "rotary", "cross_entropy", "norm backward"} <= {
        row["op"] for row in rows
    }
    assert {row["layer"] for row in rows if row["op"] == "norm"} >= {
        "blocks.0.self_attention.layernorm_qkv",
        "blocks.1.layernorm_mlp.fc1",
    }


def test_products_of_a_step_are_six_operations_a_weight_and_token(llama, tmp_path):
    rows = audited(llama, tmp_path, "--recipe", "fp8", "--tokens", TOKENS)
    weights = AutoModelForCausalLM.from_pretrained(llama).state_dict()
    multiplied = sum(weight.numel() for name, weight in weights.items() if weight.dim() == 2 and "embed_tokens" not in name)
    assert sum(row["operations"] for row in rows if row["op"].startswith("gemm")) == 6 * multiplied * TOKENS


def test_overrides_are_listed_with_their_reason(llama, tmp_path):
    text = json.dumps({"name": "fp8", "override_linear_precision": [False, True, False]})
    rows = audited(llama, tmp_path, "--recipe", text, "--tokens", TOKENS)
    for layer in LAYERS:
        row = products(rows, "grad_input")[layer]
        assert operands(row) == {"grad_output": ("bf16", PLAIN), "weight": ("bf16", PLAIN)}
        assert row["decided"] == "override" and "override" in row["reason"] and "bf16" in row["reason"]
        for op in ("output", "grad_weight"):
            assert operands(products(rows, op)[layer]) == expected("fp8", op)
            assert products(rows, op)[layer]["decided"] == "recipe"


@pytest.mark.parametrize(("override", "values_of"), [("high_precision", ""), ("dequantized", "e4m3")])
def test_backward_overrides_say_whether_they_read_the_values_of_codes(llama, tmp_path, override, values_of):
    text = json.dumps({"name": "fp8-current", "backward_override": override})
    rows = audited(llama, tmp_path, "--recipe", text, "--tokens", TOKENS)
    for layer in LAYERS:
        assert operands(products(rows, "output")[layer]) == expected("fp8-current", "output")
        for op in ("grad_input", "grad_weight"):
            row = products(rows, op)[layer]
            assert {form for form in map(str, operands(row).values())} == {str(("bf16", PLAIN))}
            assert row["decided"] == "override"
            second = row["operands"][1]
            assert second.get("values_of", "") == values_of, second


def test_held_codes_in_another_form_than_the_recipes_are_the_files_or_a_fallback_with_its_reason(llama, text, tmp_path):
    """Codes with a scale a row: forward reads them as they are, and backward, whose sums run along the scales, their values."""
    done(
        *("finetune", "--model", llama, "--data", text, "--out", tmp_path / "run", "--lora=r=4", "--base=fp8", "--steps=1"),
        *("--recipe=fp8-current", "--context=64", "--samples=0", "--threads=1", "--audit", tmp_path / "audit"),
    )
    rows = read(tmp_path / "audit")
    held = scaled("row", "held", "fp32")
    for layer in LAYERS:
        row = products(rows, "output")[layer]
        assert operands(row) == {"input": ("e4m3", CODES["fp8-current"][1]), "weight": ("e4m3", held)}
        assert row["decided"] == "file" and "asked for e4m3 by tensor, got e4m3 by row" in row["reason"]
    for layer in LAYERS[1:]:
        row = products(rows, "grad_input")[layer]
        assert row["operands"][1] == {"name": "weight", "format": "bf16", "values_of": "e4m3"}
        assert row["decided"] == "fallback" and "asked for e4m3 by tensor, got bf16" in row["reason"]
    adapters = [row for row in rows if row["op"] == "gemm low rank"]
    assert {row["layer"] for row in adapters} == set(LAYERS)
    assert {row["decided"] for row in adapters} == {"layer"}
    assert not products(rows, "grad_weight").keys() & set(LAYERS)


@pytest.mark.parametrize(
    ("dtype", "weight"),
    [
        ("fp8", ("e4m3", scaled("row", "held", "fp32"))),
        ("nvfp4", ("e2m1", scaled("1x16", "held", "e4m3"))),
        ("mxfp4", ("e2m1", scaled("1x32", "held", "e8m0"))),
    ],
)
def test_codes_for_inference_are_the_files_under_any_dtype_of_what_they_multiply(llama, tmp_path, dtype, weight):
    rows = audited(llama, tmp_path, "--as=generate", f"--dtype={dtype}", "--tokens", TOKENS)
    for layer in LAYERS:
        row = products(rows, "output")[layer]
        assert row["decided"] == "file" and operands(row)["weight"] == weight


def test_forward_products_of_a_run_are_the_same_in_training_generation_and_a_training_forward(text, tmp_path):
    run = tmp_path / "run"
    shape = "--steps=2 --layers=2 --dim=32 --heads=2 --context=32 --batch=2 --warmup=1 --threads=1 --eval-windows=1".split()
    done("train", "--data", text, "--out", run, "--recipe=fp8", *shape, "--audit", tmp_path / "train")
    done("generate", "--model", run, "--prompt=a", "--tokens=4", "--threads=1", "--audit", tmp_path / "generate")
    trained, generated = read(tmp_path / "train"), read(tmp_path / "generate")
    forms = [
        {layer: (operands(row), row["output"]) for layer, row in products(rows, "output").items()}
        for rows in (trained, generated)
    ]
    assert forms[0] == forms[1] and len(forms[0]) == 9
    assert products(trained, "grad_weight") and not products(generated, "grad_weight")
    files = tmp_path / "train", tmp_path / "generate"
    assert plimsoll("audit", "--diff", *files).returncode == 1
    result = plimsoll("audit", "--diff", *files, "--forward-products")
    assert result.returncode == 0 and result.stdout == "", result.stdout
    done("audit", "--model", run, "--recipe=fp8-current", "--as=generate", "--tokens=4", "--json", tmp_path / "other")
    result = plimsoll("audit", "--diff", tmp_path / "train", tmp_path / "other", "--forward-products")
    assert result.returncode == 1 and all(" gemm output: " in line for line in result.stdout.splitlines()), result.stdout


def test_instruction_sets_differ_in_the_kernel_alone_and_a_difference_is_exit_1(llama, tmp_path):
    options = ["audit", "--model", llama, "--recipe=fp8-row", "--threads=1", "--tokens", TOKENS, "--json"]
    files = {isa: tmp_path / isa for isa in ("portable", "avx2", "again")}
    for isa, path in files.items():
        environment = {**os.environ, "PLIMSOLL_ISA": "avx2" if isa == "again" else isa}
        assert plimsoll(*options, path, environment=environment).returncode == 0
    differs = plimsoll("audit", "--diff", files["portable"], files["avx2"])
    lines = differs.stdout.splitlines()
    assert differs.returncode == 1 and len(lines) == len(read(files["avx2"]))
    assert all(": kernel: " in line and "portable ->" in line and line.endswith("avx2") for line in lines), lines
    assert plimsoll("audit", "--diff", files["again"], files["avx2"]).stdout == ""
    assert plimsoll("audit", "--diff", files["again"], files["avx2"]).returncode == 0


def test_each_difference_is_a_line_and_rows_of_one_file_alone_are_named(llama, tmp_path):
    files = [tmp_path / name for name in "ab"]
    for path, recipe in zip(files, ("fp8-current", "fp8"), strict=True):
        done("audit", "--model", llama, "--threads=1", "--tokens", TOKENS, "--recipe", recipe, "--json", path)
    lines = plimsoll("audit", "--diff", *files).stdout.splitlines()
    assert sum(" gemm " in line for line in lines) == 2 * 3 * len(LAYERS)
    assert f"{LAYERS[0]} gemm output: weight: e4m3, tensor, current, fp32 -> e4m3, tensor, delayed, fp32" in lines
    files[1].write_text("".join(files[0].read_text().splitlines(keepends=True)[1:]))
    lines = plimsoll("audit", "--diff", *files).stdout.splitlines()
    assert len(lines) == 1 and "only in the first" in lines[0]


def test_mistakes_are_one_line(llama, tmp_path):
    (tmp_path / "other").write_text('{"layer": 1}\n')
    (tmp_path / "empty").touch()
    (tmp_path / "norms").write_text('{"layer": "", "op": "norm", "operands": [], "output": "", "kernel": "", "decided": ""}\n')
    refused = {
        ("audit",): "either --model DIR, or --diff FILE FILE, got neither",
        ("audit", "--diff", llama / "config.json"): "--diff: expected two files, got 1",
        ("audit", "--model", llama, "--dtype=bf16"): "--dtype bf16: expected --as generate",
        ("audit", "--model", llama, "--forward-products"): "--forward-products: expected --diff FILE FILE with it, got none",
        ("audit", "--model", llama, "--tokens=1000"): "--tokens: expected at most the 256 that the model sees, got 1000",
    }
    failed = {
        ("audit", "--diff", tmp_path / "other", tmp_path / "other"): "expected lines of an audit, each with a member op",
        ("audit", "--diff", tmp_path / "empty", tmp_path / "empty"): "expected lines of an audit, got none",
        ("audit", "--diff", tmp_path / "norms", tmp_path / "norms", "--forward-products"): "with forward products, got none",
    }
    for words, error in (refused | failed).items():
        result = plimsoll(*words)
        assert result.returncode == (2 if words in refused else 1) and result.stderr.count("\n") == 1, result
        assert error in result.stderr, result.stderr


def two_layers():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(32, 48), torch.nn.GELU(), torch.nn.Linear(48, 16))


def test_torchs_own_operators_are_listed_as_torchs_with_their_dtype_and_path():
    with package.audit() as audit, torch.no_grad():
        two_layers().bfloat16()(torch.randn(4, 32, dtype=torch.bfloat16))
    assert [(row.layer, row.op, row.kernel, row.decided) for row in audit.rows] == [
        (path, "aten::linear", "torch", "torch") for path in "02"
    ]
    assert {(operand.name, operand.format) for row in audit.rows for operand in row.operands} == {
        (name, "bf16") for name in ("input", "weight", "bias")
    }
    assert [row.operations for row in audit.rows] == [2 * 4 * 32 * 48, 2 * 4 * 48 * 16]
    assert sum(row.share for row in audit.rows) == 1


def test_parts_of_a_model_that_is_named_have_their_path_in_it():
    model = two_layers()
    for audit, layer in ((package.audit(model), "2"), (package.audit(), "Linear")):
        with audit, torch.no_grad():
            model[2](torch.randn(4, 48))
        assert [row.layer for row in audit.rows] == [layer]
    with pytest.raises(TypeError, match="expected a torch.nn.Module, got Tensor"):
        package.audit(cast(Any, torch.ones(1)))


def test_converted_models_have_their_recipe_and_their_paths(tmp_path):
    model = two_layers()
    package.convert(model)
    with package.audit() as audit, package.pytorch.fp8_autocast(fp8_recipe=recipes.Float8CurrentScaling()):
        loss = model(torch.randn(16, 32)).sum()
    with audit:
        loss.backward()
    rows = [row for row in audit.rows if row.op.startswith("gemm")]
    assert {(row.layer, row.op) for row in rows} == {(path, f"gemm {op}") for path in "02" for op in PRODUCTS} - {
        ("0", "gemm grad_input")
    }
    assert {operand.source for row in rows for operand in row.operands} == {"current"}
    assert {row.decided for row in rows} == {"recipe"}
    audit.save(tmp_path / "rows")
    assert [row["op"] for row in read(tmp_path / "rows")] == [row.op for row in audit.rows]
    assert plimsoll("audit", "--diff", tmp_path / "rows", tmp_path / "rows").returncode == 0


def test_autoscaled_models_have_their_scales():
    model = package.autoscale.autoscale(two_layers(), dtype=torch.float16)
    with package.audit() as audit:
        model(torch.randn(16, 32))
    rows = [row for row in audit.rows if row.op == "gemm"]
    assert len(rows) >= 1 and {row.decided for row in rows} == {"autoscale"}
    assert {(each.format, each.source, each.scale) for row in rows for each in row.operands} == {
        ("fp16", "autoscale", "power of two")
    }


def test_outside_its_scope_nothing_is_recorded():
    with package.audit() as audit:
        pass
    two_layers()(torch.randn(4, 32))
    assert audit.rows == []
