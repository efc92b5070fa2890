"""An optimizer whose state is spread over the ranks (ZeRO-1), with fairscale's interface. Who updates what, and how the others
get it, is C++'s (plimsoll/shard/optimizer/parameter_shares.h)."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim import SGD, Optimizer

from plimsoll.shard.fairscale_names import ShardedOptimizerNames
from plimsoll.shard.ranks import ranks_of
from plimsoll.shard.tensors import map_tensors


def _without_parameters(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


class OSS(ShardedOptimizerNames, Optimizer):
    """`optim`, any torch.optim.Optimizer class, with the state of each parameter on one rank.

    Every rank has all parameters and the averaged gradients of its own (those of a
    :class:`~plimsoll.shard.ShardedDataParallel`, or all, of DistributedDataParallel), updates its share and sends it to
    the others. The share is by size, in order: each parameter goes to the rank with the least so far.

    Args:
        params: as any optimizer's.
        optim: the class; further arguments are its own. The optimizer of this rank's share is ``.optim``.
        group: of torch.distributed; all ranks if None.
        broadcast_buffer_size: accepted, with a warning where it is set; what travels together is chosen here.
        broadcast_fp16: parameters travel in fp16, on which all ranks, this one too, are rounded.
        force_broadcast_object: accepted; states travel as objects anyway.
    """

    optim: Optimizer

    def __init__(
        self,
        params: Any,
        optim: type[Optimizer] = SGD,
        group: Any = None,
        broadcast_buffer_size: int = -1,
        broadcast_fp16: bool = False,
        force_broadcast_object: bool = False,
        **default: Any,
    ) -> None:
        self._built = False
        super().__init__(params, default)
        self._ranks = ranks_of(group)
        self.group, self.rank, self.world_size = self._ranks.group, self._ranks.rank, self._ranks.size
        if broadcast_buffer_size >= 0:
            logging.warning("OSS: broadcast_buffer_size has no effect")
        self.broadcast_fp16, self.force_broadcast_object = broadcast_fp16, force_broadcast_object
        self._consolidated: dict[str, Any] | None = None
        self._shares = torch.classes.plimsoll.ParameterShares(self._ranks.handle)
        self._owner: dict[torch.Tensor, int] = {}
        mine = [self._share_of(parameters) for parameters in self.param_groups]
        self.optim = optim(mine, **default)
        self.defaults = self.optim.defaults  # of groups that are added, and for schedulers, which look here
        self._built = True
        self._sync_groups(to_inner=False)

    @property
    def param_to_rank(self) -> dict[torch.Tensor, int]:
        return self._owner

    def _share_of(self, group: dict[str, Any]) -> dict[str, Any]:
        """Part of a group that this rank has; each parameter goes to the rank with the least so far."""
        self._owner.update(zip(group["params"], self._shares.add(group["params"]), strict=True))
        return {**group, "params": [p for p in group["params"] if self._owner[p] == self.rank]}

    def partition_parameters(self) -> list[list[dict[str, Any]]]:
        """The groups of each rank."""
        return [
            [{**group, "params": [p for p in group["params"] if self._owner[p] == rank]} for group in self.param_groups]
            for rank in range(self.world_size)
        ]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        if not self._built:
            return
        self.optim.add_param_group(self._share_of(self.param_groups[-1]))
        # The newest group has what the optimizer added. The others may hold what a scheduler wrote, which goes in with the next
        # step.
        self.param_groups[-1].update(_without_parameters(self.optim.param_groups[-1]))
        self._consolidated = None

    def refresh_trainable(self) -> None:
        """Nothing to do: requires_grad is of no account to shares, and a parameter without a gradient is not updated."""

    def _sync_groups(self, to_inner: bool) -> None:
        """Learning rates and whatever else groups hold: what a scheduler wrote goes in, what the optimizer added comes out."""
        for outer, inner in zip(self.param_groups, self.optim.param_groups, strict=True):
            source, target = (outer, inner) if to_inner else (inner, outer)
            target.update(_without_parameters(source))

    def step(self, closure: Callable[[], float] | None = None, **kwargs: Any) -> float | None:  # type: ignore[override]
        """A collective. Further arguments go to the inner optimizer's step()."""
        self._sync_groups(to_inner=True)
        loss = self.optim.step(**kwargs) if closure is None else self.optim.step(closure=closure, **kwargs)
        self._shares.send(self.broadcast_fp16)
        self._sync_groups(to_inner=False)
        return loss

    def clip_grad_norm(
        self,
        max_norm: float,
        norm_type: float = 2.0,
        filter_params_fn: Callable[[Iterable[torch.Tensor]], Iterable[torch.Tensor]] | None = None,
    ) -> torch.Tensor:
        """Scales this rank's gradients so that those of all together have at most this norm, and returns the norm that
        they had. A collective."""
        mine: Iterable[torch.Tensor] = [p for p, owner in self._owner.items() if owner == self.rank and p.grad is not None]
        if filter_params_fn is not None:
            mine = list(filter_params_fn(mine))
        norm = self._shares.clip_gradients_([p.grad for p in mine], max_norm=float(max_norm), norm_type=float(norm_type))
        return torch.tensor(norm, dtype=torch.float32)

    def local_state_dict(self) -> dict[str, Any]:
        """State of this rank's share, as the inner optimizer numbers it."""
        return self.optim.state_dict()

    def consolidate_state_dict(self, recipient_rank: int = 0) -> None:
        """A collective: the recipient (-1: every rank) has the whole state for its state_dict()."""
        self._sync_groups(to_inner=True)
        gathered = self._ranks.gather(self._state_by_number(), None if recipient_rank == -1 else recipient_rank)
        if gathered is None:
            return
        state = {number: values for part in gathered for number, values in part.items()}
        numbers = iter(range(len(self._owner)))
        groups = [{**_without_parameters(g), "params": [next(numbers) for _ in g["params"]]} for g in self.param_groups]
        self._consolidated = {"state": dict(sorted(state.items())), "param_groups": copy.deepcopy(groups)}

    def _numbers(self) -> dict[torch.Tensor, int]:
        """Number of each parameter among all, as torch's state dicts count them."""
        return {p: number for number, p in enumerate(p for group in self.param_groups for p in group["params"])}

    def _state_by_number(self) -> dict[int, Any]:
        """Part of this rank, in the form in which its optimizer saves it, which may have names of its own for codes."""
        numbers = self._numbers()
        mine = [numbers[p] for group in self.optim.param_groups for p in group["params"]]
        saved = self.optim.state_dict()["state"]
        return {mine[place]: map_tensors(values, lambda tensor: tensor.detach().cpu()) for place, values in saved.items()}

    def state_dict(self, all_ranks: bool = False) -> dict[str, Any]:
        """The whole state, in the form of the optimizer that is not sharded: it loads into that one, and at any number of
        ranks.

        Raises:
            RuntimeError: consolidate_state_dict() was not called before. With all_ranks=True it is called here, and this
                is a collective.
        """
        if all_ranks:
            self.consolidate_state_dict(-1)
        if self._consolidated is None:
            raise RuntimeError(
                "Optimizer state has not been consolidated on this rank. Please call `consolidate_state_dict()` on all ranks "
                "beforehand if you meant to save the global state"
            )
        return self._consolidated

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the state of any number of ranks, or of the optimizer that is not sharded. Each rank keeps its share."""
        groups, sizes = state_dict["param_groups"], [len(group["params"]) for group in self.param_groups]
        if [len(group["params"]) for group in groups] != sizes:
            raise ValueError(f"OSS: expected the state of groups of {sizes} parameters, got {[len(g['params']) for g in groups]}")
        numbers = iter(number for group in groups for number in group["params"])
        state, inner_groups, place = {}, [], 0
        for given, own in zip(groups, self.param_groups, strict=True):
            kept = []
            for parameter in own["params"]:
                number = next(numbers)
                if self._owner[parameter] != self.rank:
                    continue
                if number in state_dict["state"]:
                    state[place] = state_dict["state"][number]
                kept.append(place)
                place += 1
            inner_groups.append({**_without_parameters(given), "params": kept})
        self.optim.load_state_dict({"state": state, "param_groups": inner_groups})
        self._sync_groups(to_inner=False)
