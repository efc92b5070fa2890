"""LayerNormMLP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from plimsoll.pytorch.arguments import HINTS, ONLY, UB, check_choice, check_number, check_rest, check_size, shown
from plimsoll.pytorch.checkpoint import checkpoint
from plimsoll.pytorch.main_grad import mark_in_backward
from plimsoll.pytorch.norm import Normed
from plimsoll.pytorch.scaled_module import Initializer, ScaledModule, normal
from plimsoll.pytorch.tensor_parallel import ParallelModule, PartInitializer, TensorParallel, take_parallel

GATED = tuple(torch.ops.plimsoll.activation_names(True))
ACTIVATIONS = (*torch.ops.plimsoll.activation_names(False), *GATED)
MLP_ONLY = {**ONLY, **UB}
_norm_mlp = torch.ops.plimsoll.norm_mlp.default


def activation_numbers(where: str, activation: str, params: Mapping[str, float] | None) -> list[float]:
    """Parameters of the activation in the library's order; those that `params` leaves out have their default."""
    if params is not None and not isinstance(params, Mapping):
        raise TypeError(f"{where}: expected activation_params a dictionary or None, got {shown(params)}")
    names, defaults = torch.ops.plimsoll.activation_parameters(activation)
    known = dict(zip(names, defaults, strict=True))
    for name in params or {}:
        if name not in known:
            expected = f"one of {', '.join(known)}" if known else "none"
            raise ValueError(f"{where}: expected activation_params of {activation!r} {expected}, got {name!r}")
    values = [check_number(where, f"activation_params[{name!r}]", value) for name, value in {**known, **(params or {})}.items()]
    checked: list[float] = torch.ops.plimsoll.activation_parameters(activation, values)[1]
    return checked


class LayerNormMLP(Normed, ParallelModule, ScaledModule):
    """Norm, fc1, activation, fc2 as one op.

    Parameters layer_norm_weight, layer_norm_bias (LayerNorm), fc1_weight, fc1_bias, fc2_weight, fc2_bias. activation: gelu
    (the tanh form), gelu_erf, qgelu, relu, srelu, silu, or gated geglu, qgeglu, reglu, sreglu, swiglu, glu,
    clamped_swiglu: fc1 then has 2 ffn_hidden_size rows, the first half gates. activation_params, of clamped_swiglu:
    {"limit": 7, "alpha": 1.702, "glu_linear_offset": 1}, in
    min(gate, limit) sigmoid(alpha min(gate, limit)) (clamp(value, -limit, limit) + glu_linear_offset).
    checkpoint: backward makes the activations again, from the input.
    return_bias: forward gives (y without fc2_bias, fc2_bias). return_layernorm_output: what the norm made, too, last.
    set_parallel_mode: the ranks of tp_group split the rows of fc1 and the columns of fc2, as in Linear.
    """

    fc1_weight: torch.nn.Parameter
    fc1_bias: torch.nn.Parameter | None
    fc2_weight: torch.nn.Parameter
    fc2_bias: torch.nn.Parameter | None

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
        activation_params: Mapping[str, float] | None = None,
        fuse_wgrad_accumulation: bool = False,
        params_dtype: torch.dtype | None = None,
        return_layernorm_output: bool = False,
        set_parallel_mode: bool = False,
        zero_centered_gamma: bool = False,
        checkpoint: bool = False,
        device: torch.device | str | None = None,
        name: str | None = None,
        **rest: Any,
    ) -> None:
        parallel = take_parallel(rest)
        check_rest("LayerNormMLP", rest, MLP_ONLY, HINTS)
        super().__init__(device, params_dtype, fuse_wgrad_accumulation)
        self._parallel = TensorParallel("LayerNormMLP", set_parallel_mode, **parallel)
        self.hidden_size = check_size("LayerNormMLP", "hidden_size", hidden_size)
        self.ffn_hidden_size = check_size("LayerNormMLP", "ffn_hidden_size", ffn_hidden_size)
        features = self._parallel.part("ffn_hidden_size", ffn_hidden_size)
        self.activation = check_choice("LayerNormMLP", "activation", activation, ACTIVATIONS)
        self.activation_params = activation_numbers("LayerNormMLP", activation, activation_params)
        self.return_bias = return_bias
        self.use_bias = bias
        self.checkpoint = checkpoint
        self.name = name
        self._new_norm(hidden_size, eps, normalization, zero_centered_gamma, return_layernorm_output)
        halves = 2 if activation in GATED else 1
        for layer, rows, cols, initializer, dim in (
            ("fc1", halves * features, hidden_size, init_method, 0),
            ("fc2", hidden_size, features, output_layer_init_method, 1),
        ):
            whole = (ffn_hidden_size,) * (halves if dim == 0 else 1)
            part = PartInitializer(initializer or normal, self._parallel, dim, whole)
            self._new_parameter(f"{layer}_weight", (rows, cols), part)
            if bias:
                self._new_parameter(f"{layer}_bias", (rows,), torch.nn.init.zeros_)
            else:
                self.register_parameter(f"{layer}_bias", None)
            self._new_product(f"{layer}_")
        self.reset_parameters(defer_init=self._made_with["device"].type == "meta")

    def _parallel_marks(self) -> dict[str, int | None]:
        marks = {"fc1_weight": 0, "fc1_bias": 0, "fc2_weight": 1, "fc2_bias": None}
        return marks | {"layer_norm_weight": None, "layer_norm_bias": None}

    def run(
        self,
        inp: torch.Tensor,
        residual: torch.Tensor | None = None,
        is_first_microbatch: bool | None = None,
        fc2_bias: bool = True,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Output for inp + residual, which comes back second (inp itself without a residual)."""
        self._check_call(inp, is_first_microbatch)
        if self.checkpoint and torch.is_grad_enabled():
            output, total = checkpoint(self._run, inp, residual, is_first_microbatch, fc2_bias)
        else:
            output, total = self._run(inp, residual, is_first_microbatch, fc2_bias)
        if self.fuse_wgrad_accumulation:
            mark_in_backward(output, self.fc1_weight, self.fc2_weight)
        if fc2_bias and self.tp_size > 1 and self.fc2_bias is not None:  # once, to the sum of the ranks
            output = output + self.fc2_bias.to(output.dtype)
        return output, total

    def _run(
        self, inp: torch.Tensor, residual: torch.Tensor | None, is_first_microbatch: bool | None, fc2_bias: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        made: tuple[torch.Tensor, torch.Tensor] = _norm_mlp(
            inp,
            residual=residual,
            norm_weight=self.layer_norm_weight,
            norm_bias=self.layer_norm_bias,
            fc1_weight=self.fc1_weight,
            fc1_bias=self.fc1_bias,
            fc2_weight=self.fc2_weight,
            fc2_bias=self.fc2_bias if fc2_bias and self.tp_size == 1 else None,
            activation=self.activation,
            activation_params=self.activation_params,
            state=self._state("fc1_") + self._state("fc2_"),
            **self._held(self.fc1_weight, self.fc2_weight),
            recipe=self._recipe(self.fc1_weight),
            normalization=self._kind,
            zero_centered=self.zero_centered_gamma,
            epsilon=self.eps,
            is_first_microbatch=is_first_microbatch,
            **self._parallel.call(),
        )
        return made

    def forward(self, inp: torch.Tensor, is_first_microbatch: bool | None = None) -> Any:
        """inp [..., hidden_size] -> the same shape; with return_bias and return_layernorm_output a tuple."""
        output, _ = self.run(inp, None, is_first_microbatch, fc2_bias=not self.return_bias)
        return self._results(output, self.fc2_bias, inp)

    def extra_repr(self) -> str:
        params = f", activation_params={self.activation_params}" if self.activation_params else ""
        return f"{self.hidden_size}, {self.ffn_hidden_size}, activation={self.activation}{params}, bias={self.use_bias}"
