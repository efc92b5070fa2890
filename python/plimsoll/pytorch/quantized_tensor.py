"""A parameter held as FP8 codes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch

from plimsoll._torch_internals import new_wrapper, no_torch_function, schema_of, set_data, tree_map_only

aten = torch.ops.aten
_layer_pass = torch.ops.plimsoll.layer_pass.default
_layer_pass_backward = torch.ops.plimsoll.layer_pass_backward.default
_WEIGHTS = (4, 6)  # among the inputs of layer_pass: LayerInput of plimsoll/bind/layer.h
# One scale, a power of two, so that every code is a number of bfloat16 and float32.
ONE_SCALE = '{"name": "fp8-current", "power_of_two": true}'


@dataclass
class Form:
    """The form in which a weight is codes, and what it holds beside those that its values are read from. Views share it."""

    recipe: str = ONE_SCALE  # JSON, of the codes
    grad_codes: torch.Tensor | None = None  # codes that the gradient's product reads, where the recipe has others there
    grad_scale: torch.Tensor | None = None
    amax: torch.Tensor | None = None  # [1], of the values that were quantized; not kept under ONE_SCALE
    delayed_scale: torch.Tensor | None = None  # the module's buffer, by which delayed scaling quantizes

    def mapped(self, fn: Callable[[torch.Tensor], torch.Tensor]) -> Form:
        codes, scale, amax = (None if kept is None else fn(kept) for kept in (self.grad_codes, self.grad_scale, self.amax))
        return Form(self.recipe, codes, scale, amax, self.delayed_scale)

    def encode(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Form]:
        """(codes, scale) of the values and the form that goes with them."""
        codes, scale, amax, *turned = torch.ops.plimsoll.quantize_weight(
            values.detach(), recipe=self.recipe, delayed_scale=self.delayed_scale
        )
        grad_codes, grad_scale = turned or (None, None)
        kept = None if self.recipe == ONE_SCALE else amax
        return codes, _flat(scale), Form(self.recipe, grad_codes, grad_scale, kept, self.delayed_scale)


def _flat(scale: torch.Tensor) -> torch.Tensor:
    return scale.view(1) if scale.numel() == 1 else scale


class QuantizedTensor(torch.Tensor):
    """A matrix of `dtype` whose values are `scale` times the E4M3 `codes` [rows, cols]. scale: [1], or one for each row or
    block, as the recipe of `form` has them.

    Modules read the codes. Every other function sees the values, in `dtype`, and gives plain tensors; what writes into
    the tensor or a view of it (an optimizer's step, copy_, an initialiser, an index) writes values, which are quantized
    anew, by the rule of the recipe. ``torch.save`` and state dicts keep the codes.
    """

    codes: torch.Tensor
    scale: torch.Tensor
    form: Form
    _high_precision_init_val: torch.Tensor | None = None

    @staticmethod
    def __new__(
        cls,
        codes: torch.Tensor,
        scale: torch.Tensor,
        dtype: torch.dtype,
        requires_grad: bool = False,
        form: Form | None = None,
    ) -> QuantizedTensor:
        made: QuantizedTensor = new_wrapper(cls, codes, dtype, requires_grad)
        made.codes, made.scale, made.form = codes, scale, form or Form()
        return made

    @classmethod
    def quantize(cls, values: torch.Tensor, recipe: str = ONE_SCALE) -> QuantizedTensor:
        codes, scale, form = Form(recipe).encode(values)
        return cls(codes, scale, values.dtype, form=form)

    def held(self) -> list[torch.Tensor | None]:
        """Codes, scale, those of the gradient's product, amax, as the operators take them."""
        form = self.form
        amax = None if form.amax is None else form.amax.clone()  # a scope records it at its end, after later writes
        return [self.codes, self.scale, form.grad_codes, form.grad_scale, amax]

    def dequantize(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The values, by default in the tensor's dtype."""
        values: torch.Tensor = torch.ops.plimsoll.dequantize_weight(
            self.codes, self.scale, recipe=self.form.recipe, dtype=self.dtype if dtype is None else dtype
        )
        return values

    def float(self, *_layout: Any, **_keywords: Any) -> torch.Tensor:  # a master weight, of a tensor of FP32, too
        return self.dequantize(torch.float32)

    def quantize_(self, values: torch.Tensor) -> QuantizedTensor:
        """Takes the values over, in place; codes of the same form as they are."""
        form = self.form
        if isinstance(values, QuantizedTensor) and values.form.recipe == form.recipe:
            codes, scale, made = values.codes, values.scale, values.form
        else:
            codes, scale, made = form.encode(values.dequantize() if isinstance(values, QuantizedTensor) else values)
        for here, now in (
            (self.codes, codes),
            (self.scale, scale),
            (form.grad_codes, made.grad_codes),
            (form.grad_scale, made.grad_scale),
            (form.amax, made.amax),
        ):
            if here is not None and now is not None:
                here.copy_(now)
        return self

    def get_high_precision_init_val(self) -> torch.Tensor | None:
        """Values that the initialiser drew, where quantized_model_init(preserve_high_precision_init_val=True) kept it."""
        return self._high_precision_init_val

    def clear_high_precision_init_val(self) -> None:
        self._high_precision_init_val = None

    def applied(self, fn: Callable[[torch.Tensor], torch.Tensor]) -> torch.nn.Parameter:
        """Result of torch.nn.Module._apply(fn) for the parameter: the same object with the same codes, in another dtype
        where fn gives one; a new one on the device "meta" alone, which has no codes."""
        probe = fn(torch.empty(0, dtype=self.dtype, device=self.device))
        if probe.is_meta:
            made = torch.nn.Parameter(torch.empty(self.shape, dtype=probe.dtype, device="meta"), self.requires_grad)
            if self.grad is not None:
                made.grad = fn(self.grad)
            return made
        codes, scale = _moved(self.codes, fn), _moved(self.scale, fn)
        form = self.form.mapped(lambda tensor: _moved(tensor, fn))
        grad = None if self.grad is None else fn(self.grad)
        self.codes, self.scale, self.form = codes, scale, form  # together: fn may fail, as where a device is full
        if probe.dtype != self.dtype:
            # The object stays who it is, as with `parameter.data = values` of another dtype on any parameter.
            set_data(self, QuantizedTensor(self.codes, self.scale, probe.dtype, form=self.form))
        if self.grad is not None and grad is not None:
            self.grad.data = grad
        return self  # type: ignore[return-value]

    # `.data = values` quantizes them; torch would look for a storage.
    @property
    def data(self) -> torch.Tensor:
        return self.detach()

    @data.setter
    def data(self, values: torch.Tensor) -> None:
        with torch.no_grad():
            self.copy_(values)

    # Parts that torch.compile takes a tensor apart into. Those of the form are None where it has none.
    grad_codes = property(lambda self: self.form.grad_codes)
    grad_scale = property(lambda self: self.form.grad_scale)
    amax = property(lambda self: self.form.amax)
    delayed_scale = property(lambda self: self.form.delayed_scale)

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        parts = ["codes", "scale", *(field.name for field in fields(Form) if field.name != "recipe")]
        return [name for name in parts if getattr(self, name) is not None], (self.dtype, self.form.recipe)

    @staticmethod
    def __tensor_unflatten__(parts: dict[str, torch.Tensor], context: Any, _size: Any, _stride: Any) -> QuantizedTensor:
        dtype, recipe = context
        rest = {name: part for name, part in parts.items() if name not in ("codes", "scale")}
        return QuantizedTensor(parts["codes"], parts["scale"], dtype, form=Form(recipe, **rest))

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        scale = self.scale.item() if self.scale.numel() == 1 else tuple(self.scale.shape)
        return f"QuantizedTensor({self.dequantize()}, scale={scale})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        is_parameter = isinstance(self, torch.nn.Parameter)
        state = {name: value for name, value in self.__dict__.items() if name not in ("codes", "scale", "form", "_is_param")}
        form = tuple(getattr(self.form, field.name) for field in fields(Form))
        return _rebuild, (self.codes, self.scale, self.dtype, self.requires_grad, is_parameter, state, form)

    __torch_function__ = no_torch_function

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (aten.detach.default, aten.alias.default):
            return cls(args[0].codes, args[0].scale, args[0].dtype, form=args[0].form)
        if func is aten.clone.default:
            return cls(args[0].codes.clone(), args[0].scale.clone(), args[0].dtype, form=args[0].form.mapped(torch.clone))
        both = func is aten.copy_.default and isinstance(args[0], cls) and isinstance(args[1], cls)
        if both and args[0].shape == args[1].shape:
            return args[0].quantize_(args[1])
        if func in (_layer_pass, _layer_pass_backward):
            return _compiled_layer(func, args, kwargs)
        return _on_values(func, args, kwargs)


def _compiled_layer(func: Any, args: Any, kwargs: Any) -> Any:
    """A layer's pass in a compiled graph, with the codes of its weights handed over (plimsoll/bind/traced_layer.h)."""

    def placed(tensors: Any) -> list[torch.Tensor | None]:  # their values are not read
        def shaped(one: QuantizedTensor) -> torch.Tensor:
            return one.codes.new_empty(1, dtype=one.dtype).expand(one.shape)

        return [shaped(each) if isinstance(each, QuantizedTensor) else each for each in tensors]

    if func is _layer_pass_backward:
        return func(*args, **{**kwargs, "parameters": placed(kwargs["parameters"])})
    inputs, *rest = args
    weights = [inputs[place] for place in _WEIGHTS if inputs[place] is not None]
    held = [part for one in weights for part in (*(one.held() if isinstance(one, QuantizedTensor) else [None] * 5), None)]
    recipes = [one.form.recipe if isinstance(one, QuantizedTensor) else "" for one in weights]
    return func(placed(inputs), *rest, **{**kwargs, "held": held, "held_recipes": recipes})


class QuantizedView(torch.Tensor):
    """A view of the values of a QuantizedTensor: writing to it quantizes them anew."""

    of: QuantizedTensor
    path: tuple[Callable[[torch.Tensor], torch.Tensor], ...]  # views, each of the one before; the first of the values

    @staticmethod
    def __new__(
        cls, of: QuantizedTensor, path: tuple[Callable[[torch.Tensor], torch.Tensor], ...], like: torch.Tensor
    ) -> QuantizedView:
        made: QuantizedView = new_wrapper(cls, like, like.dtype, device=of.device)
        made.of, made.path = of, path
        return made

    def inside(self, values: torch.Tensor) -> torch.Tensor:
        """This view of the values of the whole tensor."""
        for step in self.path:
            values = step(values)
        return values

    def dequantize(self) -> torch.Tensor:
        return self.inside(self.of.dequantize())

    def tolist(self) -> Any:
        return self.dequantize().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        return self.dequantize().numpy(force=force)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return repr(self.dequantize())

    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        return self.dequantize().clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.dequantize().clone().__reduce_ex__(protocol)

    __torch_function__ = no_torch_function

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _on_values(func, args, kwargs or {})


def _on_values(func: Any, args: Any, kwargs: Any) -> Any:
    """func on the values; those that it wrote go back into the codes."""
    if func.is_view:
        return _view(func, args[0], args[1:], kwargs)
    read: dict[int, tuple[QuantizedTensor, torch.Tensor]] = {}  # values that views of one tensor share, by its codes
    written: set[int] = set()
    owners: dict[int, torch.Tensor] = {}

    def values_of(tensor: QuantizedTensor | QuantizedView, writes: bool) -> torch.Tensor:
        of = tensor.of if isinstance(tensor, QuantizedView) else tensor
        key = id(of.codes)
        if key not in read:
            read[key] = of, of.dequantize()
        values = tensor.inside(read[key][1]) if isinstance(tensor, QuantizedView) else read[key][1]
        if writes:
            written.add(key)
            owners[id(values)] = tensor
        return values

    def opened(argument: Any, value: Any) -> Any:
        writes = argument.alias_info is not None and argument.alias_info.is_write
        return tree_map_only((QuantizedTensor, QuantizedView), lambda tensor: values_of(tensor, writes), value)

    schema = schema_of(func).arguments
    named = {argument.name: argument for argument in schema}
    opened_args = [opened(argument, value) for argument, value in zip(schema, args, strict=False)]
    result = func(*opened_args, **{name: opened(named[name], value) for name, value in kwargs.items()})
    for key in written:
        of, values = read[key]
        of.quantize_(values)
    return tree_map_only(torch.Tensor, lambda made: owners.get(id(made), made), result) if owners else result


def _view(func: Any, source: QuantizedTensor | QuantizedView, rest: Any, kwargs: Any) -> Any:
    """The view of `source` that func makes; of func that makes several, each."""
    of, path = (source.of, source.path) if isinstance(source, QuantizedView) else (source, ())

    def made(values: torch.Tensor) -> Any:
        return func(values, *rest, **kwargs)

    like = made(torch.empty_strided(source.shape, source.stride(), dtype=source.dtype, device="meta"))
    if isinstance(like, torch.Tensor):
        return QuantizedView(of, (*path, made), like)

    def part(place: int) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda values: made(values)[place]

    return [QuantizedView(of, (*path, part(place)), each) for place, each in enumerate(like)]


def _moved(kept: torch.Tensor, fn: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """fn(kept) where it has the same dtype: what changes dtypes is meant for the values."""
    moved = fn(kept)
    return moved if moved.dtype == kept.dtype else kept


def _rebuild(
    codes: torch.Tensor,
    scale: torch.Tensor,
    dtype: torch.dtype,
    requires_grad: bool,
    is_parameter: bool,
    state: dict[str, Any] | None = None,
    form: tuple[Any, ...] = (),
) -> QuantizedTensor:
    """state: what the user or a module has hung on the parameter; None in files from before it was kept, as `form` is."""
    made = QuantizedTensor(codes, scale, dtype, requires_grad, Form(*form))
    made.__dict__.update(state or {})
    if is_parameter:
        made._is_param = True
    return made


torch.serialization.add_safe_globals([_rebuild])
