"""LoRA of decoder-only models, with PEFT's names and files."""

from __future__ import annotations

import dataclasses
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch

from plimsoll._parameter_tree import register
from plimsoll.models.causal_lm import CausalLM

_USUAL_TARGETS = {"gpt2": ["c_attn"], "gpt_neox": ["query_key_value"]}  # PEFT's


@dataclasses.dataclass
class LoraConfig:
    """PEFT's fields of these names. target_modules: names of linear layers, or "all-linear"; None: PEFT's choice for the
    model, which is q_proj and v_proj, or the fused projection."""

    r: int = 8
    lora_alpha: float = 8
    lora_dropout: float = 0.0
    target_modules: Sequence[str] | str | None = None
    use_rslora: bool = False
    bias: str = "none"
    task_type: str = "CAUSAL_LM"
    init_lora_weights: bool = True
    # PEFT's, of which no other value is supported.
    use_dora: bool = False
    modules_to_save: Sequence[str] | None = None
    rank_pattern: Mapping[str, int] | None = None
    alpha_pattern: Mapping[str, float] | None = None
    # PEFT's, which change nothing here.
    inference_mode: bool = False
    fan_in_fan_out: bool = False


class PeftModel(torch.nn.Module):
    """A model with adapters, which alone train; made by get_peft_model() or from_pretrained(). What it does not have, the
    model has: generate(), config, gradient_checkpointing_enable()."""

    def __init__(self, model: CausalLM, config: LoraConfig) -> None:
        super().__init__()
        self.base_model = model
        self.peft_config = config

    @classmethod
    def from_pretrained(cls, model: CausalLM, directory: str | os.PathLike[str], is_trainable: bool = False) -> Self:
        """directory: adapter_config.json and adapter_model.safetensors, of PEFT or of save_pretrained()."""
        read = json.loads(_expect_plain(model)._model.load_adapter(str(directory)))
        config = LoraConfig(**{field.name: read[field.name] for field in dataclasses.fields(LoraConfig) if field.name in read})
        _register_adapters(model, trains=is_trainable)
        return cls(model, config)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.base_model(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("base_model"), name)

    def save_pretrained(self, directory: str | os.PathLike[str]) -> None:
        """adapter_config.json and adapter_model.safetensors, which PEFT reads."""
        self.base_model._model.save_adapter(str(directory), self.base_model._directory)

    def merge_and_unload(self) -> CausalLM:
        """The model with the adapters in its weights, an FP32 sum that is rounded once, with a warning for weights that the dtype
        cannot hold; this object has no use after that."""
        if overflowed := self.base_model._model.merge_lora():
            warnings.warn(f"merge_and_unload: {overflowed}", stacklevel=2)
        for module in self.base_model.modules():
            for name in ("lora_A", "lora_B"):
                module._modules.pop(name, None)
        return self.base_model

    def get_nb_trainable_parameters(self) -> tuple[int, int]:
        """Numbers of those that train, and of all."""
        counts = [(tensor.numel(), tensor.requires_grad) for tensor in self.parameters()]
        return sum(count for count, trains in counts if trains), sum(count for count, _ in counts)

    def print_trainable_parameters(self) -> None:
        trainable, total = self.get_nb_trainable_parameters()
        print(f"trainable params: {trainable:,d} || all params: {total:,d} || trainable%: {100 * trainable / total:.4f}")


def get_peft_model(model: CausalLM, config: LoraConfig) -> PeftModel:
    """Adds adapters to the model itself, A drawn from torch's generator and B zeros, both FP32, and freezes all else."""
    if not isinstance(config, LoraConfig):
        raise TypeError(f"get_peft_model: expected a plimsoll.models.LoraConfig, got {config!r}")
    if config.init_lora_weights is not True:
        raise ValueError(f"get_peft_model: expected init_lora_weights=True, got {config.init_lora_weights!r}")
    targets = config.target_modules
    if targets is None:
        targets = _USUAL_TARGETS.get(model.config.model_type, ["q_proj", "v_proj"])
    given = dataclasses.asdict(config) | {"target_modules": targets if isinstance(targets, str) else list(targets)}
    _expect_plain(model)._model.add_lora(json.dumps({"peft_type": "LORA", **given}))
    _register_adapters(model, trains=True)
    return PeftModel(model, config)


def _expect_plain(model: CausalLM) -> CausalLM:
    if not isinstance(model, CausalLM):
        raise TypeError(f"lora: expected a model of AutoModelForCausalLM.from_pretrained, got {type(model).__name__}")
    return model


def _register_adapters(model: CausalLM, trains: bool) -> None:
    model.requires_grad_(False)
    register(model, model._model.adapters())
    for name, tensor in model.named_parameters():
        if ".lora_" in name:
            tensor.requires_grad_(trains)
