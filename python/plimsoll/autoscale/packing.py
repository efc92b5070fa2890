"""Scaled tensors as two plain ones each, for files: a scaled tensor has no storage that torch.save could write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from plimsoll._torch_internals import tree_map
from plimsoll.autoscale.tensors import get_data_scale, is_scaled, scaled_array

SCALE, REMAINDER = ".scale", ".remainder"
LOSS_SCALE = "autoscale.loss_scale"


@dataclass(frozen=True)
class ScaledArray:
    """value = data * scale."""

    data: torch.Tensor
    scale: torch.Tensor | float  # of the first kind where it is for a file; 0: an exact zero
    remainder: torch.Tensor | None = None  # what rounding cut off a parameter
    dtype: torch.dtype = torch.float32  # that the tensor reports

    @staticmethod
    def of(x: torch.Tensor) -> ScaledArray:
        data, scale = get_data_scale(x)
        remainder = torch.ops.plimsoll.autoscale_kept_remainder(x)
        kept = remainder.clone() if remainder.numel() else None
        scale = scale.clone() if isinstance(scale, torch.Tensor) else torch.tensor(scale, dtype=torch.float64)
        return ScaledArray(data.detach().clone(), scale, kept, x.dtype)

    def tensor(self) -> torch.Tensor:
        """The scaled tensor. Data in FP32, as an optimizer's state has them, stay so."""
        x = scaled_array(self.data, self.scale, dtype=self.data.dtype)
        if self.remainder is not None:
            torch.ops.plimsoll.autoscale_set_kept_remainder(x, self.remainder)
        scaled: torch.Tensor = torch.ops.plimsoll.autoscale_with_dtype(x, self.dtype)
        return scaled


torch.serialization.add_safe_globals([ScaledArray])


def pack(tree: Any) -> Any:
    """Lists, tuples and dicts with a ScaledArray for each scaled tensor: torch.save(pack(optimizer.state_dict()), path)."""
    return tree_map(lambda x: ScaledArray.of(x) if is_scaled(x) else x, tree)


def unpack(tree: Any) -> Any:
    """The inverse of pack()."""
    return tree_map(lambda x: x.tensor() if isinstance(x, ScaledArray) else x, tree)


def save_hook(module: torch.nn.Module, state: dict[str, Any], prefix: str, metadata: dict[str, Any]) -> None:
    """Each scaled tensor `name` of a state dict as `name`, its data, `name.scale`, and `name.remainder` where it has one."""
    for name in [name for name, x in state.items() if name.startswith(prefix) and is_scaled(x)]:
        packed = ScaledArray.of(state[name])
        state[name], state[name + SCALE] = packed.data, packed.scale
        if packed.remainder is not None:
            state[name + REMAINDER] = packed.remainder


def load_hook(module: torch.nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
    """The inverse; a tensor without a scale, of any other checkpoint, is a value."""
    dtypes = {prefix + name: parameter.dtype for name, parameter in module.named_parameters(remove_duplicate=False)}
    for name in [name for name in state if name.startswith(prefix) and name + SCALE in state]:
        parts = state[name], state.pop(name + SCALE), state.pop(name + REMAINDER, None)
        # In the parameter's dtype, so that copying it there is no cast, which would round.
        state[name] = ScaledArray(*parts, dtypes.get(name, torch.float32)).tensor()
