"""AutoModelForCausalLM: the class that config.json asks for, under transformers' names."""

from __future__ import annotations

import functools
import json
import os
import warnings
from pathlib import Path

import torch

from plimsoll._owned_model import CODES, dtype_name
from plimsoll.common.recipe import Recipe
from plimsoll.models.causal_lm import CausalLM


@functools.cache
def _class_named(name: str) -> type[CausalLM]:
    """A class that differs from CausalLM in nothing but the name, which transformers' pipelines look at."""
    return type(name, (CausalLM,), {"__module__": __name__, "__doc__": CausalLM.__doc__})


class AutoModelForCausalLM:
    """Makes models; has none of its own."""

    @staticmethod
    def from_pretrained(
        directory: str | os.PathLike[str], dtype: torch.dtype | str | None = None, recipe: Recipe | None = None
    ) -> CausalLM:
        """directory: config.json with model.safetensors or its shards. dtype: of the weights, a torch.dtype, "fp32", "bf16",
        "fp16", or None: as they are stored; "fp8", "nvfp4" and "mxfp4", codes without parameters, are for `plimsoll generate` and C++. Weights that
        the dtype cannot hold become Inf, with a warning that counts and names them. recipe: in force in forward() and
        generate(), as inside plimsoll.pytorch.autocast; None: that of the scope around the call, if any."""
        if recipe is not None and not isinstance(recipe, Recipe):
            raise TypeError(f"from_pretrained: expected recipe a plimsoll.common.recipe.Recipe, got {recipe!r}")
        if dtype in CODES:
            raise ValueError(
                f"from_pretrained: expected dtype float32, bfloat16 or float16, got '{dtype}', under which a model has codes and no "
                f"parameters; plimsoll generate --dtype {dtype} and C++'s models::load have it"
            )
        config_file = Path(directory) / "config.json"
        if config_file.is_file() and json.loads(config_file.read_text()).get("quantization_config") is not None:
            raise ValueError(
                f"from_pretrained: expected weights that are values, got codes in {directory}, which are no parameters; plimsoll "
                "convert --dtype bf16 makes values of them, plimsoll generate and plimsoll.serve.Engine read them as they are"
            )
        model = torch.classes.plimsoll.DecoderModel(str(directory), dtype_name(dtype, codes=False))
        if overflowed := model.warning():
            warnings.warn(f"from_pretrained: {overflowed}", stacklevel=2)
        config = json.loads((Path(directory) / "config.json").read_text())
        (name,) = json.loads(model.config())["architectures"]
        return _class_named(name)(model, config, str(directory), recipe)
