"""convert() and convert_back()."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import pairwise

import torch

from plimsoll.common.recipe import DelayedScaling, Recipe
from plimsoll.convert.attention import swap_attention
from plimsoll.convert.linear import is_conv1d, swap_linear
from plimsoll.convert.norm_pairs import ConvertedSequential, is_pair
from plimsoll.convert.reasons import Model, why_not_attention, why_not_linear
from plimsoll.convert.scoped import Scoped, enter_scope, leave_scope
from plimsoll.convert.swap import Converted, restore, swap
from plimsoll.convert.transformer import ConvertedTransformerEncoder, ConvertedTransformerEncoderLayer
from plimsoll.pytorch.autocast import autocast
from plimsoll.pytorch.scaled_module import ScaledModule


@dataclass(frozen=True)
class Entry:
    """A module of the model. text: what it was converted to, or why it was kept."""

    path: str
    kind: str
    text: str


@dataclass
class ConversionReport:
    """Report of a convert(). Printed, it is a table."""

    converted: list[Entry] = field(default_factory=list)
    kept: list[Entry] = field(default_factory=list)  # of the modules that hold matrices

    def __str__(self) -> str:
        entries = self.converted + self.kept
        width = max((len(entry.path) for entry in entries), default=0)
        kinds = max((len(entry.kind) for entry in entries), default=0)

        def table(title: str, rows: list[Entry]) -> list[str]:
            return [f"{title} {len(rows)}", *(f"  {row.path:{width}}  {row.kind:{kinds}}  {row.text}" for row in rows)]

        return "\n".join(table("converted", self.converted) + table("kept", self.kept))


class _Exclusion:
    def __init__(self, patterns: Iterable[str]) -> None:
        if not isinstance(patterns, Iterable):
            raise TypeError(f"convert: expected exclude a list of paths, got {patterns!r}")
        self.patterns = [patterns] if isinstance(patterns, str) else list(patterns)
        if not all(isinstance(pattern, str) for pattern in self.patterns):
            raise TypeError(f"convert: expected exclude a list of paths, got {self.patterns!r}")
        self._unused = set(self.patterns)

    def holds(self, path: str) -> bool:
        """Whether the module, or one that it is part of, is excluded."""
        parts = path.split(".")
        prefixes = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
        matching = [pattern for pattern in self.patterns if any(fnmatchcase(prefix, pattern) for prefix in prefixes)]
        self._unused -= set(matching)
        return bool(matching)

    def check(self) -> None:
        if self._unused:
            raise ValueError(f"convert: expected exclude to name modules, got {sorted(self._unused)}, which match none")


class _Plan:
    """Plan of a conversion, made before anything is changed."""

    def __init__(self, model: Model, exclude: _Exclusion, shared_weights: bool) -> None:
        self.report = ConversionReport()
        self.linears: list[torch.nn.Linear] = []
        self.attentions: list[torch.nn.MultiheadAttention] = []
        self._model, self._exclude, self._shared_weights = model, exclude, shared_weights
        self._settled: set[int] = set()  # children that go with their parents, by id
        for path, module in model.modules:
            excluded = exclude.holds(path)
            if id(module) in self._settled or isinstance(module, (Converted, ScaledModule)):
                continue
            if isinstance(module, torch.nn.MultiheadAttention):
                self._attention(path, module, excluded)
            elif isinstance(module, torch.nn.TransformerEncoderLayer):
                self._encoder_layer(path, module)
            elif isinstance(module, torch.nn.Linear) or is_conv1d(module):
                self._linear(path, module, excluded)
            elif any(p is not None and p.dim() >= 2 for p in module._parameters.values()):
                self._keep(path, module, "no counterpart")
            elif "Linear" in type(module).__name__ and hasattr(module, "in_features"):
                self._keep(path, module, "it is not torch.nn.Linear")

    def _keep(self, path: str, module: torch.nn.Module, reason: str) -> None:
        self.report.kept.append(Entry(path, type(module).__name__, reason))

    def _converts(self, path: str, module: torch.nn.Module, text: str) -> None:
        self.report.converted.append(Entry(path, type(module).__name__, text))

    def _linear(self, path: str, module: torch.nn.Linear, excluded: bool) -> None:
        reason = "excluded" if excluded else why_not_linear(self._model, path, module, self._shared_weights)
        if reason is not None:
            return self._keep(path, module, reason)
        self.linears.append(module)
        rows, columns = module.weight.shape
        self._converts(path, module, f"{rows} -> {columns}" if is_conv1d(module) else f"{columns} -> {rows}")

    def _attention(self, path: str, module: torch.nn.MultiheadAttention, excluded: bool) -> None:
        reason = "excluded" if excluded else why_not_attention(module)
        self._settled.add(id(module.out_proj))
        if reason is not None:
            return self._keep(path, module, reason)
        self.attentions.append(module)
        self._converts(path, module, f"{module.num_heads} heads, {module.embed_dim} wide")

    def _encoder_layer(self, path: str, module: torch.nn.TransformerEncoderLayer) -> None:
        """In evaluation torch's layer reads all weights and calls no child, if its attention is torch's."""
        attention = module.self_attn
        if isinstance(attention, Converted):
            return
        if self._exclude.holds(f"{path}.self_attn" if path else "self_attn") or why_not_attention(attention) is not None:
            for name in ("linear1", "linear2"):
                child = getattr(module, name)
                self._settled.add(id(child))
                self._keep(f"{path}.{name}" if path else name, child, "its layer's attention is kept, and may bypass it")


def _swap_containers(model: Model, report: ConversionReport) -> None:
    """Converts the containers whose forward has to know that children were converted."""
    for path, module in model.modules:
        if type(module) is torch.nn.TransformerEncoder:
            if any(isinstance(part, Converted) for part in module.modules()):
                swap(module, ConvertedTransformerEncoder)
        elif type(module) is torch.nn.TransformerEncoderLayer:
            if module.norm_first and is_pair(module.norm2, module.linear1):
                report.converted.append(Entry(path, type(module).__name__, "norm2 and linear1 as one"))
                swap(module, ConvertedTransformerEncoderLayer)
        elif type(module) is torch.nn.Sequential and "forward" not in module.__dict__:
            children = list(module.named_children())
            pairs = [f"{a} and {b} as one" for (a, norm), (b, linear) in pairwise(children) if is_pair(norm, linear)]
            if pairs:
                report.converted.append(Entry(path, type(module).__name__, ", ".join(pairs)))
                swap(module, ConvertedSequential)


def convert(
    module: torch.nn.Module,
    recipe: Recipe | None = None,
    *,
    exclude: Iterable[str] = (),
    shared_weights: bool = False,
) -> ConversionReport:
    """Makes the matrix products of a model ours, in place: torch.nn.Linear, torch.nn.MultiheadAttention (and with it
    torch.nn's transformer layers), Hugging Face's Conv1D, and a norm before a Linear in a torch.nn.Sequential.

    Modules and parameters stay the same objects under the same names, so an optimizer made before goes on. Outside scopes
    the model computes what it did, within FP32 rounding. recipe: the model's forward is a scope of it; None: open
    plimsoll.pytorch.autocast yourself. exclude: paths of modules to keep, with * and ?; a path stands for all below it.
    shared_weights: convert layers whose weight another module holds, too (a tied head). Raises TypeError or ValueError
    before anything has changed.
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"convert: expected module a torch.nn.Module, got {module!r}")
    if recipe is not None:
        if not isinstance(recipe, Recipe):
            raise TypeError(f"convert: expected recipe a plimsoll.common.recipe.Recipe, got {recipe!r}")
        autocast(recipe=recipe)
    model, exclusion = Model(module), _Exclusion(exclude)
    plan = _Plan(model, exclusion, shared_weights)
    exclusion.check()
    for linear in plan.linears:
        swap_linear(linear)
    for attention in plan.attentions:
        swap_attention(attention)
    _swap_containers(model, plan.report)
    if recipe is not None:
        enter_scope(module, recipe)
    if isinstance(recipe, DelayedScaling):
        for part in module.modules():
            if isinstance(part, ScaledModule):
                part.size_histories(recipe.amax_history_len)
    return plan.report


def convert_back(module: torch.nn.Module) -> None:
    """Undoes convert(), also in a copy and in what was pickled. Parameters stay as they are; the scaling state goes."""
    for part in list(module.modules()):
        if isinstance(part, Scoped):
            leave_scope(part)
        if isinstance(part, Converted):
            restore(part)
