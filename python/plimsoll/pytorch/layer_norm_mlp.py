"""LayerNormMLP."""

from __future__ import annotations

from typing import Any

import torch

from plimsoll.pytorch.arguments import HINTS, ONLY, UB, check_choice, check_rest, check_size
from plimsoll.pytorch.norm import Normed
from plimsoll.pytorch.scaled_module import Initializer, ScaledModule, normal

ACTIVATIONS = ("gelu", "relu", "silu", "geglu", "swiglu", "reglu")
GATED = ("geglu", "swiglu", "reglu")
_norm_mlp = torch.ops.plimsoll.norm_mlp.default


class LayerNormMLP(Normed, ScaledModule):
    """Norm, fc1, activation, fc2 as one op.

    Parameters layer_norm_weight, layer_norm_bias (LayerNorm), fc1_weight, fc1_bias, fc2_weight, fc2_bias. activation: gelu
    (the tanh form), relu, silu, or gated geglu, swiglu, reglu: fc1 then has 2 ffn_hidden_size rows, the first half gates.
    return_bias: forward gives (y without fc2_bias, fc2_bias). return_layernorm_output: what the norm made, too, last.
    """

    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        eps: float = 1e-5,
        *,
        return_bias: bool = False,
        init_method: Initializer | None = None,
        output_layer_init_method: Initializer | None = None,
        bias: bool = True,
        normalization: str = "LayerNorm",
        activation: str = "gelu",
        params_dtype: torch.dtype | None = None,
        return_layernorm_output: bool = False,
        set_parallel_mode: bool = False,
        zero_centered_gamma: bool = False,
        device: torch.device | str | None = None,
        name: str | None = None,
        **rest: Any,
    ) -> None:
        check_rest("LayerNormMLP", rest, {**ONLY, **UB, "activation_params": None, "checkpoint": False}, HINTS)
        super().__init__(device, params_dtype)
        self.hidden_size = check_size("LayerNormMLP", "hidden_size", hidden_size)
        self.ffn_hidden_size = check_size("LayerNormMLP", "ffn_hidden_size", ffn_hidden_size)
        self.activation = check_choice("LayerNormMLP", "activation", activation, ACTIVATIONS)
        self.return_bias = return_bias
        self.use_bias = bias
        self.name = name
        self._new_norm(hidden_size, eps, normalization, zero_centered_gamma, return_layernorm_output)
        fc1_rows = (2 if activation in GATED else 1) * ffn_hidden_size
        for layer, rows, cols, initializer in (
            ("fc1", fc1_rows, hidden_size, init_method),
            ("fc2", hidden_size, ffn_hidden_size, output_layer_init_method),
        ):
            self._new_parameter(f"{layer}_weight", (rows, cols), initializer or normal)
            if bias:
                self._new_parameter(f"{layer}_bias", (rows,), torch.nn.init.zeros_)
            else:
                self.register_parameter(f"{layer}_bias", None)
            self._new_product(f"{layer}_")
        self.reset_parameters(defer_init=self._made_with["device"].type == "meta")

    def run(
        self,
        inp: torch.Tensor,
        residual: torch.Tensor | None = None,
        is_first_microbatch: bool | None = None,
        fc2_bias: bool = True,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of inp + residual, which comes back second (inp itself without a residual)."""
        return _norm_mlp(
            inp,
            residual,
            self.layer_norm_weight,
            self.layer_norm_bias,
            self.fc1_weight,
            self.fc1_bias,
            self.fc2_weight,
            self.fc2_bias if fc2_bias else None,
            self.activation,
            self._state("fc1_") + self._state("fc2_"),
            self._recipe(self.fc1_weight),
            self._kind,
            self.zero_centered_gamma,
            self.eps,
            is_first_microbatch,
        )

    def forward(self, inp: torch.Tensor, is_first_microbatch: bool | None = None) -> Any:
        """inp [..., hidden_size] -> the same shape; with return_bias and return_layernorm_output a tuple."""
        output, _ = self.run(inp, None, is_first_microbatch, fc2_bias=not self.return_bias)
        return self._results(output, self.fc2_bias, inp)

    def extra_repr(self) -> str:
        return f"{self.hidden_size}, {self.ffn_hidden_size}, activation={self.activation}, bias={self.use_bias}"
