"""Gradients of torch's DistributedDataParallel in fewer bytes while they travel."""

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from plimsoll.shard.ranks import ranks_of
from plimsoll.shard.sharded_checkpoint import Checkpoint, Piece

if TYPE_CHECKING:  # torch.distributed does not say that it exports it
    from torch._C._distributed_c10d import GradBucket
else:
    GradBucket = dist.GradBucket

_BLOCK = 128  # elements that share a scale; parameters begin at a multiple of it
_UNDER_WAY = 2  # buckets that travel while the next one is filled

LeftOut = tuple[torch.Tensor, torch.Tensor]  # of a parameter's gradient here, and of the ranks' sum of it


class GradientCompression:
    """The state of :func:`compress_hook`, for one module:

        parallel = DistributedDataParallel(module)
        parallel.register_comm_hook(GradientCompression("fp8", module), compress_hook)

    Gradients travel in 0.5 ("fp16", "bf16") or 0.26 ("fp8": E4M3, a scale for 128 elements) of fp32's bytes. Sums are made in
    fp32. What rounding leaves out of a step's gradients joins those of the next, so that over many steps nothing is lost; it
    takes 4 bytes a parameter, and belongs into checkpoints:

        saver.save(step, {"model": ..., "left_out": compression.sharded_state_dict()})
        compression.load_sharded_state_dict(latest)

    Args:
        compression: "fp16", "bf16" or "fp8".
        module: with the parameters that DistributedDataParallel averages the gradients of.
        process_group: of torch.distributed; all ranks if None.
    """

    def __init__(self, compression: str, module: nn.Module, process_group: Any = None) -> None:
        if compression not in ("fp16", "bf16", "fp8"):
            raise ValueError(f"GradientCompression: expected fp16, bf16 or fp8, got {compression!r}")
        self.compression = compression
        self._ranks = ranks_of(process_group)
        self._parameters = {name.removeprefix("module."): p for name, p in module.named_parameters() if p.requires_grad}
        self._names: dict[torch.Tensor, str] = {parameter: name for name, parameter in self._parameters.items()}
        self._buckets: dict[int, _Bucket] = {}
        self._left: dict[str, LeftOut] = {}  # of parameters that are in no bucket yet

    @property
    def sent_bytes(self) -> int:
        """By this rank, in the last backward pass."""
        return sum(bucket.average.sent_bytes() for bucket in self._buckets.values())

    def sharded_state_dict(self) -> dict[str, torch.Tensor | Piece]:
        """State that this rank gives to :meth:`CheckpointSaver.save`. Collective."""
        state: dict[str, torch.Tensor | Piece] = {}
        for name, (values, sums) in self._left_out().items():
            state[f"{name}.values.{self._ranks.rank}"] = Piece(values, tuple(values.shape), 0)
            state[f"{name}.sums"] = sums
        return state

    def load_sharded_state_dict(self, checkpoint: Checkpoint, section: str = "left_out") -> None:
        """The same number of ranks goes on with the bits of those that saved, another one with what they had left out in
        sum."""
        self._buckets.clear()
        self._left = {name: self._load(checkpoint, section, name) for name in self._parameters}

    def _load(self, checkpoint: Checkpoint, section: str, name: str) -> LeftOut:
        sums = checkpoint.read(section, f"{name}.sums").view(-1)
        if checkpoint.world_size == self._ranks.size:
            return checkpoint.read(section, f"{name}.values.{self._ranks.rank}").view(-1), sums
        _, postdivide = torch.ops.plimsoll.averaging(checkpoint.world_size)
        for rank in range(checkpoint.world_size):
            sums = sums + checkpoint.read(section, f"{name}.values.{rank}").view(-1) / postdivide
        return torch.zeros_like(sums), sums

    def _left_out(self) -> dict[str, LeftOut]:
        found = {name: (torch.zeros(p.numel()), torch.zeros(p.numel())) for name, p in self._parameters.items()}
        found.update(self._left)
        for bucket in self._buckets.values():
            found.update(bucket.left_out())
        return found

    def _bucket(self, given: GradBucket) -> "_Bucket":
        """DistributedDataParallel makes its buckets anew after the first pass."""
        names = [self._names[parameter] for parameter in given.parameters()]
        known = self._buckets.get(given.index())
        if known is not None and known.names == names:
            return known
        if known is not None:
            self._left = self._left_out()
            self._buckets.clear()
        bucket = self._buckets[given.index()] = _Bucket(self.compression, self._ranks, names, given.gradients())
        bucket.take(self._left)
        return bucket

    @torch.no_grad()
    def average(self, given: GradBucket) -> torch.futures.Future[torch.Tensor]:
        index = given.index()
        if index == 0:  # an exception may have ended the pass before
            for bucket in self._buckets.values():
                bucket.average.abandon()
        future = self._bucket(given).start(given)
        if index > 0:
            self._buckets[index - 1].average.advance()
        if index >= _UNDER_WAY:
            self._buckets[index - _UNDER_WAY].finish()
        if given.is_last():
            self._buckets[index].average.advance()
            for last in range(max(0, index + 1 - _UNDER_WAY), index + 1):
                self._buckets[last].finish()
        return future


def compress_hook(state: GradientCompression, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """For DistributedDataParallel.register_comm_hook, which looks at these annotations as objects."""
    return state.average(bucket)


class _Bucket:
    """Gradients that travel together."""

    def __init__(self, compression: str, ranks: Any, names: list[str], gradients: list[torch.Tensor]) -> None:
        self.names = names
        self._ranges: list[tuple[int, int]] = []  # begin and size of each
        end = 0
        for gradient in gradients:
            self._ranges.append((end, gradient.numel()))
            end += -(-gradient.numel() // _BLOCK) * _BLOCK
        self._elements = end
        self.average = torch.classes.plimsoll.CompressedAverage(compression, ranks.handle, end)

    def take(self, left: dict[str, LeftOut]) -> None:
        """Goes on with these."""
        values, sums, begin = self.average.left_out()
        for name, (first, size) in zip(self.names, self._ranges, strict=True):
            if name not in left:
                continue
            its_values, its_sums = left.pop(name)
            values[first : first + size].copy_(its_values)
            start, stop = (min(max(place, begin), begin + sums.numel()) for place in (first, first + size))
            sums[start - begin : stop - begin].copy_(its_sums[start - first : stop - first])

    def left_out(self) -> dict[str, LeftOut]:
        """Collective."""
        values, sums = self.average.left_out()[0], self.average.sums_left_out()
        places = zip(self.names, self._ranges, strict=True)
        return {
            name: (values[first : first + size].clone(), sums[first : first + size].clone()) for name, (first, size) in places
        }

    def start(self, given: GradBucket) -> torch.futures.Future[torch.Tensor]:
        self._gradients, self._buffer = given.gradients(), given.buffer()
        flat = torch.zeros(self._elements)
        for gradient, (first, size) in zip(self._gradients, self._ranges, strict=True):
            flat[first : first + size].copy_(gradient.reshape(-1))
        self.average.start(flat)
        self._future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        return self._future

    def finish(self) -> None:
        average = self.average.finish()
        for gradient, (first, size) in zip(self._gradients, self._ranges, strict=True):
            gradient.copy_(average[first : first + size].view_as(gradient))
        self._future.set_result(self._buffer)
        del self._gradients, self._buffer, self._future
