"""The methods of scaling side by side: one model, the same data and steps, each method's loss, range and cost."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from plimsoll.autoscale import policy as policies
from plimsoll.autoscale.report import report
from plimsoll.autoscale.transform import autoscale

SYMBOLS = 64
SEQUENCES, LENGTH = 8, 64
LAYERS = 2
LEARNING_RATE = 2e-3


class LanguageModel(nn.Module):
    """As a user of torch writes it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, width)
        self.positions = nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(
            width, max(1, width // 32), 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, LAYERS, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, SYMBOLS)

    def forward(self, symbols: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(symbols.shape[1])
        x = self.embedding(symbols) + self.positions.weight[: symbols.shape[1]]
        logits: torch.Tensor = self.head(self.layers(x, mask=mask, is_causal=True))
        return logits


def text(steps: int) -> torch.Tensor:
    """Batches of a language in which two symbols leave four choices for the third. [steps, sequences, length + 1]"""
    generator = torch.Generator().manual_seed(5)
    choices = torch.randint(SYMBOLS, (SYMBOLS, 8, 4), generator=generator)
    draws = torch.randint(4, (steps, SEQUENCES, LENGTH + 1), generator=generator)
    symbols = torch.zeros_like(draws)
    for place in range(1, LENGTH + 1):
        before, last = symbols[..., max(0, place - 2)], symbols[..., place - 1]
        symbols[..., place] = choices[last, before % 8, draws[..., place]]
    return symbols


@dataclass(frozen=True)
class Method:
    """A way to train: what is done to the model beforehand, and the scope of each forward pass."""

    name: str
    fine_grained: bool
    alters_model: bool
    prepare: Callable[[nn.Module], nn.Module]
    scope: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
    counted: Callable[[nn.Module], nn.Module] | None = None  # as prepare, where lost elements are counted
    scales_weights: bool = False


def _fp8(name: str) -> Method:
    from plimsoll.common import recipe
    from plimsoll.convert import convert

    recipes = {"fp8_delayed": recipe.DelayedScaling, "fp8_current": recipe.Float8CurrentScaling}

    def prepare(model: nn.Module) -> nn.Module:
        convert(model, recipe=recipes[name]())
        return model

    return Method(name, fine_grained=True, alters_model=False, prepare=prepare)


def method(name: str) -> Method:
    """fp32, a policy's name, or one of this library's recipes: fp8_current, fp8_delayed."""
    if name == "fp32":
        return Method(name, fine_grained=False, alters_model=False, prepare=lambda model: model)
    if name in ("fp8_current", "fp8_delayed"):
        return _fp8(name)
    if name.split("(")[0] not in NAMES:
        raise ValueError(f"compare: expected methods to be some of {', '.join(NAMES)}, got {name!r}")
    policy = policies.parse(name)
    return Method(
        name,
        policy.fine_grained,
        policy.alters_model,
        prepare=lambda model: autoscale(model, policy=policy),
        counted=lambda model: autoscale(model, policy=policy, counts_range=True),
        scales_weights=policy.alters_model,
    )


NAMES = ("fp32", *policies.NAMES, "fp8_current", "fp8_delayed")


def _groups(model: nn.Module, scaled: bool) -> list[dict[str, Any]]:
    """Weights that were brought to unit size get steps of the size that they had."""
    matrices = [p for name, p in model.named_parameters() if p.dim() > 1 and "embedding" not in name and "positions" not in name]
    if not scaled:
        return [{"params": list(model.parameters())}]
    chosen = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in chosen]
    return [{"params": others}] + [{"params": [p], "lr": LEARNING_RATE * p.shape[1] ** 0.5} for p in matrices]


class Training:
    """One method at one width, a step at a time, so that methods take turns."""

    def __init__(self, method: Method, width: int, prepare: Callable[[nn.Module], nn.Module]) -> None:
        torch.manual_seed(0)
        self.model = prepare(LanguageModel(width))
        self.optimizer = torch.optim.AdamW(_groups(self.model, method.scales_weights), lr=LEARNING_RATE, fused=True)
        self.losses: list[float] = []
        self.seconds: list[float] = []

    def step(self, batch: torch.Tensor) -> None:
        start = time.thread_time()
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        self.optimizer.step()
        self.seconds.append(time.thread_time() - start)
        self.losses.append(loss.item())

    @property
    def final_loss(self) -> float:
        """The mean of the last tenth."""
        return statistics.fmean(self.losses[-max(1, len(self.losses) // 10) :])


@dataclass
class Row:
    """Results of one method."""

    method: Method
    losses: dict[int, float] = field(default_factory=dict)  # by width
    seconds: float = 0.0  # a step at the largest width, median
    out_of_range: float | None = None  # share of the elements of results, at the largest width


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _out_of_range(each: Method, width: int, batches: torch.Tensor) -> float | None:
    if each.counted is None:
        return None
    training = Training(each, width, each.counted)
    for batch in batches:
        training.step(batch)
    return report(training.model).out_of_range_share


def compare(names: list[str], widths: list[int], steps: int) -> list[Row]:
    """Trains each method at each width, step by step in turn, on one thread."""
    rows = [Row(method(name)) for name in names]
    batches = text(steps)
    with _one_thread():
        for width in widths:
            trainings = [Training(row.method, width, row.method.prepare) for row in rows]
            for batch in batches:
                for training in trainings:
                    training.step(batch)
            for row, training in zip(rows, trainings, strict=False):
                row.losses[width] = training.final_loss
                row.seconds = statistics.median(training.seconds)
        for row in rows:
            row.out_of_range = _out_of_range(row.method, widths[-1], batches[: max(1, steps // 10)])
    return rows
