"""compress_hook of torch's DistributedDataParallel, and compression of ShardedDataParallel: bytes, the bound of what is lost,
and checkpoints."""

import copy
import itertools
import shutil
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
from plimsoll.shard import OSS, CheckpointSaver, GradientCompression, ShardedDataParallel, compress_hook, open_latest_checkpoint
from torch import nn
from torch.nn.parallel import DistributedDataParallel

# The error of one rounding, relative to the largest magnitude that shares its scale.
ROUNDING = {"fp16": 2.0**-11, "bf16": 2.0**-8, "fp8": 2.0**-4}


class Swapped(nn.Module):
    """Layers in another order than that of their registration: torch makes only the last of the buckets another way."""

    def __init__(self):
        super().__init__()
        self.second, self.first, self.third, self.last = (nn.Linear(30, 30) for _ in range(4))

    def forward(self, x):
        return self.last(self.third(self.second(self.first(x)).tanh()).tanh())[:, :7]


def wrapped(group, compression, seed=0, swapped=False):
    torch.manual_seed(seed)
    module = Swapped() if swapped else nn.Sequential(nn.Linear(30, 90), nn.Tanh(), nn.Linear(90, 7))
    # Several buckets, which DistributedDataParallel makes anew after the first pass.
    parallel = DistributedDataParallel(module, process_group=group, bucket_cap_mb=0.005)
    state = GradientCompression(compression, parallel, group)
    parallel.register_comm_hook(state, compress_hook)
    return parallel, state


def backward(parallel, step, rank):
    torch.manual_seed(100 * step + rank)
    parallel.zero_grad()
    nn.functional.mse_loss(parallel(torch.randn(8, 30)), torch.randn(8, 7)).backward()


def errors_after_twelve_steps(parallel, rank, step_ends=lambda: None):
    """The largest error of the sum of averages that have arrived, for each parameter, and the largest gradient of a rank."""
    plain = copy.deepcopy(parallel.module)
    arrived = [torch.zeros_like(p, dtype=torch.float64) for p in plain.parameters()]
    exact = [a.clone() for a in arrived]
    largest = 0.0
    for step in range(12):
        for each in range(3):
            backward(plain, step, each)
            for total, p in zip(exact, plain.parameters(), strict=True):
                total += p.grad / 3
            largest = max(largest, *(p.grad.abs().max().item() for p in plain.parameters()))
        backward(parallel, step, rank)
        for total, p in zip(arrived, parallel.parameters(), strict=True):
            total += 0 if p.grad is None else p.grad
        step_ends()
    return [(a - b).abs().max().item() for a, b in zip(arrived, exact, strict=True)], largest


@ranks.case(3)
def nothing_is_lost_but_the_last_rounding(group):
    for (compression, unit), swapped in itertools.product(ROUNDING.items(), (False, True)):
        parallel, _ = wrapped(group, compression, swapped=swapped)
        same_bits = lambda parallel=parallel: ranks.assert_same_bits(
            group, {name: p.grad for name, p in parallel.named_parameters()}
        )
        errors, largest = errors_after_twelve_steps(parallel, dist.get_rank(group), same_bits)
        # One rounding of each rank's values is left, and one of their sum; each step adds a few of fp32.
        assert 0 < max(errors) <= 2 * unit * largest / (1 - unit) + 12 * 2.0**-22 * largest, compression


@ranks.case(2)
def fewer_bytes_travel(group):
    for compression, share in (("fp16", 0.5), ("bf16", 0.5), ("fp8", (1 + 4 / 128) / 4)):
        module = nn.Linear(256, 512, bias=False)
        parallel = DistributedDataParallel(module, process_group=group)
        state = GradientCompression(compression, module, group)
        parallel.register_comm_hook(state, compress_hook)
        parallel(torch.ones(1, 256)).sum().backward()
        assert state.sent_bytes == share * 4 * module.weight.numel()  # of a ring's, half there and half back


def train(parallel, optimizer, steps, rank):
    for step in steps:
        backward(parallel, step, rank)
        optimizer.step()


@ranks.case(3)
def going_on_after_a_checkpoint_has_the_bits_of_going_on(group):
    rank, run = dist.get_rank(group), ranks.shared_folder(group)
    parallel, state = wrapped(group, "fp8")
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    train(parallel, optimizer, range(3), rank)
    sections = {"model": parallel.module.state_dict(), "left_out": state.sharded_state_dict()}
    CheckpointSaver(run, group).save(3, sections)
    train(parallel, optimizer, range(3, 6), rank)

    again, theirs = wrapped(group, "fp8", seed=1)
    latest: Any = open_latest_checkpoint(run, group)
    again.module.load_state_dict(latest.section("model"))
    theirs.load_sharded_state_dict(latest)
    train(again, torch.optim.SGD(again.parameters(), lr=0.1), range(3, 6), rank)
    for name, value in again.module.state_dict().items():
        assert torch.equal(value, parallel.module.state_dict()[name]), name

    # Without what was left out the bits are others.
    forgetful, _ = wrapped(group, "fp8", seed=1)
    forgetful.module.load_state_dict(latest.section("model"))
    train(forgetful, torch.optim.SGD(forgetful.parameters(), lr=0.1), range(3, 6), rank)
    assert not all(torch.equal(a, b) for a, b in zip(forgetful.parameters(), parallel.parameters(), strict=False))
    dist.barrier(group)
    if rank == 0:
        shutil.rmtree(run)


@ranks.case(3)
def another_number_of_ranks_keeps_what_was_left_out(group):
    rank, run = dist.get_rank(group), ranks.shared_folder(group)
    parallel, state = wrapped(group, "fp8")
    backward(parallel, 0, rank)
    mine = {name: value for name, (value, _) in state._left_out().items()}
    sums = {name: value for name, (_, value) in state._left_out().items()}
    CheckpointSaver(run, group).save(1, {"left_out": state.sharded_state_dict()})
    alone = dist.new_group([rank], use_local_synchronization=True)
    one: Any = GradientCompression("fp8", parallel.module, alone)
    one.load_sharded_state_dict(open_latest_checkpoint(run, alone))
    _, postdivide = torch.ops.plimsoll.averaging(3)
    everyone = ranks.gathered(group, mine)
    for name, (values, total) in one._left_out().items():
        assert not values.any()
        torch.testing.assert_close(total, sums[name] + sum(rank[name] for rank in everyone) / postdivide)
    dist.barrier(group)
    if rank == 0:
        shutil.rmtree(run)


def sharded(group, compression, seed=0):
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(30, 90), nn.Tanh(), nn.Linear(90, 7))
    optimizer = OSS(module.parameters(), torch.optim.SGD, group=group, lr=0.1)
    # Several buckets for an owner.
    return ShardedDataParallel(module, optimizer, group, reduce_buffer_size=2000, compression=compression), optimizer


@ranks.case(3)
def what_owners_get_loses_nothing_but_the_last_rounding(group):
    rank = dist.get_rank(group)
    for compression, unit in ROUNDING.items():
        parallel, optimizer = sharded(group, compression)
        owned = [optimizer.param_to_rank[p] == rank for p in parallel.parameters()]

        def only_owners_have_gradients(parallel=parallel, owned=owned):
            assert [p.grad is not None for p in parallel.parameters()] == owned

        errors, largest = errors_after_twelve_steps(parallel, rank, only_owners_have_gradients)
        error = max(error for error, mine in zip(errors, owned, strict=True) if mine)
        # One rounding of each rank's values is left; each step adds a few of fp32.
        assert 0 < error <= unit * largest / (1 - unit) + 12 * 2.0**-22 * largest, compression


@ranks.case(2)
def fewer_bytes_travel_to_owners(group):
    for compression, share in (("none", 1), ("fp16", 0.5), ("bf16", 0.5), ("fp8", (1 + 4 / 128) / 4)):
        module = nn.Linear(256, 512, bias=False)
        optimizer = OSS(module.parameters(), torch.optim.SGD, group=group, lr=0.1)
        parallel = ShardedDataParallel(module, optimizer, group, compression=compression)
        parallel(torch.ones(1, 256)).sum().backward()
        sent = parallel._reducer.sent_bytes()
        # Beside the gradients a byte for each parameter of a bucket, and two marks. Without compression: of a ring's, half.
        assert sent == (2 * module.weight.numel() if compression == "none" else share * 4 * module.weight.numel() + 3)


@ranks.case(3)
def owners_that_go_on_after_a_checkpoint_have_the_bits_of_going_on(group):
    rank, run = dist.get_rank(group), ranks.shared_folder(group)
    parallel, optimizer = sharded(group, "fp8")
    train(parallel, optimizer, range(3), rank)
    CheckpointSaver(run, group).save(3, {"model": parallel.module.state_dict(), "left_out": parallel.left_out()})
    # A parameter that freezes and trains again changes nothing for those that stay.
    parallel.module[0].requires_grad_(False)
    parallel.refresh_trainable()
    assert not any(name.startswith("0.") for name in parallel.left_out())
    parallel.module[0].requires_grad_(True)
    parallel.refresh_trainable()
    latest: Any = open_latest_checkpoint(run, group)
    for name, piece in parallel.left_out().items():
        assert name.startswith("0.") or torch.equal(piece.values, latest.read("left_out", name).view(-1))
    parallel.load_left_out(latest)
    train(parallel, optimizer, range(3, 6), rank)

    for loads in (True, False):
        again, its_optimizer = sharded(group, "fp8", seed=1)
        again.module.load_state_dict(latest.section("model"))
        if loads:
            again.load_left_out(latest)
        train(again, its_optimizer, range(3, 6), rank)
        same = [torch.equal(a, b) for a, b in zip(again.parameters(), parallel.parameters(), strict=True)]
        assert all(same) if loads else not all(same)
    dist.barrier(group)
    if rank == 0:
        shutil.rmtree(run)


@ranks.case(3)
def owners_among_another_number_of_ranks_have_what_was_left_out(group):
    rank, run = dist.get_rank(group), ranks.shared_folder(group)
    parallel, _ = sharded(group, "fp8")
    hooked, state = wrapped(group, "fp8")
    backward(parallel, 0, rank)
    backward(hooked, 0, rank)
    CheckpointSaver(run, group).save(1, {"left_out": parallel.left_out(), "hooked": state.sharded_state_dict()})
    _, postdivide = torch.ops.plimsoll.averaging(3)
    saved: Any = open_latest_checkpoint(run, group)
    pair = dist.new_group([0, 1])
    if rank < 2:
        two, optimizer = sharded(pair, "fp8")
        for section in ("left_out", "hooked"):
            two.load_left_out(saved, section)
            for name, parameter in two.module.named_parameters():
                expected = sum(saved.read(section, f"{name}.values.{each}").view(-1) for each in range(3)) / postdivide
                if section == "hooked":
                    expected += saved.read(section, f"{name}.sums").view(-1)
                values = two.left_out()[f"{name}.values.{rank}"].values
                if optimizer.param_to_rank[parameter] != rank:
                    assert not values.any()
                else:  # two ranks divide by two before the sum, and by nothing after it
                    torch.testing.assert_close(values, expected)
    dist.barrier(group)
    if rank == 0:
        shutil.rmtree(run)


@ranks.case(1)
def other_names_are_an_error(group):
    with pytest.raises(ValueError, match="compression: expected fp8, none, fp16 or bf16, got 'int8'"):
        sharded(group, "int8")
    with pytest.raises(ValueError, match="expected fp16, bf16 or fp8, got 'int8'"):
        GradientCompression("int8", nn.Linear(1, 1), group)


@pytest.mark.parametrize("name", ranks.names(__name__))
def test_on_ranks(outcomes, name):
    outcomes.check(name)
