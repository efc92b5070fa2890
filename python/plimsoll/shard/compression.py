"""Gradients of torch's DistributedDataParallel in fewer bytes while they travel."""

from typing import Any

import torch
from torch import nn

from plimsoll._torch_internals import GradBucket
from plimsoll.shard.parameter_device import expect_uncompressed_on_device
from plimsoll.shard.ranks import ranks_of
from plimsoll.shard.sharded_checkpoint import Checkpoint, Piece


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
        expect_uncompressed_on_device("GradientCompression", compression, module.parameters())
        self.compression = compression
        ranks = ranks_of(process_group)
        parameters = {name.removeprefix("module."): p for name, p in module.named_parameters() if p.requires_grad}
        self._rank, self._names = ranks.rank, list(parameters)
        self._places: dict[torch.Tensor, int] = {each: place for place, each in enumerate(parameters.values())}
        elements = [parameter.numel() for parameter in parameters.values()]
        self._buckets = torch.classes.plimsoll.HookedBuckets(compression, ranks.handle, self._names, elements)
        self._travelling: dict[int, tuple[torch.futures.Future[torch.Tensor], torch.Tensor]] = {}

    @property
    def sent_bytes(self) -> int:
        """By this rank, in the last backward pass."""
        sent: int = self._buckets.sent_bytes()
        return sent

    def sharded_state_dict(self) -> dict[str, torch.Tensor | Piece]:
        """State that this rank gives to :meth:`CheckpointSaver.save`. Collective."""
        state: dict[str, torch.Tensor | Piece] = {}
        for name, (values, sums) in self._left_out().items():
            state[f"{name}.values.{self._rank}"] = Piece(values, tuple(values.shape), 0)
            state[f"{name}.sums"] = sums
        return state

    def load_sharded_state_dict(self, checkpoint: Checkpoint, section: str = "left_out") -> None:
        """The same number of ranks goes on with the bits of those that saved, another one with what they had left out in
        sum."""
        self._buckets.restore(checkpoint.opened, section)

    def _left_out(self) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """The tensors left out of each parameter's gradient here, and of the ranks' sum of it. Collective."""
        return dict(zip(self._names, self._buckets.left_out(), strict=True))

    def average(self, given: GradBucket) -> torch.futures.Future[torch.Tensor]:
        if given.index() == 0:
            self._travelling.clear()
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        self._travelling[given.index()] = future, given.buffer()
        places = [self._places[parameter] for parameter in given.parameters()]
        for index in self._buckets.start(given.index(), given.is_last(), places, given.gradients()):
            arrived, buffer = self._travelling.pop(index)
            arrived.set_result(buffer)
        return future


def compress_hook(state: GradientCompression, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """For DistributedDataParallel.register_comm_hook, which looks at these annotations as objects."""
    return state.average(bucket)
