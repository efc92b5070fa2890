"""A linear layer's weight and bias, whole or in parts that are parameters of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from plimsoll.pytorch.arguments import check_size
from plimsoll.pytorch.main_grad import add_to_main_grad
from plimsoll.pytorch.scaled_module import Initializer, ScaledModule, normal
from plimsoll.pytorch.tensor_parallel import ParallelModule, PartInitializer, Segments

Split = Mapping[str, int] | Iterable[str] | str | None


def parts_of(where: str, split: Split, rows: int) -> dict[str, int]:
    """Name and rows of each part. A list of names: equal parts."""
    if split is None:
        return {"": rows}
    if isinstance(split, Mapping):
        parts = {name.rstrip("_") + "_": size for name, size in split.items()}
    else:
        names = [split] if isinstance(split, str) else list(split)
        parts = {name.rstrip("_") + "_": rows // len(names) for name in names} if names else {}
    if not parts:
        raise ValueError(f"{where}: expected parameters_split with one part or more, got {split!r}")
    for name, size in parts.items():
        check_size(where, f"the rows of {name!r}", size)
    if sum(parts.values()) != rows:
        raise ValueError(f"{where}: expected parameters_split of {rows} rows in all, got {parts}")
    return parts


class SplitWeightModule(ParallelModule, ScaledModule):
    """Parameters weight [out, in] and bias [out], or NAME_weight and NAME_bias for each part of the rows. Of a module that
    ranks share each has a part: with parallel_mode "column" of the rows, with "row" of the columns."""

    parallel_mode: str | None = None
    _split_version = -1

    def _new_weight(self, in_features: int, out_features: int, bias: bool, split: Split, initializer: Initializer | None) -> None:
        where = type(self).__name__
        check_size(where, "in_features", in_features)
        check_size(where, "out_features", out_features)
        self.use_bias = bias
        self._parts = parts_of(where, split, out_features)
        parallel, by_rows = self._parallel, self.parallel_mode == "row"
        self.in_features = parallel.part("in_features", in_features) if by_rows else in_features
        self.out_features = out_features if by_rows else parallel.part("out_features", out_features)
        draw = initializer or normal
        for name, rows in self._parts.items():
            segments = draw.rows if isinstance(draw, Segments) else (rows,)
            part = PartInitializer(draw, parallel, 1, (in_features,)) if by_rows else PartInitializer(draw, parallel, 0, segments)
            self._new_parameter(f"{name}weight", (self._rows_here(name, rows), self.in_features), part)
        for name, rows in self._parts.items():
            if bias:
                self._new_parameter(f"{name}bias", (self._rows_here(name, rows),), torch.nn.init.zeros_)
            else:
                self.register_parameter(f"{name}bias", None)

    def _rows_here(self, name: str, rows: int) -> int:
        if self.parallel_mode == "row":
            return rows
        return self._parallel.part(f"parameters_split['{name[:-1]}']" if name else "out_features", rows)

    def _parallel_marks(self) -> dict[str, int | None]:
        if self.parallel_mode is None:
            return {}
        by_rows = self.parallel_mode == "row"
        marks: dict[str, int | None] = {f"{name}weight": 1 if by_rows else 0 for name in self._parts}
        return marks | {f"{name}bias": None if by_rows else 0 for name in self._parts}

    def _joined(self, suffix: str) -> torch.Tensor | None:
        all_parts = [getattr(self, name + suffix) for name in self._parts]
        parts: list[torch.Tensor] = [part for part in all_parts if part is not None]
        if not parts:
            return None
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _joined_weight(self, is_first_microbatch: bool | None) -> torch.Tensor:
        if len(self._parts) == 1 or not self.fuse_wgrad_accumulation or not torch.is_grad_enabled():
            joined = self._joined("weight")
            assert joined is not None
            return joined
        parts = (self.get_parameter(f"{name}weight") for name in self._parts)
        return torch.cat([add_to_main_grad(type(self).__name__, part, bool(is_first_microbatch)) for part in parts])

    def _whole_weight(self, is_first_microbatch: bool | None) -> torch.Tensor:
        """A joined copy has no history of changes, so its parts are asked."""
        if is_first_microbatch is not None and len(self._parts) > 1:
            version: int = sum(self.get_parameter(f"{name}weight")._version for name in self._parts)
            if is_first_microbatch:
                self._split_version = version
            elif version != self._split_version:
                raise RuntimeError(
                    f"{type(self).__name__}: expected the weight that is_first_microbatch=True has seen, got one changed since"
                )
        return self._joined_weight(is_first_microbatch)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.use_bias}"
