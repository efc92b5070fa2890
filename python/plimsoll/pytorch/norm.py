"""LayerNorm and RMSNorm over the last dimension."""

from __future__ import annotations

from typing import Any

import torch

from plimsoll.pytorch.arguments import check_choice, check_dense, check_epsilon, check_rest, check_size
from plimsoll.pytorch.autocast import high_precision_dtype
from plimsoll.pytorch.scaled_module import InitializedModule, Initializer

NORMALIZATIONS = {"LayerNorm": "layernorm", "RMSNorm": "rmsnorm"}
_norm = torch.ops.plimsoll.norm.default


def norm_kind(where: str, normalization: str) -> str:
    """The operators' name of a norm."""
    return NORMALIZATIONS[check_choice(where, "normalization", normalization, tuple(NORMALIZATIONS))]


def new_norm_parameters(module: InitializedModule, prefix: str, size: int, kind: str, zero_centered: bool) -> None:
    """PREFIXweight, and PREFIXbias for LayerNorm: the identity."""
    identity: Initializer = torch.nn.init.zeros_ if zero_centered else torch.nn.init.ones_
    module._new_parameter(f"{prefix}weight", (size,), identity)
    if kind == "layernorm":
        module._new_parameter(f"{prefix}bias", (size,), torch.nn.init.zeros_)
    else:
        module.register_parameter(f"{prefix}bias", None)


def run_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, kind: str, zero_centered: bool, eps: float
) -> torch.Tensor:
    """FP32 inside; the result in the high-precision dtype of the scope, outside scopes in that of x."""
    check_dense("norm", "input", x)
    normalized: torch.Tensor = _norm(
        x, weight, bias, kind=kind, zero_centered=zero_centered, epsilon=eps, dtype=high_precision_dtype(x)
    )
    return normalized


class Normed(InitializedModule):
    """A layer that begins with a norm: parameters layer_norm_weight and, for LayerNorm, layer_norm_bias."""

    layer_norm_weight: torch.nn.Parameter
    layer_norm_bias: torch.nn.Parameter | None
    return_bias: bool

    def _new_norm(
        self, size: int, eps: float, normalization: str, zero_centered_gamma: bool, return_layernorm_output: bool
    ) -> None:
        check_size(type(self).__name__, "the normalized size", size, 1)
        self.eps = check_epsilon(type(self).__name__, "eps", eps)
        self.normalization = normalization
        self._kind = norm_kind(type(self).__name__, normalization)
        self.zero_centered_gamma = zero_centered_gamma
        self.return_layernorm_output = return_layernorm_output
        new_norm_parameters(self, "layer_norm_", size, self._kind, zero_centered_gamma)

    def normalized(self, inp: torch.Tensor) -> torch.Tensor:
        """Output of the norm for inp, in high precision."""
        return run_norm(inp, self.layer_norm_weight, self.layer_norm_bias, self._kind, self.zero_centered_gamma, self.eps)

    def _results(self, output: torch.Tensor, bias: torch.Tensor | None, inp: torch.Tensor) -> Any:
        """output, with bias after it if return_bias, and then what the norm made if return_layernorm_output."""
        results: list[Any] = [output]
        if self.return_bias:
            results.append(None if bias is None else bias.to(output.dtype))
        if self.return_layernorm_output:
            results.append(self.normalized(inp))
        return output if len(results) == 1 else tuple(results)


class _Norm(InitializedModule):
    weight: torch.nn.Parameter
    bias: torch.nn.Parameter | None
    _kind: str

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...] | None = None,
        eps: float = 1e-5,
        sequence_parallel: bool | None = None,
        params_dtype: torch.dtype | None = None,
        zero_centered_gamma: bool = False,
        hidden_size: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **rest: Any,
    ) -> None:
        where = type(self).__name__
        check_rest(where, rest, {})
        super().__init__(device, dtype if params_dtype is None else params_dtype)
        shape = hidden_size if normalized_shape is None else normalized_shape
        if isinstance(shape, (tuple, list)):
            if not shape:
                raise ValueError(f"{where}: expected normalized_shape of one dimension, got {tuple(shape)}")
            if len(shape) != 1:
                raise NotImplementedError(f"{where}: expected normalized_shape of one dimension, got {tuple(shape)}")
            shape = shape[0]
        self.hidden_size = check_size(where, "normalized_shape", shape, 1)
        self.eps = check_epsilon(where, "eps", eps)
        self.zero_centered_gamma = zero_centered_gamma
        self.sequence_parallel = sequence_parallel
        new_norm_parameters(self, "", self.hidden_size, self._kind, zero_centered_gamma)
        self.reset_parameters(defer_init=self.weight.is_meta)

    def reset_parameters(self, defer_init: bool = False) -> None:
        super().reset_parameters(defer_init)
        if self.sequence_parallel is not None:  # the mark by which Megatron-LM knows gradients of a rank's tokens
            for parameter in self.parameters():
                parameter.sequence_parallel = self.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """input [..., hidden_size] -> the same shape."""
        return run_norm(input, self.weight, self.bias, self._kind, self.zero_centered_gamma, self.eps)

    def extra_repr(self) -> str:
        return f"{self.hidden_size}, eps={self.eps}, zero_centered_gamma={self.zero_centered_gamma}"


class LayerNorm(_Norm):
    """(x - mean) / sqrt(variance + eps) * weight + bias. zero_centered_gamma: weight starts at 0, 1 + weight multiplies."""

    _kind = "layernorm"


class RMSNorm(_Norm):
    """x / sqrt(mean(x^2) + eps) * weight. zero_centered_gamma: weight starts at 0, 1 + weight multiplies."""

    _kind = "rmsnorm"


NORMS: dict[str, type[_Norm]] = {"LayerNorm": LayerNorm, "RMSNorm": RMSNorm}
