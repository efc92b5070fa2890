"""GroupedLinear."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from plimsoll.pytorch.arguments import ONLY, UB, check_dense, check_rest, check_size, check_sizes
from plimsoll.pytorch.extra_state import drop_extra_state
from plimsoll.pytorch.scaled_module import Initializer, ScaledModule, normal
from plimsoll.pytorch.tensor_parallel import TensorParallel, take_parallel

GROUPED_ONLY = {**ONLY, **UB, "parallel_mode": None}


class GroupedLinear(ScaledModule):
    """num_gemms linear layers side by side, each for its own rows of the input: the experts of a mixture.

    Parameters weight0 [out_features, in_features], weight1, ..., and bias0 [out_features], ... Each product has scaling
    state of its own (buffers gemm0_input_scale, ...), and the bits of a Linear that sees those rows alone. return_bias:
    forward gives (y without biases, [bias0, ...]). save_original_input and fuse_wgrad_accumulation as in Linear. Every
    rank holds whole layers.
    """

    def __init__(
        self,
        num_gemms: int,
        in_features: int,
        out_features: int,
        *,
        init_method: Initializer | None = None,
        bias: bool = True,
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        fuse_wgrad_accumulation: bool = False,
        device: torch.device | str | None = None,
        save_original_input: bool = False,
        name: str | None = None,
        **rest: Any,
    ) -> None:
        parallel = take_parallel(rest)
        check_rest("GroupedLinear", rest, GROUPED_ONLY)
        TensorParallel("GroupedLinear", False, **parallel)  # checks them
        super().__init__(device, params_dtype, fuse_wgrad_accumulation)
        self.num_gemms = check_size("GroupedLinear", "num_gemms", num_gemms, 1)
        self.in_features = check_size("GroupedLinear", "in_features", in_features)
        self.out_features = check_size("GroupedLinear", "out_features", out_features)
        self.use_bias, self.return_bias, self.save_original_input, self.name = bias, return_bias, save_original_input, name
        for number in range(num_gemms):
            self._new_parameter(f"weight{number}", (out_features, in_features), init_method or normal)
            if bias:
                self._new_parameter(f"bias{number}", (out_features,), torch.nn.init.zeros_)
            else:
                self.register_parameter(f"bias{number}", None)
            self._new_product(f"gemm{number}_")
        self.reset_parameters(defer_init=self._made_with["device"].type == "meta")

    def forward(
        self, inp: torch.Tensor, m_splits: Sequence[int], is_first_microbatch: bool | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, list[torch.Tensor | None]]:
        """inp [..., in_features], of whose rows the first m_splits[0] are weight0's, and so on -> [..., out_features]."""
        check_dense("GroupedLinear", "inp", inp)
        if inp.dim() == 0:
            raise ValueError(f"GroupedLinear: expected inp [..., {self.in_features}], got a tensor without dimensions")
        rows = inp.reshape(-1, inp.shape[-1])
        splits = check_sizes("GroupedLinear", "m_splits", m_splits)
        if len(splits) != self.num_gemms or min(splits) < 0 or sum(splits) != rows.shape[0]:
            raise ValueError(
                f"GroupedLinear: expected m_splits of {self.num_gemms} numbers >= 0 whose sum is {rows.shape[0]} rows, got {splits}"
            )
        biases = [self._parameters[f"bias{number}"] for number in range(self.num_gemms)]
        outputs = [
            self._linear(
                part,
                self.get_parameter(f"weight{number}"),
                None if self.return_bias else biases[number],
                f"gemm{number}_",
                is_first_microbatch=is_first_microbatch,
                save_input=self.save_original_input,
            )
            for number, part in enumerate(rows.split(splits))
        ]
        output = torch.cat(outputs).reshape(*inp.shape[:-1], self.out_features)
        if self.return_bias:
            return output, [None if bias is None else bias.to(output.dtype) for bias in biases]
        return output

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        if self.num_gemms > 1:  # releases of Transformer Engine order its columns by product or by role, and it says neither
            drop_extra_state(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        return f"{self.num_gemms} of {self.in_features}, {self.out_features}, bias={self.use_bias}"
