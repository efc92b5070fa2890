"""Directories whose matrices are codes, in each layout that Plimsoll reads, with the values that the codes stand for in FP64.

Layouts are written apart from the library, with torch's own 8-bit dtypes and rounding, or by the package compressed-tensors."""

import importlib
import json
from collections.abc import Callable
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

E4M3 = torch.float8_e4m3fn
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
VALUES_OF_E2M1 = torch.cat([E2M1, -E2M1])

_SIZES: dict[str, Any] = {
    "vocab_size": 333,
    "hidden_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 160,  # with 192 rows of queries and 64 of keys: blocks of 128 at edges, and none aligned in the joined matrix
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**_SIZES, tie_word_embeddings=True),
    "qwen3": lambda: transformers.Qwen3Config(**_SIZES),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(
        **{key: value for key, value in _SIZES.items() if key not in ("num_key_value_heads", "head_dim")}, rotary_pct=0.25
    ),
}

# Formats of `plimsoll quantize`, and the dtype under which a model makes the same codes as it is loaded.
FORMATS = {"fp8": "fp8", "fp8-block": None, "nvfp4": "nvfp4", "mxfp4": "mxfp4"}

Tensors = dict[str, torch.Tensor]
Coded = tuple[Tensors, torch.Tensor]  # the tensors of a module by their last names, and the values


def encode_e2m1(x: torch.Tensor) -> torch.Tensor:
    """Nearest codes of values within 6, any of two that are as near."""
    return (x.double()[..., None] - VALUES_OF_E2M1).abs().argmin(-1).to(torch.uint8)


def pack(codes: torch.Tensor) -> torch.Tensor:
    return codes[:, 0::2] | (codes[:, 1::2] << 4)


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """Values in FP64."""
    codes = torch.stack([packed & 0xF, packed >> 4], -1).flatten(1)
    return VALUES_OF_E2M1[codes.long()]


def by_tensor(weight: torch.Tensor) -> Coded:
    scale = (weight.abs().max() / 448).reshape(1)
    codes = (weight / scale).to(E4M3)
    return {"weight": codes, "weight_scale": scale}, codes.double() * scale.double()


def by_row(weight: torch.Tensor) -> Coded:
    scale = (weight.abs().amax(1, keepdim=True) / 448).bfloat16()  # as some files have them
    codes = (weight / scale.float()).clamp(-448, 448).to(E4M3)
    return {"weight": codes, "weight_scale": scale}, codes.double() * scale.double()


def expanded(scale: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    return scale.double().repeat_interleave(128, 0).repeat_interleave(128, 1)[: shape[0], : shape[1]]


def by_block(weight: torch.Tensor) -> Coded:
    rows, columns = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -columns % 128, 0, -rows % 128))
    blocks = padded.unflatten(1, (-1, 128)).unflatten(0, (-1, 128))
    scale = blocks.abs().amax((1, 3)) / 448
    codes = (weight / expanded(scale, weight.shape).float()).to(E4M3)
    return {"weight": codes, "weight_scale_inv": scale}, codes.double() * expanded(scale, weight.shape)


def nvfp4(weight: torch.Tensor) -> Coded:
    factor = (448 * 6 / weight.abs().max()).reshape(1)
    groups = weight.unflatten(1, (-1, 16))
    scale = (groups.abs().amax(-1) * (factor / 6)).to(E4M3)
    codes = encode_e2m1((groups.double() * factor.double() / scale.double()[..., None]).clamp(-6, 6)).flatten(1)
    values = (unpack(pack(codes)).unflatten(1, (-1, 16)) * scale.double()[..., None]).flatten(1) / factor.double()
    return {"weight_packed": pack(codes), "weight_scale": scale, "weight_global_scale": factor}, values


def mxfp4(weight: torch.Tensor) -> Coded:
    groups = weight.unflatten(1, (-1, 32))
    exponent = torch.ceil(torch.log2(groups.abs().amax(-1) / 6)).to(torch.int64)
    codes = encode_e2m1(groups.double() * 2.0 ** -exponent.double()[..., None]).flatten(1)
    values = (unpack(pack(codes)).unflatten(1, (-1, 32)) * 2.0 ** exponent.double()[..., None]).flatten(1)
    return {"weight_packed": pack(codes), "weight_scale": (exponent + 127).to(torch.uint8)}, values


def _compressed(format: str, weights: dict[str, Any], inputs: dict[str, Any] | None = None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"type": "float", "symmetric": True, "dynamic": False, **weights}}
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "quantization_status": "compressed",
        "config_groups": {"group_0": {**group, "input_activations": inputs, "output_activations": None}},
        "ignore": ["lm_head", "re:.*norm"],
        "kv_cache_scheme": None,
    }


DYNAMIC = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "token", "dynamic": True}
FINE_GRAINED = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "weight_block_size": [128, 128],
    "modules_to_not_convert": ["lm_head"],
}
LAYOUTS: dict[str, tuple[Callable[[torch.Tensor], Coded], dict[str, Any]]] = {
    "tensor": (by_tensor, _compressed("float-quantized", {"num_bits": 8, "strategy": "tensor"}, DYNAMIC)),
    "channel": (by_row, _compressed("float-quantized", {"num_bits": 8, "strategy": "channel"}, DYNAMIC)),
    "fp8": (by_block, FINE_GRAINED),
    "nvfp4": (nvfp4, _compressed("nvfp4-pack-quantized", {"num_bits": 4, "strategy": "tensor_group", "group_size": 16})),
    "mxfp4": (mxfp4, _compressed("mxfp4-pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 32})),
}


def make(family: str) -> transformers.PreTrainedModel:
    """A model in eval mode whose products keep the size of their input."""
    torch.manual_seed(sum(map(ord, family)))
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[family](), attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0, min(parameter.shape) ** -0.5)
            else:
                parameter.add_(torch.empty_like(parameter).uniform_(-0.5, 0.5))
    return model.eval()


def is_matrix(name: str, tensor: torch.Tensor) -> bool:
    return tensor.dim() == 2 and ".layers." in name


def write(model: transformers.PreTrainedModel, directory, layout: str, encode: Callable[[torch.Tensor], Coded] | None = None):
    """Saves the model with matrices as codes, of which it has the values from here on; returns the directory."""
    model.save_pretrained(directory)
    ours, config = LAYOUTS[layout]
    stored: Tensors = {}
    state = model.state_dict()
    for name, tensor in load_file(directory / "model.safetensors").items():
        if not is_matrix(name, tensor):
            stored[name] = tensor
            continue
        made, values = (encode or ours)(tensor)
        prefix = name.removesuffix("weight")
        stored |= {prefix + last: part.contiguous() for last, part in made.items()}
        state[name] = values
    write_files(directory, stored, config)
    model.double().load_state_dict(state)
    return directory


def write_files(directory, tensors: Tensors, quantization: dict[str, Any] | None) -> None:
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = quantization
    (directory / "config.json").write_text(json.dumps(config))


class Package:
    """Layouts of the package compressed-tensors."""

    def __init__(self) -> None:
        self.quantization = importlib.import_module("compressed_tensors.quantization")
        self.utils = importlib.import_module("compressed_tensors.quantization.utils")
        self.compressors = importlib.import_module("compressed_tensors.compressors")

    def scheme(self, config: dict[str, Any]):
        """The scheme of the one group of a quantization_config."""
        (group,) = self.quantization.QuantizationConfig.model_validate(config).config_groups.values()
        return group

    def _compressor(self, config):
        return self.compressors.BaseCompressor.get_value_from_registry(config["format"])

    def decompress(self, config: dict[str, Any], module: Tensors) -> torch.Tensor:
        return self._compressor(config).decompress(module, self.scheme(config))["weight"]

    def encoder(self, config: dict[str, Any]) -> Callable[[torch.Tensor], Coded]:
        scheme, utils = self.scheme(config), self.utils
        group = scheme.weights.group_size

        def encode(weight: torch.Tensor) -> Coded:
            rows = weight if scheme.weights.strategy != "tensor" else weight.reshape(1, -1)
            parts = rows.unflatten(1, (-1, group)) if group else rows[:, None]
            low, high = parts.amin(-1), parts.amax(-1)
            module: Tensors = {"weight": weight}
            if scheme.weights.strategy == "tensor_group":
                module["weight_global_scale"] = utils.generate_gparam(weight.min(), weight.max())
            scale, _ = utils.calculate_qparams(low, high, scheme.weights, module.get("weight_global_scale"))
            module["weight_scale"] = scale.reshape(1) if scheme.weights.strategy == "tensor" else scale
            made = self._compressor(config).compress(module, scheme)
            return made, values_of(made)

        return encode


def values_of(module: Tensors) -> torch.Tensor:
    """Values in FP64 of a module of any layout, codes times scales."""
    if "weight_packed" in module:
        codes = unpack(module["weight_packed"])
        scale = module["weight_scale"]
        scale = 2.0 ** (scale.double() - 127) if scale.dtype == torch.uint8 else scale.double()
        values = (codes.unflatten(1, (scale.shape[1], -1)) * scale[..., None]).flatten(1)
        return values / module["weight_global_scale"].double() if "weight_global_scale" in module else values
    codes = module["weight"].double()
    if "weight_scale_inv" in module:
        return codes * expanded(module["weight_scale_inv"], codes.shape)
    return codes * module["weight_scale"].double()


def modules_of(directory) -> dict[str, Tensors]:
    """The tensors of each module with codes by their last names."""
    modules: dict[str, Tensors] = {}
    for name, tensor in load_file(directory / "model.safetensors").items():
        module, _, last = name.rpartition(".")
        modules.setdefault(module, {})[last] = tensor
    return {name: module for name, module in modules.items() if len(module.keys() - {"bias"}) > 1}
