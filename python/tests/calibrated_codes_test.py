"""plimsoll quantize --calibrate, against GPTQ as its definition has it, in FP64 and without a Cholesky factor."""

import json
import math
import shutil
from typing import Any

import coded_files
import pytest
import tiny_llama
import tokenizer_texts
import tokenizers
import torch
import transformers
from program import done, plimsoll
from safetensors.torch import load_file, save_file

TEXT = tokenizer_texts.python_source()
TOKENS, CONTEXT = 700, 256
LAYERS = 2
SIZES: dict[str, Any] = {
    "hidden_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 160,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": None,
    "pad_token_id": None,
}
GPT_NEOX = {key: value for key, value in SIZES.items() if key not in ("num_key_value_heads", "head_dim")}
FAMILIES = {
    "llama": transformers.LlamaConfig,
    "mistral": transformers.MistralConfig,
    "qwen2": transformers.Qwen2Config,
    "qwen3": transformers.Qwen3Config,
    "gemma3_text": transformers.Gemma3TextConfig,
    "gpt_neox": transformers.GPTNeoXConfig,
}
BLOCK = {"nvfp4": 16, "mxfp4": 32}
# Modules that are multiplied at once, whose tensor scale NVFP4 shares.
TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def write_model(folder, family="llama"):
    """A tokenizer, and a model of random weights whose inputs have much in common: embeddings lie near twelve directions."""
    tiny_llama.write(folder)
    vocabulary = json.loads((folder / "config.json").read_text())
    ids = {"vocab_size": vocabulary["vocab_size"], "eos_token_id": vocabulary["eos_token_id"]}
    torch.manual_seed(sum(map(ord, family)))
    config = FAMILIES[family](**{**(GPT_NEOX if family == "gpt_neox" else SIZES), **ids}, tie_word_embeddings=False)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0, parameter.shape[1] ** -0.5)
            else:
                parameter.add_(torch.empty_like(parameter).uniform_(-0.3, 0.3))
        embedding = model.get_input_embeddings().weight
        embedding.copy_(torch.randn(len(embedding), 12) @ torch.randn(12, embedding.shape[1]) + torch.randn_like(embedding))
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="module")
def values(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("values"))


def calibrated(model, out, text, *words):
    return plimsoll("quantize", "--model", model, "--out", out, "--calibrate", text, "--calibrate-tokens", TOKENS, *words)


def amaxes(weights):
    """Largest magnitudes of all that shares a weight's tensor scale."""
    result = {}
    for name in weights:
        module, _, last = name.rpartition(".")
        group = next((group for group in TOGETHER if last in group), (last,))
        result[name] = max(weights[f"{module}.{each}"].abs().max() for each in group)
    return result


def rounded(block, format, amax):
    """Codes, the code of the scale of each row, and values, of a block of columns as the formats define them."""
    largest = block.abs().amax(1).float()
    if format == "nvfp4":
        factor = (448 * 6 / amax.float()).reshape(1)
        code = (largest * (factor / 6)).clamp(max=448).to(coded_files.E4M3)
        unit = code.double() / factor.double()
    else:
        code = (torch.ceil(torch.log2(largest.double() / 6)) + 127).to(torch.uint8)
        unit = 2.0 ** (code.double() - 127)
    return code, unit


def gptq(weight, inputs, format, amax):
    """Codes [n, k] and scales [n, k / block]: columns one after another, each leaving the best of those that follow it. The inverse
    loses a row and a column at each step (the optimal brain surgeon's form), where the program has a triangular factor."""
    squares = inputs.T @ inputs
    inverse = torch.linalg.inv(squares + 0.01 * squares.diagonal().mean() * torch.eye(len(squares), dtype=torch.float64))
    left, size = weight.double().clone(), BLOCK[format]
    codes, scales = [], []
    for column in range(weight.shape[1]):
        if column % size == 0:
            code, unit = rounded(left[:, column : column + size], format, amax)
            scales.append(code)
        code = coded_files.encode_e2m1((left[:, column] / unit).clamp(-6, 6))
        codes.append(code)
        lost = (left[:, column] - coded_files.VALUES_OF_E2M1[code.long()] * unit) / inverse[column, column]
        left -= lost[:, None] * inverse[column]
        inverse -= inverse[:, column, None] * inverse[column] / inverse[column, column]
    return torch.stack(codes, 1), torch.stack(scales, 1)


def ids_of_text(directory):
    return tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json")).encode(TEXT, add_special_tokens=False).ids


class Reference:
    """The model in FP64 with what its linear layers read, of the windows that the program reads."""

    def __init__(self, directory):
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float64, attn_implementation="eager"
        )
        ids = torch.tensor([ids_of_text(directory)[:TOKENS]])
        begins = range(0, TOKENS - 1, CONTEXT)
        self.windows = [ids[:, begin : min(begin + CONTEXT, TOKENS - 1)] for begin in begins]
        self.modules = dict(self.model.named_modules())

    @torch.no_grad()
    def inputs_of(self, names):
        seen: dict[str, list[torch.Tensor]] = {name: [] for name in names}

        def hook(name):
            return self.modules[name].register_forward_pre_hook(lambda _, x: seen[name].append(x[0].flatten(0, 1)))

        hooks = [hook(name) for name in names]
        for window in self.windows:
            self.model(window)
        for each in hooks:
            each.remove()
        return {name: torch.cat(parts) for name, parts in seen.items()}


@pytest.mark.parametrize(
    ("family", "format"), [("llama", "mxfp4"), *((family, "nvfp4") for family in FAMILIES)], ids=lambda word: word
)
@torch.no_grad()
def test_codes_are_those_of_gptq_and_outputs_err_less_than_with_nearest(family, format, text, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    write_model(model, family)
    result = calibrated(model, tmp_path / "out", text, "--format", format)
    assert result.returncode == 0, result
    done("quantize", "--model", model, "--out", tmp_path / "nearest", "--format", format)
    ours, nearest = (coded_files.modules_of(tmp_path / name) for name in ("out", "nearest"))
    stored = load_file(model / "model.safetensors")
    weights = {name: stored[name + ".weight"] for name in ours}
    largest, reference = amaxes(weights), Reference(model)
    same = rows = 0
    for layer in range(LAYERS):
        names = [name for name in ours if f".layers.{layer}." in name]
        for name, inputs in reference.inputs_of(names).items():
            codes, scales = gptq(weights[name], inputs, format, largest[name])
            got, bits = coded_files.unpack(ours[name]["weight_packed"]), ours[name]["weight_scale"].view(torch.uint8)
            expected = coded_files.VALUES_OF_E2M1[codes.long()]  # 0 and -0 are as near
            equal = got.eq(expected).all(1) & scales.view(torch.uint8).eq(bits).all(1)
            same, rows = same + equal.sum().item(), rows + len(equal)
            written, plain = (coded_files.values_of(module[name]) for module in (ours, nearest))

            def error(coded, name=name, inputs=inputs):
                return (inputs @ (weights[name].double() - coded).T).norm().item()

            assert error(written) < error(plain), name
        for name in names:
            reference.modules[name].weight.copy_(coded_files.values_of(ours[name]))
    # The program's inputs are of FP32. A value that lies within that of the middle of two codes may become the other, and all that
    # follows in its row with it; the rows are otherwise the same to the last bit.
    assert same >= 0.99 * rows, (same, rows)


def test_uncorrelated_inputs_leave_the_nearest_codes(values, text, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(values, model)
    tensors = load_file(model / "model.safetensors")
    embedding = tensors["model.embed_tokens.weight"]
    embedding.copy_(torch.eye(embedding.shape[1])[torch.arange(len(embedding)) % embedding.shape[1]])
    save_file(tensors, model / "model.safetensors", {"format": "pt"})
    assert calibrated(model, tmp_path / "out", text, "--format", "nvfp4").returncode == 0
    done("quantize", "--model", model, "--out", tmp_path / "nearest", "--format", "nvfp4")
    ours, nearest = (coded_files.modules_of(tmp_path / name) for name in ("out", "nearest"))
    for name, module in ours.items():
        same = all(torch.equal(module[last], nearest[name][last]) for last in module)
        assert same == any(f"layers.0.self_attn.{last}" in name for last in TOGETHER[0]), name


@pytest.mark.parametrize("format", BLOCK)
def test_bits_do_not_depend_on_the_number_of_threads_and_the_layout_is_that_of_nearest_codes(format, values, text, tmp_path):
    for threads in (1, 2, 3):
        words = ["--format", format, "--threads", threads, "--keep", "layers.1.mlp.down_proj"]
        assert calibrated(values, tmp_path / str(threads), text, *words).returncode == 0
    one = (tmp_path / "1" / "model.safetensors").read_bytes()
    assert all((tmp_path / str(threads) / "model.safetensors").read_bytes() == one for threads in (2, 3))
    done("quantize", "--model", values, "--out", tmp_path / "nearest", "--format", format, "--keep", "layers.1.mlp.down_proj")
    ours, nearest = (load_file(tmp_path / name / "model.safetensors") for name in ("1", "nearest"))
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in ours.items()} == {
        name: (tensor.dtype, tensor.shape) for name, tensor in nearest.items()
    }
    assert (tmp_path / "1" / "config.json").read_text() == (tmp_path / "nearest" / "config.json").read_text()
    coded = [name for name in ours if name.endswith("weight_packed")]
    assert all(not torch.equal(ours[name], nearest[name]) for name in coded)
    others = [name for name in ours if not name.endswith(("weight_packed", "weight_scale"))]  # NVFP4's tensor scales among them
    assert all(torch.equal(ours[name], nearest[name]) for name in others)


def test_tokens_and_windows_are_those_that_are_asked_for(values, text, tmp_path):
    """Text beyond --calibrate-tokens is not read."""
    ids = ids_of_text(values)
    offset = len(tokenizers.Tokenizer.from_file(str(values / "tokenizer.json")).decode(ids[: TOKENS + 50]))
    (tmp_path / "other").write_text(TEXT[:offset] + "other words " * 200)
    words = ["--format", "nvfp4"]
    for name, data in (("a", text), ("b", tmp_path / "other")):
        assert calibrated(values, tmp_path / name, data, *words).returncode == 0
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()


def with_tensor(values, folder, name, make):
    shutil.copytree(values, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors[name] = make(tensors[name])
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_what_cannot_be_calibrated_is_one_error(values, text, tmp_path):
    (tmp_path / "empty").write_text("")
    (tmp_path / "short").write_text("a few words")
    down = "model.layers.1.mlp.down_proj.weight"
    nan = with_tensor(values, tmp_path / "nan", down, lambda weight: weight.index_fill(0, torch.tensor([3]), math.nan))
    up = "model.layers.0.mlp.up_proj.weight"
    large = with_tensor(values, tmp_path / "large", up, lambda weight: torch.full_like(weight, 3e38))
    mute = tmp_path / "mute"
    shutil.copytree(values, mute)
    (mute / "tokenizer.json").unlink()
    done("quantize", "--model", values, "--out", tmp_path / "codes", "--format", "nvfp4")
    for model, data, words, expected in (
        (values, text, ["--format", "fp8"], "--calibrate: expected --format nvfp4 or mxfp4, got fp8"),
        (values, text, ["--format", "fp8-block"], "--calibrate: expected --format nvfp4 or mxfp4, got fp8-block"),
        (values, text, ["--format", "nvfp4", "--rotate"], "--calibrate: expected no --rotate, got both"),
        (values, tmp_path / "none", ["--format", "nvfp4"], "--calibrate"),
        (values, tmp_path / "empty", ["--format", "nvfp4"], "expected at least 2 tokens, got 0"),
        (values, tmp_path / "short", ["--format", "nvfp4"], f"expected more than {CONTEXT} tokens to calibrate on, got "),
        (nan, text, ["--format", "nvfp4"], f"tensor '{down}': expected finite weights, got NaN"),
        (large, text, ["--format", "mxfp4"], "expected finite inputs of blocks.0.layernorm_mlp.fc2_weight on "),
        (mute, text, ["--format", "nvfp4"], "tokenizer.json"),
        (tmp_path / "codes", text, ["--format", "nvfp4"], "expected weights that are values, got codes"),
    ):
        result = calibrated(model, tmp_path / "out", data, *words)
        assert result.returncode in (1, 2) and result.stderr.count("\n") == 1, result
        assert expected in result.stderr and not (tmp_path / "out").exists(), result
