"""Scopes: inside one, modules compute under its recipe."""

from __future__ import annotations

from contextlib import ContextDecorator
from typing import Any

import torch

from plimsoll import _scope
from plimsoll.common.recipe import Auto, DelayedScaling, Recipe
from plimsoll.pytorch.arguments import DTYPES, FORMATS, check_enabled, check_flag, format_of, shown
from plimsoll.pytorch.distributed import NamedGroup, is_initialized, named_group
from plimsoll.pytorch.layer_names import LayerNames

_enter = torch.ops.plimsoll.enter_fp8_scope.default


class _NamesInScopes(LayerNames):
    """Names the layers that are called in a recipe's scopes. It lives as long as the recipe: torch.compile makes a graph anew where
    another hook of all modules is in force."""

    def see(self, module: torch.nn.Module) -> None:
        if module in self._paths:
            return
        scope = innermost_scope()
        if scope is not None and scope.names is self:
            self.find_paths(module)


def _names_of(recipe: Auto) -> _NamesInScopes:
    controller = recipe.controller()
    if controller.names is None:
        controller.names = _NamesInScopes()
    names: _NamesInScopes = controller.names
    return names


class Shown:
    """State of a scope that Python reads. recipe: None for high precision."""

    def __init__(self, recipe: Recipe | None) -> None:
        self.recipe = recipe
        # By high-precision format; made here, where torch.compile does not look.
        self.texts = {} if recipe is None else {name: recipe.to_json(name) for name in DTYPES}
        self.follows_dtypes = recipe is not None and recipe.high_precision_format is None
        self.names = _names_of(recipe) if isinstance(recipe, Auto) else None
        self.has_functions = any('_function"' in text for text in self.texts.values())

    def as_entered(self) -> list[str]:
        """The recipes of the library's scope."""
        return list(self.texts.values()) if self.follows_dtypes else list(self.texts.values())[:1]


def innermost_scope() -> Shown | None:
    """Innermost scope of this thread."""
    shown: Shown | None = _scope.in_force()
    return shown


def name_layers(model: torch.nn.Module) -> None:
    """For a model whose forward has opened the scope: paths begin at it, not at the parts that it calls."""
    scope = innermost_scope()
    if scope is not None and scope.names is not None:
        scope.names.see(model)


def current_recipe() -> Recipe | None:
    """Recipe of the innermost scope of this thread; None outside all and where it is not enabled."""
    scope = innermost_scope()
    return None if scope is None else scope.recipe


def high_precision_dtype(of: torch.Tensor) -> torch.dtype:
    """Dtype of all that is not quantized: as the recipe says, else that of torch.autocast where it is on for the tensor's device
    ("meta" counts as the CPU), else the tensor's."""
    recipe = current_recipe()
    if recipe is not None and recipe.high_precision_format is not None:
        return DTYPES[recipe.high_precision_format]
    device = "cpu" if of.is_meta else of.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else of.dtype


def recipe_text(where: str, parameter: torch.Tensor) -> str:
    """Recipe that a layer with this parameter computes under, as the operators read it; "" where they ask the library's scope. A
    graph holds the text, and functions of Python have numbers in it."""
    scope = innermost_scope()
    if not torch.compiler.is_compiling() and parameter.dtype in FORMATS and (scope is None or not scope.has_functions):
        return ""
    wide = format_of(where, high_precision_dtype(parameter))
    return f'"{wide}"' if scope is None or scope.recipe is None else scope.texts[wide]


def _reducing_ranks(group: Any) -> NamedGroup | None:
    """None where there is nobody to reduce with. group None: all ranks, where there are several processes at all."""
    if group is None and not is_initialized():
        return None
    ranks = named_group("autocast", "fp8_group (amax_reduction_group)", group)
    return ranks if ranks.size > 1 else None


class autocast(ContextDecorator, _scope.Scope):
    """Modules inside compute under `recipe` (None: DelayedScaling()); with enabled=False in high precision.

    Belongs to the thread; the inner of two scopes holds inside it. A backward pass uses the recipe of its forward pass.
    When the outermost enabled scope ends, the scales of inputs and weights follow from what was seen; those of gradients
    when a backward pass ends. Left by an exception, a scope changes no scale; under no_grad nothing is recorded.

    amax_reduction_group: a process group, None for all ranks. At these two ends amaxes under DelayedScaling(reduce_amax=True)
    become the largest of its ranks', so all of them go on with equal scales. Ranks that recorded another number of amaxes
    raise RuntimeError.

    recipe: of plimsoll.common.recipe. Auto is made once and opened in each step; its end_step() follows optimizer.step().
    """

    def __init__(
        self,
        enabled: bool = True,
        calibrating: bool = False,
        recipe: Recipe | None = None,
        amax_reduction_group: Any = None,
    ) -> None:
        check_enabled("autocast", enabled, "recipe")
        if check_flag("autocast", "calibrating", calibrating):
            raise NotImplementedError("autocast: calibrating is left out; the first use of a tensor sets its first scale")
        if recipe is not None and not isinstance(recipe, Recipe):
            raise TypeError(f"autocast: expected recipe a plimsoll.common.recipe.Recipe, got {recipe!r}")
        self._arguments = (enabled, calibrating, recipe, amax_reduction_group)
        self._recipe = (DelayedScaling() if recipe is None else recipe) if enabled else None
        if self._recipe is not None:
            self._recipe.check()
            _reducing_ranks(amax_reduction_group)

    def _recreate_cm(self) -> autocast:  # as a decorator: a scope for each call
        return type(self)(*self._arguments)

    def _open(self) -> None:
        shown, group = Shown(self._recipe), self._arguments[3]
        name, size = (None if self._recipe is None else _reducing_ranks(group)) or (None, 1)
        if isinstance(self._recipe, Auto):
            number = self._recipe.enter(self._owner, name, size, chosen=group is not None)
        else:
            number = _enter(self._owner, shown.as_entered(), group=name, ranks=size, chosen=group is not None)
        _scope.show(number, shown)

    def __reduce__(self) -> Any:  # a copy owns its own scopes
        return type(self), self._arguments


def fp8_autocast(
    enabled: bool = True,
    calibrating: bool = False,
    fp8_recipe: Recipe | None = None,
    fp8_group: Any = None,
    _graph: bool = False,
) -> autocast:
    """:class:`autocast` under the names of Transformer Engine's first releases."""
    check_enabled("fp8_autocast", enabled, "fp8_recipe")
    if fp8_recipe is not None and not isinstance(fp8_recipe, Recipe):
        raise TypeError(f"fp8_autocast: expected fp8_recipe a plimsoll.common.recipe.Recipe, got {shown(fp8_recipe)}")
    return autocast(enabled=enabled, calibrating=calibrating, recipe=fp8_recipe, amax_reduction_group=fp8_group)
