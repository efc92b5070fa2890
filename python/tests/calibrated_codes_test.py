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
BLOCK = {"fp8": 1 << 20, "fp8-block": 128, "nvfp4": 16, "mxfp4": 32}  # columns; no row is as long as that of fp8
ROWS = {"fp8": 1, "fp8-block": 128, "nvfp4": 1, "mxfp4": 1}
# Modules that are multiplied at once, whose tensor scale NVFP4 shares.
TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def write_model(folder, family="llama", *, ties_head=False):
    """A tokenizer, and a model of random weights whose inputs have much in common: embeddings lie near twelve directions."""
    tiny_llama.write(folder)
    vocabulary = json.loads((folder / "config.json").read_text())
    ids = {"vocab_size": vocabulary["vocab_size"], "eos_token_id": vocabulary["eos_token_id"]}
    torch.manual_seed(sum(map(ord, family)))
    config = FAMILIES[family](**{**(GPT_NEOX if family == "gpt_neox" else SIZES), **ids}, tie_word_embeddings=ties_head)
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


def scales_of(block, format, amax):
    """The scale of each row of a block of columns as the file has it, and its value, as the formats define them."""
    largest = block.abs().amax(1).float()
    if format.startswith("fp8"):
        groups = [part.max().expand(len(part)) for part in largest.split(ROWS[format])]
        scale = torch.cat(groups) / 448
        return scale, scale.double()
    if format == "nvfp4":
        factor = (448 * 6 / amax.float()).reshape(1)
        code = (largest * (factor / 6)).clamp(max=448).to(coded_files.E4M3)
        return code, code.double() / factor.double()
    code = (torch.ceil(torch.log2(largest.double() / 6)) + 127).to(torch.uint8)
    return code, 2.0 ** (code.double() - 127)


def rounded(scaled, format):
    """Nearest values of codes, those that are larger than any saturated."""
    if format.startswith("fp8"):
        return scaled.clamp(-448, 448).float().to(coded_files.E4M3).double()
    return coded_files.VALUES_OF_E2M1[coded_files.encode_e2m1(scaled.clamp(-6, 6)).long()]


def gptq(weight, inputs, format, amax):
    """Values of codes [n, k] and scales of rows [n, blocks]: columns one after another, each leaving the best of those that follow it.
    The inverse loses a row and a column at each step (the optimal brain surgeon's form), where the program has a triangular factor."""
    squares = inputs.T @ inputs
    inverse = torch.linalg.inv(squares + 0.01 * squares.diagonal().mean() * torch.eye(len(squares), dtype=torch.float64))
    left, size = weight.double().clone(), BLOCK[format]
    codes, scales = [], []
    for column in range(weight.shape[1]):
        if column % size == 0:
            scale, unit = scales_of(left[:, column : column + size], format, amax)
            scales.append(scale)
        code = rounded(left[:, column] / unit, format)
        codes.append(code)
        lost = (left[:, column] - code * unit) / inverse[column, column]
        left -= lost[:, None] * inverse[column]
        inverse -= inverse[:, column, None] * inverse[column] / inverse[column, column]
    return torch.stack(codes, 1), torch.stack(scales, 1)


def as_stored(module, format):
    """The same two of a module that the program has written."""
    codes = module["weight"].double() if "weight" in module else coded_files.unpack(module["weight_packed"])
    scales = module.get("weight_scale_inv", module.get("weight_scale"))
    return codes, scales.repeat_interleave(ROWS[format], 0)[: len(codes)]


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
    ("family", "format"),
    [
        ("llama", "fp8"),
        ("llama", "fp8-block"),
        ("gpt_neox", "fp8-block"),
        ("llama", "mxfp4"),
        *((family, "nvfp4") for family in FAMILIES),
    ],
    ids=lambda word: word,
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
            got, bits = as_stored(ours[name], format)
            if format == "fp8-block":  # FP32 scales of values that follow from inputs differ in last bits
                scales, bits = scales[:, :1].contiguous(), bits[:, :1].contiguous()
            equal = got.eq(codes).all(1) & scales.view(torch.uint8).eq(bits.view(torch.uint8)).all(1)  # 0 and -0 are as near
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


def is_coded(name, tensor):
    return name.endswith("weight_packed") or tensor.dtype == coded_files.E4M3 and name.endswith(".weight")


@pytest.mark.parametrize("options", [[], ["--rotate"]], ids=["", "rotated"])
@pytest.mark.parametrize("format", BLOCK)
def test_bits_do_not_depend_on_the_number_of_threads_and_the_layout_is_that_of_nearest_codes(
    format, options, values, text, tmp_path
):
    words = ["--format", format, "--keep", "layers.1.mlp.down_proj", *options]
    for threads in (1, 2, 3):
        assert calibrated(values, tmp_path / str(threads), text, *words, "--threads", threads).returncode == 0
    one = (tmp_path / "1" / "model.safetensors").read_bytes()
    assert all((tmp_path / str(threads) / "model.safetensors").read_bytes() == one for threads in (2, 3))
    done("quantize", "--model", values, "--out", tmp_path / "nearest", *words)
    ours, nearest = (load_file(tmp_path / name / "model.safetensors") for name in ("1", "nearest"))
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in ours.items()} == {
        name: (tensor.dtype, tensor.shape) for name, tensor in nearest.items()
    }
    assert (tmp_path / "1" / "config.json").read_text() == (tmp_path / "nearest" / "config.json").read_text()
    coded = [name for name, tensor in ours.items() if is_coded(name, tensor)]
    assert len(coded) == 13 and all(not torch.equal(ours[name], nearest[name]) for name in coded)
    scales = ("weight_scale", "weight_scale_inv") if format != "fp8" else ()  # of rows, from the weights as they were
    others = [name for name in ours if name not in coded and not name.endswith(scales)]  # NVFP4's tensor scales among them
    assert all(torch.equal(ours[name], nearest[name]) for name in others)


def written_rotated(values, folder):
    """The rotated model as a directory of values, of two whose matrices are mostly kept in FP32."""
    others = "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj"
    tensors: dict[str, torch.Tensor] = {}
    for keep in (others, "down_proj"):
        words = ["--format", "fp8", "--rotate", "--dtype", "fp32", "--keep", keep]
        done("quantize", "--model", values, "--out", folder, *words)
        written = load_file(folder / "model.safetensors")
        tensors |= {name: tensor for name, tensor in written.items() if tensor.dtype == torch.float32 and "_scale" not in name}
        config = json.loads((folder / "config.json").read_text())
        shutil.rmtree(folder)
    del config["quantization_config"]
    shutil.copytree(values, folder)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize(
    ("family", "format", "ties_head"),
    [("llama", "fp8", True), ("qwen2", "fp8-block", False), ("qwen3", "nvfp4", False), ("mistral", "mxfp4", True)],
    ids=lambda word: str(word),
)
def test_inputs_of_a_rotated_model_are_its_own(family, format, ties_head, text, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    write_model(model, family, ties_head=ties_head)
    assert calibrated(model, tmp_path / "at-once", text, "--format", format, "--rotate").returncode == 0
    rotated = written_rotated(model, tmp_path / "rotated")
    assert calibrated(rotated, tmp_path / "in-turn", text, "--format", format).returncode == 0
    one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("at-once", "in-turn"))
    assert one == other


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
    neox = tmp_path / "neox"
    neox.mkdir()
    write_model(neox, "gpt_neox")
    mute = tmp_path / "mute"
    shutil.copytree(values, mute)
    (mute / "tokenizer.json").unlink()
    done("quantize", "--model", values, "--out", tmp_path / "codes", "--format", "nvfp4")
    for model, data, words, expected in (
        (values, tmp_path / "none", ["--format", "nvfp4"], "--calibrate"),
        (values, tmp_path / "empty", ["--format", "nvfp4"], f"empty: expected at least {CONTEXT + 1} tokens, got 0"),
        (values, tmp_path / "short", ["--format", "nvfp4"], f"short: expected at least {CONTEXT + 1} tokens, got "),
        (nan, text, ["--format", "nvfp4"], f"tensor '{down}': expected finite weights, got NaN"),
        (nan, text, ["--format", "fp8", "--rotate"], f"tensor '{down}': expected finite weights, got NaN"),
        (large, text, ["--format", "fp8", "--rotate"], f"tensor '{up}': expected finite weights, got Inf"),
        (neox, text, ["--format", "fp8", "--rotate"], "--rotate: rotation: expected a model of RMS norms"),
        (large, text, ["--format", "mxfp4"], "expected finite inputs of blocks.0.layernorm_mlp.fc2_weight on "),
        (mute, text, ["--format", "nvfp4"], "tokenizer.json"),
        (tmp_path / "codes", text, ["--format", "nvfp4"], "expected weights that are values, got codes"),
    ):
        result = calibrated(model, tmp_path / "out", data, *words)
        assert result.returncode in (1, 2) and result.stderr.count("\n") == 1, result
        assert expected in result.stderr and not (tmp_path / "out").exists(), result


@pytest.mark.parametrize("tokens", [-1, 0, CONTEXT])
def test_too_few_calibration_tokens_are_the_options_fault_and_not_the_texts(tokens, values, text, tmp_path):
    words = ["quantize", "--model", values, "--out", tmp_path / "out", "--format", "fp8", "--calibrate", text]
    result = plimsoll(*words, f"--calibrate-tokens={tokens}")
    expected = f"plimsoll: --calibrate-tokens: expected at least {CONTEXT + 1}, got {tokens}\n"
    assert (result.returncode, result.stderr) == (2, expected)
    assert not (tmp_path / "out").exists()
    done(*words, f"--calibrate-tokens={CONTEXT + 1}")
