"""The common part of T5s: parameters that C++ owns, their files, and how FP16 is computed."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any, Self

import torch

from plimsoll._owned_model import OwnedModel, dtype_name
from plimsoll._parameter_tree import register
from plimsoll._whole_file import whole_file, write_text
from plimsoll.t5.outputs import BaseModelOutput

_SEED = {"downproject_scale": 8.0, "residual_fp32": True, "mask_scale": 0.75, "gelu_guard": 39.0, "no_dynamic_clamp": True}
_NO_FIX = {
    "downproject_scale": 1.0,
    "residual_fp32": False,
    "mask_scale": 1.0,
    "gelu_guard": 0.0,
    "no_dynamic_clamp": False,
    "training_clamp": False,
}


class T5PreTrainedModel(OwnedModel):
    """A T5 with the parameters of Hugging Face's class of the same name; made by from_pretrained().

    t5_fixes says how FP16 is computed, and nothing else: "seed" (the first five switches, the default), None (FP32 inside
    each op, FP16 between them), or a dict of some of the switches, the others off: downproject_scale, residual_fp32,
    mask_scale, gelu_guard, no_dynamic_clamp, training_clamp. With {} it is Hugging Face's arithmetic.
    """

    _encoder_alone = False

    def __init__(self, model: Any, config: dict[str, Any], t5_fixes: dict[str, Any] | str | None = "seed") -> None:
        super().__init__(model, config)
        self.t5_fixes = t5_fixes
        register(self, model.parameters())
        self.eval()

    @classmethod
    def from_pretrained(
        cls,
        directory: str | os.PathLike[str],
        dtype: torch.dtype | str | None = None,
        t5_fixes: dict[str, Any] | str | None = "seed",
    ) -> Self:
        """directory: config.json with model.safetensors or its shards. dtype: of the weights, a torch.dtype, "fp32", "bf16",
        "fp16", for inference "fp8" (E4M3 codes with a scale a row), "nvfp4" or "mxfp4" (E2M1 codes; the head stays fp8), or None:
        as they are stored. Weights that the dtype cannot hold become Inf, with a warning that counts and names them."""
        name = dtype_name(dtype, codes=True)
        model = torch.classes.plimsoll.T5Model(str(directory), name, cls._encoder_alone)
        if overflowed := model.warning():
            warnings.warn(f"from_pretrained: {overflowed}", stacklevel=2)
        config = json.loads((Path(directory) / "config.json").read_text())
        if cls._encoder_alone:
            config["architectures"] = [config.get("model_type", "t5").upper() + "EncoderModel"]
        return cls(model, config, t5_fixes)

    def save_pretrained(self, directory: str | os.PathLike[str]) -> None:
        """config.json and model.safetensors, which from_pretrained() reads, and Hugging Face's."""
        from safetensors.torch import save_file

        if any(parameter.numel() == 0 for parameter in self.parameters()):
            raise ValueError("save_pretrained: expected weights, got FP8 codes; load the model with another dtype")
        Path(directory).mkdir(parents=True, exist_ok=True)
        tensors = {name: parameter.detach().contiguous() for name, parameter in self.named_parameters()}
        with whole_file(Path(directory) / "model.safetensors") as file:
            save_file(tensors, file, metadata={"format": "pt"})
        write_text(Path(directory) / "config.json", json.dumps(vars(self.config), indent=2) + "\n")

    @property
    def t5_fixes(self) -> dict[str, Any] | str | None:
        return self._t5_fixes

    @t5_fixes.setter
    def t5_fixes(self, fixes: dict[str, Any] | str | None) -> None:
        if fixes is None:
            self._model.clear_fixes()
        else:
            switches = _SEED if fixes == "seed" else fixes
            if not isinstance(switches, dict) or not switches.keys() <= _NO_FIX.keys():
                raise ValueError(f"t5_fixes: expected 'seed', None or a dict of {', '.join(_NO_FIX)}, got {fixes!r}")
            for name, value in switches.items():
                if isinstance(value, bool) and not isinstance(_NO_FIX[name], bool):
                    raise ValueError(f"t5_fixes: expected a number for {name}, got {value}")
            numbers = {name: type(off)(float(switches.get(name, off))) for name, off in _NO_FIX.items()}
            torch.ops.plimsoll.t5_set_fixes(self._model, **numbers)
        self._t5_fixes = fixes

    def _copy(self) -> Self:
        return type(self)(self._model.clone(), dict(vars(self.config)), self.t5_fixes)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of everything between the products."""
        return self.get_parameter("encoder.final_layer_norm.weight").dtype

    def encode(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        """The encoder's output [batch, seq, d_model] of input_ids [batch, seq]."""
        encoded: torch.Tensor = self._run_encoder(input_ids, attention_mask).last_hidden_state
        return encoded

    def _run_encoder(
        self,
        input_ids: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None = None,
        output_hidden_states: bool | None = False,
    ) -> BaseModelOutput:
        output, hidden_states = torch.ops.plimsoll.t5_run_encoder(
            self._model,
            input_ids=input_ids,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            output_hidden_states=bool(output_hidden_states),
        )
        return BaseModelOutput(last_hidden_state=output, hidden_states=tuple(hidden_states) or None)
