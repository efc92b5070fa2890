"""LayerNormLinear."""

from __future__ import annotations

from typing import Any

import torch

from plimsoll.pytorch.arguments import ONLY, UB, check_choice, check_rest
from plimsoll.pytorch.linear import FP8_BETWEEN
from plimsoll.pytorch.main_grad import mark_in_backward
from plimsoll.pytorch.norm import Normed
from plimsoll.pytorch.scaled_module import Initializer
from plimsoll.pytorch.split_weight import Split, SplitWeightModule
from plimsoll.pytorch.tensor_parallel import TensorParallel, take_parallel

_norm_linear = torch.ops.plimsoll.norm_linear.default


class LayerNormLinear(Normed, SplitWeightModule):
    """A norm and a linear as one op: the norm writes the codes that the product reads.

    Parameters layer_norm_weight, layer_norm_bias (LayerNorm), weight, bias; normalization "LayerNorm" or "RMSNorm".
    return_layernorm_output: forward gives what the norm made, too, last. The rest as in Linear.
    """

    weight: torch.nn.Parameter
    bias: torch.nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        eps: float = 1e-5,
        *,
        bias: bool = True,
        init_method: Initializer | None = None,
        normalization: str = "LayerNorm",
        return_bias: bool = False,
        fuse_wgrad_accumulation: bool = False,
        params_dtype: torch.dtype | None = None,
        parallel_mode: str | None = None,
        return_layernorm_output: bool = False,
        parameters_split: Split = None,
        zero_centered_gamma: bool = False,
        device: torch.device | str | None = None,
        name: str | None = None,
        **rest: Any,
    ) -> None:
        parallel = take_parallel(rest)
        check_rest("LayerNormLinear", rest, {**ONLY, **UB})
        check_choice("LayerNormLinear", "parallel_mode", parallel_mode, (None, "row", "column"))
        super().__init__(device, params_dtype, fuse_wgrad_accumulation)
        self.parallel_mode = parallel_mode
        self._parallel = TensorParallel("LayerNormLinear", parallel_mode is not None, **parallel)
        if self.tp_size > 1 and parallel_mode == "row":
            raise ValueError("LayerNormLinear: expected parallel_mode 'column', got 'row': a norm needs all features")
        self.return_bias = return_bias
        self.name = name
        self._new_norm(in_features, eps, normalization, zero_centered_gamma, return_layernorm_output)
        self._new_weight(in_features, out_features, bias, parameters_split, init_method)
        self._new_product()
        self.reset_parameters(defer_init=self._made_with["device"].type == "meta")

    def _parallel_marks(self) -> dict[str, int | None]:
        return super()._parallel_marks() | {"layer_norm_weight": None, "layer_norm_bias": None}

    def run(
        self,
        inp: torch.Tensor,
        residual: torch.Tensor | None = None,
        is_first_microbatch: bool | None = None,
        bias: bool = True,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Output for inp + residual, which comes back second (inp itself without a residual)."""
        self._check_call(inp, is_first_microbatch)
        weight = self._whole_weight(is_first_microbatch)
        output, total = _norm_linear(
            inp,
            residual=residual,
            norm_weight=self.layer_norm_weight,
            norm_bias=self.layer_norm_bias,
            weight=weight,
            bias=self._joined("bias") if bias else None,
            state=self._state(),
            **self._held(weight),
            recipe=self._recipe(weight),
            normalization=self._kind,
            zero_centered=self.zero_centered_gamma,
            epsilon=self.eps,
            is_first_microbatch=is_first_microbatch,
            **self._parallel.call(),
        )
        if self.fuse_wgrad_accumulation:
            mark_in_backward(output, weight)
        return output, total

    def forward(
        self, inp: torch.Tensor, is_first_microbatch: bool | None = None, fp8_output: bool = False, fp8_grad: bool = False
    ) -> Any:
        """inp [..., in_features] -> [..., out_features]; with return_bias and return_layernorm_output a tuple."""
        check_rest("LayerNormLinear.forward", {"fp8_output": fp8_output, "fp8_grad": fp8_grad}, FP8_BETWEEN)
        output, _ = self.run(inp, None, is_first_microbatch, bias=not self.return_bias)
        return self._results(output, self._joined("bias") if self.return_bias else None, inp)
