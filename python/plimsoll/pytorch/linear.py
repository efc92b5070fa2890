"""Linear."""

from __future__ import annotations

from typing import Any

import torch

from plimsoll.pytorch.arguments import ONLY, UB, check_choice, check_rest
from plimsoll.pytorch.scaled_module import Initializer
from plimsoll.pytorch.split_weight import Split, SplitWeightModule
from plimsoll.pytorch.tensor_parallel import TensorParallel, take_parallel

# Tensors between modules are never codes.
FP8_BETWEEN = {"fp8_output": False, "fp8_grad": False}


class Linear(SplitWeightModule):
    """y = x weight^T + bias, each product under the recipe of the scope.

    Parameters weight [out_features, in_features], bias [out_features]; with parameters_split (names, or names with their
    rows) one of each for every part. return_bias: forward gives (y without bias, bias). use_bias: the name of bias in
    Transformer Engine's first examples. save_original_input: keep the input for backward, not its codes, which costs
    nothing where the op before keeps it too. fuse_wgrad_accumulation: the gradient of the weight is added to
    weight.main_grad, an FP32 tensor, by the product itself, or takes its place if is_first_microbatch is True, and
    weight.grad stays None. Other arguments of Transformer
    Engine are accepted at their default only.

    parallel_mode with the ranks of tp_group: "column" splits the rows of the weight, and each rank gets its features of
    the output; "row" splits the columns, each rank has its features of the input, and outputs are summed.
    sequence_parallel: where features are whole, each rank has its tokens, the first dimension's. docs/python.md.
    """

    weight: torch.nn.Parameter
    bias: torch.nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        init_method: Initializer | None = None,
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        fuse_wgrad_accumulation: bool = False,
        parallel_mode: str | None = None,
        parameters_split: Split = None,
        device: torch.device | str | None = None,
        save_original_input: bool = False,
        name: str | None = None,
        use_bias: bool | None = None,
        **rest: Any,
    ) -> None:
        parallel = take_parallel(rest)
        check_rest("Linear", rest, {**ONLY, **UB})
        check_choice("Linear", "parallel_mode", parallel_mode, (None, "row", "column"))
        super().__init__(device, params_dtype, fuse_wgrad_accumulation)
        self.parallel_mode = parallel_mode
        self._parallel = TensorParallel("Linear", parallel_mode is not None, **parallel)
        self.name = name
        self.return_bias = return_bias
        self.save_original_input = save_original_input
        self._new_weight(in_features, out_features, bias if use_bias is None else use_bias, parameters_split, init_method)
        self._new_product()
        self.reset_parameters(defer_init=self._made_with["device"].type == "meta")

    def forward(
        self,
        inp: torch.Tensor,
        is_first_microbatch: bool | None = None,
        fp8_output: bool = False,
        fp8_grad: bool = False,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor | None]:
        """inp [..., in_features] -> [..., out_features], in the high-precision dtype of the scope. is_first_microbatch:
        None quantizes the weight at each call; True keeps its codes; False uses them, an error if it has changed."""
        check_rest("Linear.forward", {"fp8_output": fp8_output, "fp8_grad": fp8_grad}, FP8_BETWEEN)
        weight = self._whole_weight(is_first_microbatch)
        bias = self._joined("bias")
        adds_bias = self.parallel_mode == "row" and self.tp_size > 1  # once, to the sum of the ranks
        output = self._linear(
            inp,
            weight,
            None if self.return_bias or adds_bias else bias,
            is_first_microbatch=is_first_microbatch,
            save_input=self.save_original_input,
            **self._parallel.call(parallel_mode=self.parallel_mode),
        )
        if self.return_bias:
            return output, None if bias is None else bias.to(output.dtype)
        return output if bias is None or not adds_bias else output + bias.to(output.dtype)
