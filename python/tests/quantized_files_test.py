"""Contents of files of codes: those that others write, and those of `plimsoll quantize`."""

import json
import os
import shutil

import coded_files
import decoder_models
import pytest
import torch
import transformers
from decoder_test import LOGITS, relative
from program import done, measured, plimsoll, refused
from safetensors.torch import load_file

# Sanitizers keep what has been freed.
WITHOUT_SANITIZER = pytest.mark.skipif(
    "asan" in os.environ.get("LD_PRELOAD", ""), reason="a program with a sanitizer takes other memory"
)


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


@pytest.fixture(scope="module", params=coded_files.FORMATS)
def quantized(request, values, tmp_path_factory):
    """(values, the same as codes, the format)"""
    out = tmp_path_factory.mktemp("codes") / "out"
    done("quantize", "--model", values, "--out", out, "--format", request.param, "--json", out.parent / "sizes")
    return values, out, request.param


@torch.no_grad()
def test_codes_of_a_file_are_those_that_are_made_at_load(quantized):
    values, codes, format = quantized
    dtype = coded_files.FORMATS[format]
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


@WITHOUT_SANITIZER
def test_rotation_of_a_large_embedding_takes_one_copy_of_it(tmp_path):
    config = coded_files.CONFIGS["llama"]()
    config.vocab_size = 400_000
    transformers.AutoModelForCausalLM.from_config(config).bfloat16().save_pretrained(tmp_path / "values")
    words = ["quantize", "--model", tmp_path / "values", "--format", "fp8", "--out"]
    peaks: list[int] = []
    for options in ([], ["--rotate"]):
        code, memory, _, errors = measured(*words, tmp_path / f"out{len(peaks)}", *options)
        assert (code, errors) == (0, "")
        peaks.append(memory)
    embedding = 4 * config.vocab_size * config.hidden_size  # bytes in FP32
    # Beside it the source in BF16, whose pages are given back when a tensor has been written.
    assert peaks[1] - peaks[0] < 1.75 * embedding, (peaks, embedding)


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
        ("no_proj", "--keep: expected modules of the model, such as model.layers.1.mlp.down_proj, got 'no_proj'"),
        ("layers", "--keep: expected modules of the model, such as "),
    ):
        result = plimsoll("quantize", "--model", values, "--out", tmp_path / "none", "--format", "fp8", "--keep", keep)
        assert result.returncode == 2 and expected in result.stderr and not (tmp_path / "none").exists()


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


@pytest.mark.parametrize("format", coded_files.FORMATS)
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
