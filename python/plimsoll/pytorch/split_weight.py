"""A linear layer's weight and bias, whole or in parts that are parameters of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from plimsoll.pytorch.arguments import check_size
from plimsoll.pytorch.scaled_module import Initializer, ScaledModule, normal

Split = Mapping[str, int] | Iterable[str] | str | None


def parts_of(where: str, split: Split, rows: int) -> dict[str, int]:
    """Name and rows of each part. A list of names: equal parts."""
    if split is None:
        return {"": rows}
    if isinstance(split, Mapping):
        parts = {name.rstrip("_") + "_": size for name, size in split.items()}
    else:
        names = [split] if isinstance(split, str) else list(split)
        parts = {name.rstrip("_") + "_": rows // len(names) for name in names}
    if sum(parts.values()) != rows:
        raise ValueError(f"{where}: expected parameters_split of {rows} rows in all, got {parts}")
    return parts


class SplitWeightModule(ScaledModule):
    """Parameters weight [out, in] and bias [out], or NAME_weight and NAME_bias for each part of the rows."""

    _split_version = -1

    def _new_weight(
        self, in_features: int, out_features: int, bias: bool, split: Split, initializer: Initializer | None
    ) -> None:
        where = type(self).__name__
        self.in_features = check_size(where, "in_features", in_features)
        self.out_features = check_size(where, "out_features", out_features)
        self.use_bias = bias
        self._parts = parts_of(where, split, out_features)
        for name, rows in self._parts.items():
            self._new_parameter(f"{name}weight", (rows, in_features), initializer or normal)
        for name, rows in self._parts.items():
            if bias:
                self._new_parameter(f"{name}bias", (rows,), torch.nn.init.zeros_)
            else:
                self.register_parameter(f"{name}bias", None)

    def _joined(self, suffix: str) -> torch.Tensor | None:
        parts = [self._parameters[name + suffix] for name in self._parts]
        return parts[0] if len(parts) == 1 or parts[0] is None else torch.cat(parts)

    def _whole_weight(self, is_first_microbatch: bool | None) -> torch.Tensor:
        """A joined copy has no history of changes, so its parts are asked."""
        if is_first_microbatch is not None and len(self._parts) > 1:
            version = sum(self._parameters[f"{name}weight"]._version for name in self._parts)
            if is_first_microbatch:
                self._split_version = version
            elif version != self._split_version:
                raise RuntimeError(
                    f"{type(self).__name__}: expected the weight that is_first_microbatch=True has seen, got one changed since"
                )
        return self._joined("weight")

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.use_bias}"
