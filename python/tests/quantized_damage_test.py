"""Directories of codes that are damaged, and work that does not go with codes: one clear error each."""

import json
import shutil

import coded_files
import decoder_models
import pytest
import torch
from program import done, plimsoll, refused
from safetensors.torch import load_file

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

# Errors that follow from the shapes of the model, and from all the names that it has; `plimsoll inspect` knows neither.
NEEDS_A_MODEL = {
    "missing: {}weight",
    "missing: {}weight_packed",
    "of another shape: {0}weight [159, 96] instead of [160, 96]",
    "unknown: {}weight_zero_point",
}


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
    if expected in NEEDS_A_MODEL:
        return
    inspected = plimsoll("inspect", tmp_path)
    assert inspected.returncode == 1 and "tensors, " in inspected.stdout, inspected  # the tables come first
    assert inspected.stderr == error


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
