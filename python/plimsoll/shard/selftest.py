"""Whether a sharded step is the step of the whole model: one of each, compared."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import nn

from plimsoll.shard.fully_sharded import FullyShardedDataParallel
from plimsoll.shard.fully_sharded_optimizer import whole_parameters
from plimsoll.shard.sharded_parameters import held_parts
from plimsoll.shard.tensors import map_tensors


class SelfTest(NamedTuple):
    """Errors of each trained parameter by name: the largest, as a share of what rounding may do: at most 1."""

    gradients: dict[str, float]
    weights: dict[str, float]


def selftest(model: FullyShardedDataParallel, optimizer: torch.optim.Optimizer, backward: Callable[[nn.Module], Any]) -> SelfTest:
    """A step of `model`, which counts, beside the same step of a replica that is whole on every rank. Collective.

    Gradients have to be the average of the ranks', which is made here in float64, and the updated weights those of the same
    optimizer with these gradients: what goes wrong with sums, padding, shared, frozen or accumulated gradients shows. Takes the
    memory of the whole model and its optimizer once more.

    Args:
        optimizer: of model.parameters(), elementwise: SGD, Adam, AdamW, ....
        backward: called with each of the two: forward and backward passes on this rank's data. Both find the same random
            numbers.

    Raises:
        AssertionError: names the parameters that differ, and those that have the sum of the ranks instead.
    """
    replica = _replica(model)
    reference = _reference(model, optimizer, replica)
    random = torch.get_rng_state()
    expected = _gradients(replica, model, backward)
    torch.set_rng_state(random)
    optimizer.zero_grad()
    backward(model)
    found = _whole_gradients(model)

    size = model.world_size
    passes = max(1, model._arguments["ordered_passes"])
    # Sums of the same numbers in another order, each rounded to the dtype that gradients have or travel in.
    epsilon = max(torch.finfo(dtype).eps for dtype in (model.compute_dtype, model._arguments["reduce_dtype"], torch.float32))
    gradients: dict[str, float] = {}
    sums = []
    for name, gradient in found.items():
        total = expected[name].double()
        magnitude = total.abs()
        dist.all_reduce(total, group=model._ranks.group)
        dist.all_reduce(magnitude, group=model._ranks.group)
        bound = (magnitude + magnitude.mean()) * (16 * epsilon) + torch.finfo(torch.float32).tiny
        gradients[name] = _worst(gradient - total / (size * passes), bound / (size * passes))
        if gradients[name] > 1 and _worst(gradient - total / passes, bound / passes) <= 1:
            sums.append(name)
    _check("gradients", gradients, f"; the ranks' sum, and no average, have {sums}" if sums else "")

    for name, parameter in replica.named_parameters():
        parameter.grad = found[name].clone() if name in found else None
    optimizer.step()
    reference.step()
    with model.summon_full_params(volatile=True):  # a state dict may be the first rank's alone
        after = {name: parameter.detach() for name, parameter in model.named_parameters()}
        weights = {
            name: _worst(after[name] - parameter.detach(), parameter.detach().abs() * (4 * torch.finfo(torch.float32).eps))
            for name, parameter in replica.named_parameters()
            if name in found
        }
    _check("weights", weights, "")
    return SelfTest(gradients, weights)


def _replica(model: FullyShardedDataParallel) -> nn.Module:
    """The module inside, whole, without wrappers and in full precision."""
    with model.summon_full_params(volatile=True):
        copies: dict[int, Any] = {}
        for instance in reversed(model._instances()[1:]):
            copies[id(instance)] = copy.deepcopy(instance.module, copies)
        return copy.deepcopy(model.module, copies)


def _reference(model: FullyShardedDataParallel, optimizer: torch.optim.Optimizer, replica: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of the replica, with the state of the shards'."""
    state = model.gather_full_optim_state_dict(optimizer, recipient_rank=None)
    assert state is not None
    copies = dict(zip((whole.name for whole in whole_parameters(model)), replica.parameters(), strict=True))
    groups = [
        {**group, "params": [copies[state["param_names"][index]] for index in group["params"]]} for group in state["param_groups"]
    ]
    kind: Any = type(optimizer)
    reference: torch.optim.Optimizer = kind(groups)
    reference.load_state_dict({key: state[key] for key in ("state", "param_groups")})
    return reference


class _Narrow(nn.Module):
    """Takes what a FullyShardedDataParallel in mixed precision takes."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.module = module
        self._to = lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = map_tensors((args, kwargs), self._to)
        return self.module(*args, **kwargs)


def _gradients(
    replica: nn.Module, model: FullyShardedDataParallel, backward: Callable[[nn.Module], Any]
) -> dict[str, torch.Tensor]:
    """Gradients of this rank, of all passes, added up in float32."""
    narrow = copy.deepcopy(replica)
    if model.compute_dtype is not torch.float32:
        for parameter in narrow.parameters():
            parameter.data = parameter.data.to(model.compute_dtype)
        narrow = _Narrow(narrow, model.compute_dtype)
    sums = {name: torch.zeros(parameter.shape) for name, parameter in replica.named_parameters()}

    def add(to: torch.Tensor) -> Callable[[torch.Tensor], None]:
        def hook(parameter: torch.Tensor) -> None:
            to.add_(cast(torch.Tensor, parameter.grad))
            parameter.grad = None

        return hook

    for parameter, total in zip(narrow.parameters(), sums.values(), strict=True):
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(add(total))
    backward(narrow)
    return sums


def _whole_gradients(model: FullyShardedDataParallel) -> dict[str, torch.Tensor]:
    """Gradients of the parameters that have any, from all ranks' shards."""
    mine = {
        part.name: (part.shape, part.begin, part.end, part.of(part.leaf.grad))
        for part in held_parts(model)
        if part.leaf.grad is not None
    }
    everyone: Any = model._ranks.gather(mine)
    whole = {}
    for name, (shape, *_) in mine.items():
        whole[name] = torch.empty(shape)
        for held in everyone:
            _, begin, end, values = held[name]
            whole[name].view(-1)[begin:end] = values
    return whole


def _worst(error: torch.Tensor, bound: torch.Tensor) -> float:
    share = torch.where(error == 0, 0.0, error.abs().double() / bound).nan_to_num(nan=float("inf"))
    return share.max().item() if share.numel() else 0.0


def _check(what: str, errors: dict[str, float], more: str) -> None:
    different = {name: f"{error:.3g}" for name, error in errors.items() if error > 1}
    if different:
        raise AssertionError(
            f"selftest: expected the {what} of the whole model, got errors of {different} times what rounding may do{more}"
        )
