"""Directories whose matrices are codes: those that others write, and those of `plimsoll quantize`."""

import json
import shutil

import coded_files
import decoder_models
import finetune_runs
import pytest
import tiny_llama
import tokenizer_texts
import torch
import transformers
from decoder_test import LOGITS, relative
from plimsoll.models import AutoModelForCausalLM
from plimsoll.serve import Engine
from program import done, plimsoll
from safetensors.torch import load_file
from served import serving

# Formats of `plimsoll quantize`, and the dtype under which a model makes the same codes as it is loaded.
FORMATS = {"fp8": "fp8", "fp8-block": None, "nvfp4": "nvfp4", "mxfp4": "mxfp4"}


def ids(length=37, rows=2):
    generator = torch.Generator().manual_seed(length)
    return torch.randint(3, 333, (rows, length), generator=generator)


@pytest.fixture(scope="module")
def package_of_layouts():
    pytest.importorskip("compressed_tensors")
    return coded_files.Package()


@torch.no_grad()
def expect_values_of(directory, exact):
    """FP32 logits as near to those of the codes' values as those of values in FP32 are."""
    ours = decoder_models.load(directory)
    expected = exact(input_ids=ids()).logits
    assert relative(ours.forward(ids(), None), expected) <= LOGITS
    past = ours.start()
    pieces = [ours.extend(ids()[:, begin:end], None, past) for begin, end in ((0, 20), (20, 21), (21, 22), (22, 37))]
    assert torch.equal(torch.cat(pieces, 1), ours.forward(ids(), None))


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt_neox"])
@pytest.mark.parametrize("layout", coded_files.LAYOUTS)
def test_logits_are_those_of_codes_times_scales(family, layout, tmp_path):
    exact = coded_files.make(family)
    expect_values_of(coded_files.write(exact, tmp_path, layout), exact)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("layout", ["tensor", "channel", "nvfp4", "mxfp4"])
def test_files_that_compressed_tensors_writes_are_read(family, layout, package_of_layouts, tmp_path):
    exact = coded_files.make(family)
    encode = package_of_layouts.encoder(coded_files.LAYOUTS[layout][1])
    expect_values_of(coded_files.write(exact, tmp_path, layout, encode), exact)


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def values(request, tmp_path_factory):
    """A directory of values in BF16."""
    directory = tmp_path_factory.mktemp("values")
    coded_files.make(request.param).bfloat16().save_pretrained(directory)
    return directory


@pytest.fixture(scope="module", params=FORMATS)
def quantized(request, values, tmp_path_factory):
    """(values, the same as codes, the format)"""
    out = tmp_path_factory.mktemp("codes") / "out"
    done("quantize", "--model", values, "--out", out, "--format", request.param, "--json", out.parent / "sizes")
    return values, out, request.param


@torch.no_grad()
def test_codes_of_a_file_are_those_that_are_made_at_load(quantized):
    values, codes, format = quantized
    dtype = FORMATS[format]
    if dtype is None:
        pytest.skip("no dtype makes codes of fp8-block at load")
    made, read = decoder_models.load(values, dtype), decoder_models.load(codes, "bf16")
    assert torch.equal(made.forward(ids(), None), read.forward(ids(), None))


def test_files_hold_the_values_that_compressed_tensors_reads(quantized, package_of_layouts, tmp_path):
    _, codes, format = quantized
    config = json.loads((codes / "config.json").read_text())["quantization_config"]
    if format == "fp8-block":  # compressed-tensors has this layout as a strategy with another name of the scale
        config = coded_files._compressed(
            "float-quantized", {"num_bits": 8, "strategy": "block", "block_structure": [128, 128]}, coded_files.DYNAMIC
        )
    for name, module in coded_files.modules_of(codes).items():
        theirs = dict(module)
        if format == "fp8-block":
            theirs["weight_scale"] = theirs.pop("weight_scale_inv")
        got, expected = package_of_layouts.decompress(config, theirs), coded_files.values_of(module)
        # The package divides NVFP4's two scales and multiplies, in its result's dtype: two roundings beside an exact product.
        units = 0 if format == "mxfp4" else 1 if format != "nvfp4" else 2
        bound = units * torch.finfo(got.dtype).eps / 2 * 1.01 * expected.abs()
        assert ((got.double() - expected).abs() <= bound).all(), name


def test_values_of_a_file_are_written_once_rounded(quantized, tmp_path):
    _, codes, format = quantized
    done("convert", "--model", codes, "--out", tmp_path / "values", "--dtype", "fp32")
    config = json.loads((tmp_path / "values" / "config.json").read_text())
    assert "quantization_config" not in config and config["dtype"] == "float32"
    written = load_file(tmp_path / "values" / "model.safetensors")
    for name, module in coded_files.modules_of(codes).items():
        expected, got = coded_files.values_of(module), written[name + ".weight"]
        # NVFP4: the reciprocal of the tensor's factor rounds, and the product with it.
        bound = (2 if format == "nvfp4" else 1) * 2.0**-24 * 1.01 * expected.abs()
        assert ((got.double() - expected).abs() <= bound).all(), name


def test_sizes_are_those_of_the_files(quantized):
    values, codes, format = quantized
    sizes = json.loads((codes.parent / "sizes").read_text())
    before, after = load_file(values / "model.safetensors"), load_file(codes / "model.safetensors")
    assert sizes["bytes_before"] == sum(tensor.nbytes for tensor in before.values())
    assert sizes["bytes_after"] == sum(tensor.nbytes for tensor in after.values())
    modules = coded_files.modules_of(codes)
    assert sizes["matrices"] == len(modules)
    held = sum(tensor.nbytes for module in modules.values() for last, tensor in module.items() if last != "bias")
    elements = sum(tensor.numel() for name, tensor in before.items() if coded_files.is_matrix(name, tensor))
    assert sizes["bits_an_element"] == 8 * held / elements
    others = {name: tensor for name, tensor in before.items() if not coded_files.is_matrix(name, tensor)}
    assert all(torch.equal(after[name], tensor) for name, tensor in others.items())
    config = json.loads((codes / "config.json").read_text())["quantization_config"]
    assert config["modules_to_not_convert" if format == "fp8-block" else "ignore"] == ["lm_head"]


HADAMARD = 32  # the largest power of two that divides the 96 of coded_files' models


@torch.no_grad()
def test_rotation_is_orthogonal_and_folded_into_every_matrix(values, tmp_path):
    # All matrices but one stay FP32, so that nothing but the rotation has happened to them.
    kept = "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj"
    done(
        "quantize", "--model", values, "--out", tmp_path / "out", "--format", "fp8", "--rotate", "--keep", kept, "--dtype", "fp32"
    )
    before, after = load_file(values / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    embedding, turned = (tensors["model.embed_tokens.weight"].double() for tensors in (before, after))
    rotation = torch.linalg.lstsq(embedding, turned).solution  # x becomes x @ rotation
    # The rounding of what was turned, through the inverse.
    near = 2.0**-24 * embedding.norm().item() / torch.linalg.svdvals(embedding).min().item()
    blocks = rotation.abs().unflatten(0, (-1, HADAMARD)).unflatten(2, (-1, HADAMARD)).transpose(1, 2)
    expected = torch.eye(96 // HADAMARD, dtype=torch.double)[:, :, None, None] * HADAMARD**-0.5
    assert (blocks - expected).abs().max() <= near and near < 1e-3
    signs = rotation.sign() * (rotation.abs() > near)
    assert torch.equal(signs @ signs.T, HADAMARD * torch.eye(96, dtype=torch.double))
    rotation = signs * HADAMARD**-0.5

    def expect(name, exact):
        sums = 96 * 2.0**-52 * exact.abs().max()  # in double on both sides
        assert ((after[name].double() - exact).abs() <= 2.0**-24 * exact.abs() + sums).all(), name

    for name in before:
        module, exact = name.removesuffix(".weight"), before[name].double()
        if module.endswith(("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")):
            norm = "input_layernorm" if ".self_attn." in name else "post_attention_layernorm"
            expect(name, exact * before[f"{module.rsplit('.', 2)[0]}.{norm}.weight"].double() @ rotation)
        elif module.endswith("o_proj"):
            expect(name, rotation.T @ exact)
        elif module.endswith(("input_layernorm", "post_attention_layernorm", "model.norm")):
            assert (after[name] == 1).all()
    head = before.get("lm_head.weight", before["model.embed_tokens.weight"]).double()
    expect("lm_head.weight", head * before["model.norm.weight"].double() @ rotation)


@torch.no_grad()
def test_a_rotated_model_bears_an_outlier_that_four_bits_do_not(tmp_path):
    exact = coded_files.make("llama")
    for layer in exact.model.layers:  # a channel that all matrices read by 64 times as large weights, and its norm by as small
        layer.input_layernorm.weight[5] = 1 / 64
        layer.post_attention_layernorm.weight[5] = 1 / 64
        attention, mlp = layer.self_attn, layer.mlp
        for matrix in (attention.q_proj, attention.k_proj, attention.v_proj, mlp.gate_proj, mlp.up_proj):
            matrix.weight[:, 5] *= 64
    exact.save_pretrained(tmp_path / "values")
    expected = exact.double()(input_ids=ids()).logits
    errors: list[float] = []
    for options in ([], ["--rotate"]):
        out = tmp_path / f"out{len(errors)}"
        done("quantize", "--model", tmp_path / "values", "--out", out, "--format", "nvfp4", "--dtype", "fp32", *options)
        errors.append(relative(decoder_models.load(out).forward(ids(), None), expected))
    assert errors[1] < errors[0] / 2


def test_rotation_of_other_norms_is_refused(tmp_path):
    coded_files.make("gpt_neox").save_pretrained(tmp_path / "values")
    result = plimsoll("quantize", "--model", tmp_path / "values", "--out", tmp_path / "out", "--format", "fp8", "--rotate")
    assert result.returncode == 2 and "--rotate: rotation: expected a model of RMS norms" in result.stderr
    assert not (tmp_path / "out").exists()


def test_shards_hold_the_same_tensors(values, tmp_path):
    done("quantize", "--model", values, "--out", tmp_path / "whole", "--format", "nvfp4")
    model = tmp_path / "sharded"
    shutil.copytree(values, model)
    # A sharded source has its tensors in several files.
    tensors = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    halves = [dict(list(tensors.items())[:9]), dict(list(tensors.items())[9:])]
    index: dict[str, str] = {}
    for number, half in enumerate(halves):
        coded_files.save_file(half, model / f"{number}.safetensors")
        index |= dict.fromkeys(half, f"{number}.safetensors")
    (model / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    done("quantize", "--model", model, "--out", tmp_path / "same", "--format", "nvfp4")
    assert (tmp_path / "whole" / "model.safetensors").read_bytes() == (tmp_path / "same" / "model.safetensors").read_bytes()


def test_modules_that_are_kept_stay_values(values, tmp_path):
    keep = "model.layers.0.mlp.down_proj,o_proj,lm_head"
    done("quantize", "--model", values, "--out", tmp_path / "out", "--format", "mxfp4", "--keep", keep, "--dtype", "stored")
    before, after = load_file(values / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    kept = ["model.layers.0.mlp.down_proj", "model.layers.0.self_attn.o_proj", "model.layers.1.self_attn.o_proj"]
    assert all(torch.equal(after[f"{name}.weight"], before[f"{name}.weight"]) for name in kept)
    assert "model.layers.1.mlp.down_proj.weight_packed" in after
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert sorted(config["ignore"]) == sorted([*kept, "lm_head"])
    with torch.no_grad():
        decoder_models.load(tmp_path / "out", "stored").forward(ids(), None)
    for keep, expected in (
        ("q_proj", "--keep: expected all or none of model.layers.0.self_attn.q_proj, "),
        ("no_proj", "--keep: expected modules of the model, such as "),
        ("layers", "--keep: expected modules of the model, such as "),
    ):
        result = plimsoll("quantize", "--model", values, "--out", tmp_path / "none", "--format", "fp8", "--keep", keep)
        assert result.returncode == 2 and expected in result.stderr and not (tmp_path / "none").exists()


@pytest.fixture(scope="module")
def chatty(tmp_path_factory):
    """A model with a tokenizer, whose matrices have columns in multiples of 32."""
    directory = tmp_path_factory.mktemp("chatty")
    template = finetune_runs.TEMPLATES["chatml"]
    specials = ("<|im_start|>", "<|im_end|>")
    return tiny_llama.write(
        directory, "<|im_end|>", specials, template, hidden_size=96, intermediate_size=160, head_dim=16, initializer_range=0.1
    )


@pytest.fixture(scope="module", params=FORMATS)
def chatty_codes(request, chatty, tmp_path_factory):
    out = tmp_path_factory.mktemp("codes") / "out"
    done("quantize", "--model", chatty, "--out", out, "--format", request.param)
    return out, request.param


def generated(model, log, *options):
    done("generate", "--model", model, "--prompt", "def read", "--tokens", 12, "--json", log, *options)
    return [json.loads(line).get("log_probability") for line in log.read_text().splitlines()]


def test_texts_are_those_of_codes_that_are_made_at_load(chatty, chatty_codes, tmp_path):
    codes, format = chatty_codes
    read = generated(codes, tmp_path / "read", "--dtype", "bf16")
    assert len(read) > 2
    if FORMATS[format]:
        assert generated(chatty, tmp_path / "made", "--dtype", FORMATS[format]) == read
    with serving(codes, "--dtype", "bf16") as server:
        reply = server.client.completions.create(model="any", prompt="def read", max_tokens=12, temperature=0, logprobs=1)
        assert reply.choices[0].logprobs.token_logprobs == [value for value in read if value is not None]
        assert server.stop() == 0


def test_each_command_takes_a_directory_of_codes(chatty_codes, tmp_path):
    codes, format = chatty_codes
    text = tmp_path / "text.txt"
    text.write_text(tokenizer_texts.python_source()[:4000])
    words = ["--model", codes, "--data", text, "--context", 64, "--tokens", 200]
    done("parity", *words, "--json", tmp_path / "parity")
    figures = json.loads((tmp_path / "parity").read_text())["dtypes"]
    assert figures.keys() == {"fp32", "bf16", "fp16"}
    assert figures["fp32"]["logits_kl"] == 0 and 0 < figures["bf16"]["logits_kl"] < 0.1
    assert figures["bf16"]["bytes_per_weight"] < 2
    done("logprobs", *words, "--json", tmp_path / "logprobs", "--dtype", "fp32")
    assert ("weight_packed" if "fp4" in format else "F8_E4M3") in done("inspect", codes)
    done("audit", "--model", codes, "--as", "generate", "--tokens", 4)
    with Engine(codes) as engine:
        assert len(list(engine.submit("def read", max_tokens=3))) == 3


def test_adapters_train_on_codes(chatty_codes, tmp_path):
    codes, _ = chatty_codes
    data = finetune_runs.write_lines(tmp_path / "data.jsonl", finetune_runs.chats(12))
    out = tmp_path / "out"
    words = [*finetune_runs.words_of(codes, data, *finetune_runs.PLAN), "--eval-share=0", "--lora", "--out", out]
    done(*words, "--recipe=bf16", "--base", "stored", "--samples=1")
    losses = finetune_runs.losses(out)
    assert losses[-1] < losses[0]
    with_adapter = generated(codes, tmp_path / "with", "--adapter", out)
    assert with_adapter != generated(codes, tmp_path / "without")


def refused(*words):
    result = plimsoll(*words)
    assert result.returncode in (1, 2) and result.stderr.count("\n") == 1, result
    return result.stderr


def test_work_on_values_refuses_codes(chatty_codes, tmp_path):
    codes, format = chatty_codes
    expected = "quantization_config: expected weights that are values, got codes"
    out = tmp_path / "out"
    assert expected in refused("quantize", "--model", codes, "--out", out, "--format", "fp8")
    assert expected in refused("gauge", "--model", codes, "--out", out)
    text = tmp_path / "text"
    text.write_text("def read\n" * 400)
    assert expected in refused("train", "--model", codes, "--data", text, "--out", out, "--steps", 1, "--batch", 1)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    assert expected in refused("merge", "--model", codes, "--adapter", adapter, "--out", out)
    assert "as the dtype of weights that are codes, got fp8" in refused(
        "generate", "--model", codes, "--prompt", "a", "--dtype", "fp8"
    )
    assert not out.exists()
    with pytest.raises(ValueError, match="expected weights that are values, got codes"):
        AutoModelForCausalLM.from_pretrained(codes)


def test_scales_of_activations_are_told_of_once(tmp_path):
    exact = coded_files.make("llama")
    directory = coded_files.write(exact, tmp_path, "tensor")
    tensors = load_file(directory / "model.safetensors")
    for name in [name for name in tensors if name.endswith("weight_scale")]:
        tensors[name.replace("weight_scale", "input_scale")] = torch.tensor([0.5])
    config = json.loads((directory / "config.json").read_text())["quantization_config"]
    coded_files.write_files(directory, tensors, config)
    ours = decoder_models.load(directory)
    assert "14 scales of activations" in ours.warning() and "products keep activations as values" in ours.warning()
    with torch.no_grad():
        assert relative(ours.forward(ids(), None), exact(input_ids=ids()).logits) <= LOGITS


MODULE = "model.layers.1.mlp.up_proj."


def without(last):
    return lambda tensors: tensors.pop(MODULE + last)


def changed(last, make):
    def damage(tensors):
        tensors[MODULE + last] = make(tensors.get(MODULE + last))

    return damage


def with_nan(tensor):
    copy = tensor.clone().view(torch.uint8 if tensor.element_size() == 1 else tensor.dtype)
    copy.view(-1)[5 % copy.numel()] = 0xFF if copy.dtype == torch.uint8 else float("nan")
    return copy.view(tensor.dtype)


DAMAGES = [
    ("channel", without("weight_scale"), "missing: {}weight_scale"),
    ("channel", without("weight"), "missing: {}weight"),
    ("channel", changed("weight_scale_inv", lambda _: torch.ones(1)), "unknown: {}weight_scale_inv"),
    ("channel", changed("weight", lambda w: w.bfloat16()), "unknown: {}weight_scale"),
    ("channel", changed("weight", lambda w: w.view(torch.uint8)), "unknown: {}weight_scale"),
    ("channel", changed("weight", lambda w: w[:-1]), "of another shape: {0}weight [159, 96] instead of [160, 96]"),
    ("channel", changed("weight", with_nan), "tensor '{}weight': expected codes without NaN, got NaN"),
    ("channel", changed("weight_scale", lambda s: s[:-1]), "{}weight_scale [159, 1] instead of [160, 1]"),
    ("channel", changed("weight_scale", lambda s: s.view(torch.int16)), "{}weight_scale': expected F32, BF16 or F16, got I16"),
    ("channel", changed("weight_scale", with_nan), "{}weight_scale': expected scales that are finite and not negative"),
    ("tensor", changed("weight_scale", lambda s: -s), "{}weight_scale': expected scales that are finite and not negative"),
    ("tensor", changed("weight_scale", lambda s: s.repeat(2)), "{}weight_scale [2] instead of [1]"),
    ("fp8", without("weight_scale_inv"), "missing: {}weight_scale_inv"),
    ("fp8", changed("weight_scale_inv", lambda s: s[:1].clone()), "{}weight_scale_inv [1, 1] instead of [2, 1]"),
    ("nvfp4", without("weight_scale"), "missing: {}weight_scale"),
    ("nvfp4", without("weight_global_scale"), "missing: {}weight_global_scale"),
    ("nvfp4", without("weight_packed"), "missing: {}weight_packed"),
    (
        "nvfp4",
        changed("weight_global_scale", lambda s: s * 0),
        "{}weight_global_scale': expected a finite number above 0, and so its inverse, got 0",
    ),
    (
        "nvfp4",
        changed("weight_global_scale", with_nan),
        "{}weight_global_scale': expected a finite number above 0, and so its inverse, got nan",
    ),
    ("nvfp4", changed("weight_global_scale", lambda s: s.double()), "{}weight_global_scale': expected F32, got F64"),
    ("nvfp4", changed("weight_scale", with_nan), "{}weight_scale': expected scales that are finite and not negative"),
    ("nvfp4", changed("weight_scale", lambda s: s.view(torch.uint8)), "{}weight_scale': expected F8_E4M3, got U8"),
    ("nvfp4", changed("weight_packed", lambda w: w.view(torch.int8)), "{}weight_packed': expected U8, got I8"),
    ("nvfp4", changed("weight_zero_point", lambda _: torch.ones(1)), "unknown: {}weight_zero_point"),
    ("mxfp4", changed("weight_scale", with_nan), "{}weight_scale': expected scales without NaN, got NaN"),
    ("mxfp4", changed("weight_global_scale", lambda _: torch.ones(1)), "unknown: {}weight_global_scale"),
]


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """{layout: (tensors, directory)}"""
    result = {}
    for layout in coded_files.LAYOUTS:
        directory = coded_files.write(coded_files.make("llama"), tmp_path_factory.mktemp(layout), layout)
        result[layout] = load_file(directory / "model.safetensors"), directory
    return result


@pytest.mark.parametrize(("layout", "damage", "expected"), DAMAGES, ids=range(len(DAMAGES)))
def test_damaged_files_are_one_error(layout, damage, expected, sound, tmp_path):
    tensors, directory = sound[layout]
    copy = dict(tensors)
    damage(copy)
    shutil.copy(directory / "config.json", tmp_path)
    coded_files.save_file({name: tensor.contiguous() for name, tensor in copy.items()}, tmp_path / "model.safetensors")
    error = refused("generate", "--model", tmp_path, "--prompt", "a")
    assert expected.format(MODULE) in error and str(tmp_path) in error, error


def group(**weights):
    return {"config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", **weights}}}}


CONFIGS = [
    ({"quant_method": "gptq", "bits": 4}, "quant_method: expected fp8 or compressed-tensors, got 'gptq'"),
    ({"quant_method": "mxfp4"}, "quant_method: expected fp8 or compressed-tensors, got 'mxfp4'"),
    ({}, "quant_method: expected fp8 or compressed-tensors, got ''"),
    ([], "quantization_config: expected an object, got []"),
    ({**coded_files.FINE_GRAINED, "activation_scheme": "static"}, "activation_scheme: expected dynamic, got 'static'"),
    ({**coded_files.FINE_GRAINED, "weight_block_size": [64, 64]}, "weight_block_size: expected [128,128], got [64,64]"),
    ({**coded_files.FINE_GRAINED, "weight_block_size": None}, "weight_block_size: expected [128,128], got null"),
    ({**coded_files.FINE_GRAINED, "ignored_layers": [3]}, "ignored_layers: expected a list of names, got [3]"),
    (
        {**coded_files.FINE_GRAINED, "modules_to_not_convert": [MODULE[:-1]]},
        f"'{MODULE}weight': expected values, as modules_to_not_convert of config.json names the module, got codes",
    ),
    ({"format": "int-quantized", **group(strategy="channel")}, "format: expected float-quantized, "),
    ({"format": "pack-quantized", **group(strategy="group")}, "got 'pack-quantized'"),
    (
        {"format": "float-quantized", **group(strategy="group")},
        "strategy: expected tensor or channel or block for float-quantized",
    ),
    ({"format": "float-quantized", **group(strategy="channel", num_bits=4)}, "num_bits: expected 8, got 4"),
    ({"format": "float-quantized", **group(strategy="channel", type="int")}, "type: expected float, got 'int'"),
    ({"format": "float-quantized", **group(strategy="channel", symmetric=False)}, "symmetric: expected true, got false"),
    ({"format": "float-quantized", **group(strategy="channel", actorder="group")}, 'actorder: expected none, got "group"'),
    ({"format": "float-quantized", **group(strategy="channel", dynamic=True)}, "dynamic: expected none, got true"),
    ({"format": "nvfp4-pack-quantized", **group(strategy="tensor_group", num_bits=4, group_size=32)}, "group_size: expected 16"),
    ({"format": "float-quantized", "config_groups": {}}, "config_groups: expected an object with a group, got {}"),
    (
        {"format": "float-quantized", **group(strategy="channel"), "kv_cache_scheme": {"num_bits": 8}},
        "kv_cache_scheme: expected none",
    ),
    (
        {"format": "nvfp4-pack-quantized", **group(strategy="tensor_group", num_bits=4, group_size=16)},
        "expected values or codes of",
    ),
]


@pytest.mark.parametrize(("config", "expected"), CONFIGS, ids=range(len(CONFIGS)))
def test_configs_that_are_not_read_are_one_error(config, expected, sound, tmp_path):
    tensors, directory = sound["fp8"]
    shutil.copy(directory / "config.json", tmp_path)
    method = {"quant_method": "compressed-tensors"} if isinstance(config, dict) and "format" in config else {}
    coded_files.write_files(tmp_path, tensors, {**method, **config} if isinstance(config, dict) else config)
    error = refused("generate", "--model", tmp_path, "--prompt", "a")
    assert expected in error and str(tmp_path) in error, error


def test_weights_that_are_not_finite_are_named(values, tmp_path):
    for number, (name, value) in enumerate(
        (("model.layers.1.mlp.gate_proj.weight", "nan"), ("model.embed_tokens.weight", "inf"), ("model.norm.weight", "nan"))
    ):
        model = tmp_path / str(number)
        shutil.copytree(values, model)
        tensors = load_file(model / "model.safetensors")
        tensors[name].view(-1)[3] = float(value)
        coded_files.save_file(tensors, model / "model.safetensors")
        error = refused("quantize", "--model", model, "--out", tmp_path / "out", "--format", "mxfp4")
        assert f"tensor '{name}': expected finite weights, got {'NaN' if value == 'nan' else 'Inf'}" in error
        assert not (tmp_path / "out").exists()


def test_what_does_not_go_together_is_refused_before_the_work(tmp_path):
    model = decoder_models.save(decoder_models.make("llama"), tmp_path / "llama")
    words = ["quantize", "--model", model, "--out", tmp_path / "out"]
    assert "--calibrate-tokens: expected --calibrate FILE" in refused(*words, "--format", "fp8", "--calibrate-tokens", 64)
    assert "cannot create" in refused(*words, "--format", "fp8", "--json", tmp_path / "nowhere" / "sizes.json")
    assert not (tmp_path / "out").exists()
    done(*words, "--format", "fp8", "--json", tmp_path / "sizes.json")
    assert json.loads((tmp_path / "sizes.json").read_text())["matrices"] > 0
    assert "--as generate" in refused("audit", "--model", tmp_path / "out")


def test_models_without_such_matrices_are_refused(tmp_path):
    gpt2 = decoder_models.save(decoder_models.make("gpt2"), tmp_path / "gpt2")
    error = refused("quantize", "--model", gpt2, "--out", tmp_path / "out", "--format", "fp8")
    assert "expected a matrix that is stored as [out, in], got [in, out]" in error
    llama = decoder_models.save(decoder_models.make("llama"), tmp_path / "llama")
    error = refused("quantize", "--model", llama, "--out", tmp_path / "out", "--format", "nvfp4")
    assert "expected a multiple of 16 columns, got 54" in error


@pytest.mark.parametrize("format", FORMATS)
def test_transformers_reads_our_files(format, tmp_path):
    if format != "fp8-block":
        pytest.importorskip("compressed_tensors")
    sides = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 4}
    config = transformers.LlamaConfig(vocab_size=333, num_hidden_layers=2, max_position_embeddings=64, **sides)
    torch.manual_seed(7)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "values")
    done("quantize", "--model", tmp_path / "values", "--out", tmp_path / "codes", "--format", format, "--dtype", "stored")
    # Without the values that it would round activations to.
    how = {} if format == "fp8-block" else {"quantization_config": transformers.CompressedTensorsConfig(dequantize=True)}
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "codes", dtype=torch.float32, **how)
    with torch.no_grad():
        expected = theirs(input_ids=ids()).logits.double()
        # The package rounds NVFP4's scales and values to BF16: 2^-9 each in the matrices of 14 products, one after the other.
        bound = 14 * 2 * 2.0**-9 if format == "nvfp4" else LOGITS
        assert relative(decoder_models.load(tmp_path / "codes").forward(ids(), None), expected) <= bound
