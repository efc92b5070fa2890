"""Map of a model's values in FP16: a row a block, a column a tensor of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

# Names of a T5's sub-layers, in the order in which they run.
SUB_LAYERS = {"SelfAttention": "self-attention", "EncDecAttention": "cross-attention", "DenseReluDense": "feed-forward"}
PLACES = ("stream", "normed", "q", "k", "v", "o", "wi", "wi_0", "wi_1", "hidden", "wo")

Bits = float | None  # to the format's largest number, less than 0 beyond it; None: Inf or NaN


@dataclass
class HeadroomMap:
    """bits: of each value, by the name that the watch gives it: "encoder.block.0.layer.1.DenseReluDense.wo/output"."""

    title: str
    bits: dict[str, Bits] = field(default_factory=dict)

    @property
    def overflows(self) -> int:
        return sum(bits is None or bits < 0 for bits in self.bits.values())


@dataclass(frozen=True)
class Place:
    row: str
    group: str
    column: str


def _sub_layers(names: list[str]) -> dict[str, str]:
    """Module in each sub-layer, such as "encoder.block.0.layer.1", whose norm's name does not tell it."""
    found = (re.match(r"(.*\.layer\.\d+)\.(\w+)\.", name) for name in names)
    return {match[1]: match[2] for match in found if match and match[2] in SUB_LAYERS}


def _place(name: str, sub_layers: dict[str, str]) -> Place:
    module, _, role = name.rpartition("/")
    if match := re.match(r"(\w+)\.block\.(\d+)\.layer\.\d+", module):
        last = module.rpartition(".")[2]
        of_norm = "normed" if role == "output" else "stream"
        column = of_norm if last == "layer_norm" else "hidden" if role == "hidden" else last
        return Place(f"{match[1]} {match[2]}", SUB_LAYERS.get(sub_layers.get(match[0], ""), ""), column)
    if module.endswith(".final_layer_norm"):
        column = "normed" if role == "output" else "stream"
        return Place(f"{module.partition('.')[0]} end", SUB_LAYERS["SelfAttention"], column)
    if match := re.match(r"(\w+\.\d+)\.(.+)", module):
        return Place(match[1], "", f"{match[2]}/{role}")
    return Place(module, "" if not sub_layers else SUB_LAYERS["SelfAttention"], "stream" if sub_layers else role)


def places(names: list[str]) -> dict[str, Place]:
    sub_layers = _sub_layers(names)
    return {name: _place(name, sub_layers) for name in names}


def rows_of(found: list[Place]) -> list[str]:
    """Each stack's blocks by number, its end, then what follows."""

    def order(row: str) -> tuple[int, str, float]:
        stack, _, block = row.replace(".", " ").rpartition(" ")
        stacks = ["encoder", "decoder"]
        rank = stacks.index(stack) if stack in stacks else len(stacks) + (not block.isdecimal())
        return (rank, stack, float(block) if block.isdecimal() else float("inf"))

    return sorted({place.row for place in found}, key=order)


def columns_of(found: list[Place]) -> list[tuple[str, str]]:
    """(group, column), in the order in which they are computed; those of no known place by name."""
    groups = list(SUB_LAYERS.values())

    def order(column: tuple[str, str]) -> tuple[int, int, str]:
        group, name = column
        return (
            groups.index(group) if group in groups else len(groups),
            PLACES.index(name) if name in PLACES else len(PLACES),
            name,
        )

    return sorted({(place.group, place.column) for place in found}, key=order)
