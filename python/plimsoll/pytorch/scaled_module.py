"""Base of the layers: parameters with their initialisers, and the scaling state of each matrix product."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from plimsoll._torch_internals import guard_sizes, transform_around
from plimsoll.pytorch import extra_state
from plimsoll.pytorch.arguments import check_dense, check_flag, check_tensor, format_of
from plimsoll.pytorch.autocast import current_recipe, recipe_text
from plimsoll.pytorch.layer_names import WithProducts
from plimsoll.pytorch.main_grad import main_grad_of, mark_in_backward
from plimsoll.pytorch.quantized_init import weights_as_codes
from plimsoll.pytorch.quantized_tensor import QuantizedTensor

ROLES = ("input", "weight", "grad_output")
Initializer = Callable[[torch.Tensor], Any]

_scaled_linear = torch.ops.plimsoll.scaled_linear.default

normal: Initializer = partial(torch.nn.init.normal_, mean=0.0, std=0.023)


def check_device(where: str, device: torch.device | str | None) -> torch.device:
    chosen = torch.get_default_device() if device is None else torch.device(device)
    if chosen.type not in ("cpu", "cuda", "meta"):
        raise NotImplementedError(f"{where}: expected device 'cpu', 'cuda' or 'meta', got '{chosen}'")
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(f"{where}: expected a card that torch sees for device '{chosen}', found none")
    return chosen


class InitializedModule(torch.nn.Module):
    """Parameters that reset_parameters() can draw again, and materialise where they are on the device "meta"."""

    def __init__(self, device: torch.device | str | None, params_dtype: torch.dtype | None) -> None:
        super().__init__()
        where = type(self).__name__
        dtype = torch.get_default_dtype() if params_dtype is None else params_dtype
        format_of(where, dtype)
        self._made_with: dict[str, Any] = {"device": check_device(where, device), "dtype": dtype}
        self._initializers: dict[str, Initializer] = {}

    def _new_parameter(self, name: str, shape: Iterable[int], initializer: Initializer) -> None:
        self.register_parameter(name, torch.nn.Parameter(torch.empty(*shape, **self._made_with)))
        self._initializers[name] = initializer

    @torch.no_grad()
    def reset_parameters(self, defer_init: bool = False) -> None:
        if defer_init:
            return
        for name, initializer in self._initializers.items():
            parameter = self._parameters[name]
            if parameter is None:
                continue
            if parameter.is_meta:
                empty = torch.empty_like(parameter, device="cpu")
                self._parameters[name] = parameter = torch.nn.Parameter(empty, requires_grad=parameter.requires_grad)
            if not parameter.is_meta:
                self._parameters[name] = self._initialized(parameter, initializer)

    def _initialized(self, parameter: torch.nn.Parameter, initializer: Initializer) -> torch.nn.Parameter:
        initializer(parameter)
        return parameter

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        extra_state.drop_extra_state(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *rest)


class ScaledModule(InitializedModule, WithProducts):
    """The state of each product is nine named buffers, `input_scale`, `input_amax_history`, `input_step`, `weight_scale`,
    ..., with a prefix where a module has two products. They are FP32 and int64 whatever the parameters are, and belong
    to the state dict. A history has the recipe's length once it has been used, and from plimsoll.convert(model, recipe)
    on. They stay on the CPU, which reads the amaxes of all products at once at the end of a pass, wherever the parameters go.
    Parameters of two dimensions are weights of products; quantized_model_init makes codes of them."""

    def __init__(
        self, device: torch.device | str | None, params_dtype: torch.dtype | None, fuse_wgrad_accumulation: bool = False
    ) -> None:
        super().__init__(device, params_dtype)
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation
        self._as_codes = weights_as_codes()
        self._products: dict[str, list[str]] = {}  # prefix -> names of its buffers
        self._keys: dict[str, torch.Tensor] = {}  # prefix -> what C++ keeps its caches with (plimsoll/bind/layer_state.h)

    def _new_product(self, prefix: str = "") -> None:
        device = "meta" if self._made_with["device"].type == "meta" else "cpu"
        names = []
        for role in ROLES:
            for part, dtype in (("scale", torch.float32), ("amax_history", torch.float32), ("step", torch.int64)):
                names.append(f"{prefix}{role}_{part}")
                self.register_buffer(names[-1], torch.zeros(1, dtype=dtype, device=device))
        self._products[prefix] = names
        self._keys[prefix] = torch.empty(0, device="cpu")

    def size_histories(self, length: int) -> None:
        """Gives histories that nothing was recorded in their length at once, so that a copy of the module made now has the
        sizes of one made later."""
        for name in self._state_names():
            buffer = self.get_buffer(name)
            if name.endswith("_amax_history") and buffer.numel() == 1 and (buffer.is_meta or not buffer.any()):
                self._buffers[name] = buffer.new_zeros(length)

    def _state(self, prefix: str = "") -> list[torch.Tensor]:
        if torch.compiler.is_compiling():
            guard_sizes()
        return [self._keys[prefix], *(self._buffers[name] for name in self._products[prefix])]  # type: ignore[list-item]

    def product_states(self) -> dict[str, list[torch.Tensor]]:
        """The state of each product whose weight is one parameter and whole on this rank, by the parameter's name."""
        names = {f"{prefix}weight": prefix for prefix in self._products}
        whole = getattr(self, "tp_size", 1) == 1 and not self.fuse_wgrad_accumulation
        return {
            name: self._state(prefix)
            for name, prefix in names.items()
            if whole and type(self._parameters.get(name)) is torch.nn.Parameter
        }

    def _linear(
        self, inp: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, prefix: str = "", **options: Any
    ) -> torch.Tensor:
        """inp weight^T + bias under the recipe of the scope, by the product with this prefix. options: the operator's."""
        self._check_call(inp, options.get("is_first_microbatch"), dense=False)
        held = self._held(weight)
        output: torch.Tensor = _scaled_linear(
            inp, weight, bias, state=self._state(prefix), recipe=self._recipe(weight), **held, **options
        )
        if self.fuse_wgrad_accumulation:
            mark_in_backward(output, weight)
        return output

    def _check_call(self, inp: torch.Tensor, is_first_microbatch: bool | None, dense: bool = True) -> None:
        """dense: whether a sparse input is an error outside all scopes, too."""
        check_tensor(type(self).__name__, "inp", inp)
        if inp.layout is not torch.strided and (dense or current_recipe() is not None):
            check_dense(type(self).__name__, "inp", inp)
        if not torch.compiler.is_compiling() and (around := transform_around(inp, self._parameters)):
            raise NotImplementedError(
                f"{type(self).__name__}: expected a call outside torch.func's transforms (vmap, grad, jvp, jacrev, ...) and forward "
                f"AD, got one inside {around}: use backward(), or torch.nn's layer, which plimsoll.convert_back(model) brings back"
            )
        if is_first_microbatch is not None:
            check_flag(type(self).__name__, "is_first_microbatch", is_first_microbatch)

    def _held(self, *weights: torch.Tensor) -> dict[str, Any]:
        """Codes and main_grad of the weight of each product, as the operators take them (plimsoll/bind/held_weight.h)."""
        if not self.fuse_wgrad_accumulation and not any(isinstance(weight, QuantizedTensor) for weight in weights):
            return {"held": [], "held_recipes": []}
        if torch.compiler.is_compiling():
            if self.fuse_wgrad_accumulation:
                raise NotImplementedError(f"{type(self).__name__}: expected fuse_wgrad_accumulation=False under torch.compile")
            return {"held": [], "held_recipes": []}  # QuantizedTensor hands them over
        held: list[torch.Tensor | None] = []
        for weight in weights:
            held += weight.held() if isinstance(weight, QuantizedTensor) else [None] * 5
            fuses = self.fuse_wgrad_accumulation and weight.is_leaf and weight.requires_grad and torch.is_grad_enabled()
            held.append(main_grad_of(type(self).__name__, weight) if fuses else None)
        self._link_codes()
        recipes = [weight.form.recipe if isinstance(weight, QuantizedTensor) else "" for weight in weights]
        return {"held": held, "held_recipes": recipes}

    def _link_codes(self) -> None:
        """Shows weights that are codes the scale by which their product quantizes its weight. A weight in several parts has
        none: its product quantizes what they are together."""
        weights = [parameter for parameter in self._parameters.values() if parameter is not None and parameter.dim() == 2]
        if len(weights) != len(self._products):
            return
        for weight, prefix in zip(weights, self._products, strict=True):
            if isinstance(weight, QuantizedTensor):
                weight.form.delayed_scale = self._buffers[f"{prefix}weight_scale"]

    def _initialized(self, parameter: torch.nn.Parameter, initializer: Initializer) -> torch.nn.Parameter:
        if self._as_codes is None or parameter.dim() != 2:
            return super()._initialized(parameter, initializer)
        return self._as_codes.initialized(parameter, initializer)

    def _recipe(self, parameter: torch.Tensor) -> str:
        return recipe_text(type(self).__name__, parameter)

    def _state_names(self) -> list[str]:
        return [name for names in self._products.values() for name in names]

    @torch.no_grad()
    def reset_parameters(self, defer_init: bool = False) -> None:
        if defer_init:
            return
        for name in self._state_names():
            if self.get_buffer(name).is_meta:
                self._buffers[name] = torch.empty_like(self.get_buffer(name), device="cpu")
            self.get_buffer(name).zero_()
        self._link_codes()
        super().reset_parameters()  # codes of what is drawn have no scale of before
        self._link_codes()

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> ScaledModule:
        before = {name: self.get_buffer(name) for name in self._state_names()}
        codes: dict[str, Any] = {name: weight for name, weight in self._parameters.items() if isinstance(weight, QuantizedTensor)}
        self._parameters.update(dict.fromkeys(codes))
        try:
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        finally:  # a move that fails leaves a module with all its parameters, some of which may have moved
            self._parameters.update(codes)
            self._bring_state_home(before)
        try:
            for name, weight in codes.items():
                self._parameters[name] = weight.applied(fn)
        finally:
            self._link_codes()
        return self

    def _bring_state_home(self, before: dict[str, torch.Tensor]) -> None:
        for name, buffer in before.items():
            now = self.get_buffer(name)
            home = torch.device("meta" if now.is_meta else "cpu")
            if buffer.is_meta and not now.is_meta:  # to_empty() gives memory without values
                self._buffers[name] = torch.zeros_like(buffer, device=home)
            elif now.dtype != buffer.dtype or now.device != home:
                self._buffers[name] = buffer.to(home)

    def _load_from_state_dict(  # a history may come in any length; weights without a state begin one
        self, state_dict: dict[str, Any], prefix: str, metadata: Any, strict: bool, missing: list[str], *rest: Any
    ) -> None:
        if (theirs := prefix + extra_state.NAME) in state_dict:  # Transformer Engine's
            buffers = extra_state.buffers_of(state_dict.pop(theirs), list(self._products))
            state_dict.update({prefix + name: buffer for name, buffer in buffers.items()})
        else:
            self._begin_anew_for_weights_without_state(state_dict, prefix)
        wrong = []
        for name in self._state_names():
            loaded, buffer = state_dict.get(prefix + name), self.get_buffer(name)
            if loaded is None:
                continue
            if loaded.dtype != buffer.dtype:
                wrong.append(f"expected {prefix + name} of {buffer.dtype}, got {loaded.dtype}")
            elif name.endswith("_amax_history") and loaded.dim() == 1 and loaded.numel():
                self._buffers[name] = buffer.new_zeros(loaded.shape)
            elif name.endswith("weight_scale") and loaded.shape == buffer.shape:  # values become codes by it
                buffer.copy_(loaded)
        rest[-1].extend(wrong)
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, *rest)
        self._link_codes()
        optional = {prefix + name for name in self._state_names()}
        missing[:] = [key for key in missing if key not in optional]

    @torch.no_grad()
    def _begin_anew_for_weights_without_state(self, state_dict: dict[str, Any], prefix: str) -> None:
        """Scales of the weights before, and of what they made, would saturate or flush what others make."""
        if any(prefix + name in state_dict for name in self._state_names()):
            return
        weights = [name for name, parameter in self._parameters.items() if parameter is not None and parameter.dim() == 2]
        if any(prefix + name in state_dict for name in weights):
            for name in self._state_names():
                self.get_buffer(name).zero_()
