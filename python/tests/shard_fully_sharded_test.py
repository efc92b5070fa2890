"""plimsoll.shard.FullyShardedDataParallel on one to eight ranks: the gradients and steps of one process."""

import itertools
import pathlib
import tempfile
from typing import Any

import plimsoll.pytorch as te
import pytest
import ranks
import shard_models as models
import torch
import torch.distributed as dist
from plimsoll.common.recipe import DelayedScaling, Float8CurrentScaling
from plimsoll.optim import AdamW
from plimsoll.shard import FullyShardedDataParallel as Fsdp
from rounding import gamma, within
from torch import nn


def twenty_steps_are_those_of_one_process(group):
    rank, size = models.position(group)
    model = models.wrapped(models.blocks_net(), group)
    plain = models.blocks_net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    reference = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    for step in range(20):
        x, y = models.batch(step)
        plain.load_state_dict(model.state_dict())
        magnitudes = models.magnitudes(plain, x, y)
        models.backward(plain, x, y)
        optimizer.zero_grad()
        models.backward(model, *models.part((x, y), rank, size))
        found = models.full_gradients(model)
        for name, gradient in models.gradients(plain).items():
            error = (found[name] - gradient).abs()
            assert (error <= models.rounding_bound(magnitudes[name])).all(), (step, name)
        # From the same gradients on, the bits are the same: the optimizer's work is elementwise.
        for name, parameter in plain.named_parameters():
            if parameter.grad is not None:
                parameter.grad.copy_(found[name])
        norm = model.clip_grad_norm_(0.1)
        terms = sum(parameter.numel() for parameter in plain.parameters())  # squares and their sums, in any order
        expected = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
        assert within(norm, expected, gamma(2 * terms) * expected.item())
        with torch.no_grad():
            clipped = models.full_gradients(model)
            for name, parameter in plain.named_parameters():
                if parameter.grad is not None:
                    parameter.grad.copy_(clipped[name])
        optimizer.step()
        reference.step()
        after = models.full_weights(model)
        unused = {"unused.weight", "unused.bias"}  # zero here, and none there: weight decay
        for name, value in plain.state_dict().items():
            assert name in unused or torch.equal(after[name], value), (step, name)


@ranks.case(1)
def one_rank(group):
    twenty_steps_are_those_of_one_process(group)


@ranks.case(2)
def two_ranks(group):
    twenty_steps_are_those_of_one_process(group)


@ranks.case(3)
def three_ranks(group):
    twenty_steps_are_those_of_one_process(group)


@ranks.case(4)
def four_ranks(group):
    twenty_steps_are_those_of_one_process(group)


@ranks.case(8)
def eight_ranks(group):
    twenty_steps_are_those_of_one_process(group)


@ranks.case(1)
def moments_of_8_bits_are_not_taken_apart(group):
    model = models.wrapped(models.blocks_net(), group)
    optimizer = AdamW(model.parameters(), lr=1e-2, optimizer_state="8bit")
    models.backward(model, *models.batch(0))
    optimizer.step()
    for save in (model.sharded_optim_state_dict, model.gather_full_optim_state_dict):
        with pytest.raises(ValueError, match="got exp_avg_scale of"):
            save(optimizer)


def ordered_steps(group, grains, clip, flatten):
    """Weights after 20 steps of `grains` parts of a batch each, this rank's in turn."""
    rank, size = models.position(group)
    model = models.wrapped(models.blocks_net(), group, ordered_passes=grains // size, flatten_parameters=flatten)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(20):
        whole = models.batch(step)
        optimizer.zero_grad()
        for first in range(0, grains, size):
            models.backward(model, *models.part(whole, first + rank, grains))
        if clip:
            model.clip_grad_norm_(0.1)
        optimizer.step()
    return models.full_weights(model)


def an_ordered_sum_has_the_bits_of_one_process(group):
    alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    for clip, flatten in ((False, True), (True, False)):
        ours, theirs = ordered_steps(group, 24, clip, flatten), ordered_steps(alone, 24, clip, flatten)
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@ranks.case(2)
def ordered_on_two_ranks(group):
    an_ordered_sum_has_the_bits_of_one_process(group)


@ranks.case(3)
def ordered_on_three_ranks(group):
    an_ordered_sum_has_the_bits_of_one_process(group)


@ranks.case(4)
def ordered_on_four_ranks(group):
    an_ordered_sum_has_the_bits_of_one_process(group)


@ranks.case(8)
def ordered_on_eight_ranks(group):
    an_ordered_sum_has_the_bits_of_one_process(group)


@ranks.case(2)
def no_sync_is_refused_where_the_order_is_fixed(group):
    model = models.wrapped(models.blocks_net(), group, ordered_passes=2)
    with pytest.raises(RuntimeError, match="order"), model.no_sync():
        pass


@ranks.case(2)
def no_sync_inside_no_sync_ends_with_the_outer_one(group):
    rank, size = models.position(group)
    nested, once = (models.wrapped(models.blocks_net(), group) for _ in range(2))
    first, second = (models.part(models.batch(step), rank, size) for step in range(2))
    with nested.no_sync():
        with nested.no_sync():
            pass
        models.backward(nested, *first)
        assert not models.gradients(nested)
    with once.no_sync():
        models.backward(once, *first)
    for model in (nested, once):
        models.backward(model, *second)
    expected = models.gradients(once)
    assert expected and all(torch.equal(gradient, expected[name]) for name, gradient in models.gradients(nested).items())


@ranks.case(3)
def narrow_gradients_are_averaged_in_fp32(group):
    """Against a narrow copy on each rank by itself, whose gradients are averaged here."""
    rank, size = models.position(group)
    for dtype in (torch.bfloat16, torch.float16):
        model = models.wrapped(models.blocks_net(), group, mixed_precision=True, compute_dtype=dtype)
        plain = models.blocks_net().to(dtype)
        x, y = models.part(models.batch(0), rank, size)
        models.backward(model, x, y)
        models.backward(plain, x.to(dtype), y)
        found = models.full_gradients(model)
        for name, gradient in models.gradients(plain).items():
            everyone = torch.stack(ranks.gathered(group, gradient.float()))
            # A division, two additions and a division.
            assert ((found[name] - everyone.mean(0)).abs() <= everyone.abs().mean(0) * 2.0**-22).all(), name
        assert all(p.dtype == torch.float32 for p in model.parameters())
        assert all(value.dtype == torch.float32 for value in model.state_dict().values())


@ranks.case(2)
def buffers_are_narrow_but_for_scales_and_state_dicts(group):
    net = nn.Sequential(nn.BatchNorm1d(16), te.Linear(16, 16))
    model = Fsdp(net, group, mixed_precision=True, compute_dtype=torch.bfloat16)
    model(torch.randn(4, 16)).sum().backward()
    assert model[0].running_mean.dtype == torch.bfloat16 and model[1].weight_scale.dtype == torch.float32
    assert model.state_dict()["0.running_mean"].dtype == torch.float32


class Checkpointed(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(self.module, x, use_reentrant=False)


@ranks.case(2)
def every_combination_of_options_has_the_same_gradients(group):
    rank, size = models.position(group)
    x, y = models.batch(0)
    plain = models.blocks_net()
    magnitudes = models.magnitudes(plain, x, y)
    models.backward(plain, x, y)
    expected = models.gradients(plain)
    folder = tempfile.mkdtemp()
    for on in itertools.product((False, True), repeat=7):
        options: dict[str, Any] = {"reshard_after_forward": on[0], "flatten_parameters": on[1], "prefetch": on[2]}
        if on[6]:
            options["offload_path"] = folder
        if on[3]:
            options |= {"mixed_precision": True, "compute_dtype": torch.bfloat16}
        net = models.blocks_net()
        if on[4]:
            for index, block in enumerate(net.blocks):
                net.blocks[index] = Checkpointed(block)
        model = models.wrapped(net, group, **options)
        mine = models.part((x, y), rank, size)
        if on[5]:
            half = len(mine[0]) // 2
            with model.no_sync():
                models.backward(model, mine[0][:half], mine[1][:half], 0.5)
            models.backward(model, mine[0][half:], mine[1][half:], 0.5)
        else:
            models.backward(model, *mine)
        found = models.full_gradients(model)
        for name, gradient in expected.items():
            key = next(k for k in found if k.replace("module.", "") == name)
            if on[3]:  # eight bits of mantissa, through five layers and back
                error = (found[key] - gradient).norm() / gradient.norm()
                assert error < 16 * 2.0**-8, (options, name, error)
            else:
                assert ((found[key] - gradient).abs() <= models.rounding_bound(magnitudes[name])).all(), (options, name)
    pathlib.Path(folder).rmdir()  # nothing is left behind


@ranks.case(2)
def what_gloo_lacks_is_not_needed(group):
    """gloo has no FP8, no sums that multiply before, and no pinned memory: ours sends bytes and divides by itself."""
    with pytest.raises(RuntimeError, match="Invalid scalar type"):
        dist.all_reduce(torch.ones(4).to(torch.float8_e4m3fn), group=group)
    with pytest.raises((RuntimeError, ValueError)):
        dist.all_reduce(torch.ones(4), dist._make_nccl_premul_sum(0.5), group=group)
    model: Any = Fsdp(te.Linear(32, 32), group, move_params_to_cpu=True, gradient_predivide_factor=2.0)
    with te.fp8_autocast(fp8_recipe=Float8CurrentScaling()):
        model(torch.ones(16, 32)).sum().backward()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in model.parameters())


@ranks.case(2)
def ranks_may_use_other_parameters(group):
    rank, _ = models.position(group)
    layers: Any = nn.ModuleList(nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)) for _ in range(3))
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.fill_(1)

    class Choice(nn.Module):
        def __init__(self, first, second):
            super().__init__()
            self.first, self.second = first, second

        def forward(self, x):
            return self.first(x) if rank == 0 else self.second(x)

    units = [Fsdp(Choice(*pair), group) for pair in layers]
    model = Fsdp(nn.Sequential(*units), group)
    model(torch.full((1, 1), 2.0)).sum().backward()
    for unit in units:
        assert [g.tolist() for g in ranks.gathered(group, unit.flat_param_0.grad)] == [[1.0], [1.0]]


def fp8_steps(group, rule, shard):
    rank, size = models.position(group)
    torch.manual_seed(0)
    layer = te.TransformerLayer(32, 64, 4, hidden_dropout=0.0, attention_dropout=0.0)
    model = (
        Fsdp(layer, group) if shard else nn.parallel.DistributedDataParallel(layer, process_group=group, broadcast_buffers=False)
    )
    losses = []
    for step in range(3):
        torch.manual_seed(10 * step + rank)
        with te.fp8_autocast(fp8_recipe=rule, fp8_group=group):
            out = model(torch.randn(5, 2, 32))
        loss = out.square().mean()
        loss.backward()
        losses.append(loss.item())
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.data.sub_(parameter.grad, alpha=0.1)
            parameter.grad = None
    return losses, dict(layer.named_buffers())


@ranks.case(2)
def fp8_layers_have_the_bits_of_data_parallel_ones(group):
    for rule in (DelayedScaling(amax_history_len=4), Float8CurrentScaling()):
        ours, buffers = fp8_steps(group, rule, True)
        theirs, expected = fp8_steps(group, rule, False)
        assert ours == theirs
        assert all(torch.equal(buffers[name], value) for name, value in expected.items())


@ranks.case(2)
def codes_travel_where_the_recipe_allows_it(group):
    """Then whoever reads values finds that they are not there; otherwise they are."""
    for travels in (True, False):
        torch.manual_seed(0)
        layer = te.Linear(32, 16)
        values = layer.weight.detach().clone()
        model = Fsdp(layer, group, gather_codes=travels)
        seen: list[Any] = []
        layer.register_forward_hook(lambda layer, *_, seen=seen: seen.append(layer.weight.detach().clone()))
        x = torch.randn(8, 32)
        with te.fp8_autocast(fp8_recipe=Float8CurrentScaling(), fp8_group=group):
            model(x).sum().backward()
        model(x)
        assert seen[0].isnan().all() if travels else torch.equal(seen[0], values)
        assert torch.equal(seen[1], values)


@ranks.case(2)
def factors_of_the_user_divide_gradients(group):
    model = models.wrapped(models.blocks_net(), group)
    model.set_gradient_divide_factors(4.0, 0.25, recursive=True)
    rank, size = models.position(group)
    models.backward(model, *models.part(models.batch(0), rank, size))
    ours = models.full_gradients(model)
    plain = models.wrapped(models.blocks_net(), group)
    models.backward(plain, *models.part(models.batch(0), rank, size))
    theirs = models.full_gradients(plain)
    # Powers of two: a sum is twice the average.
    assert all(torch.equal(ours[name], 2 * theirs[name]) for name in theirs if name != "frozen.weight")


@ranks.case(2)
def a_backward_pass_that_failed_leaves_nothing_behind(group):
    rank, size = models.position(group)
    model = models.wrapped(models.blocks_net(), group)
    x, y = models.part(models.batch(0), rank, size)
    out = model(x)
    out.register_hook(lambda grad: None)
    model.module.first.weight.register_hook(lambda grad: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        out.sum().backward()
    model.module.first.weight._backward_hooks.clear()
    model.zero_grad()
    models.backward(model, x, y)
    found = models.full_gradients(model)
    fresh = models.wrapped(models.blocks_net(), group)
    models.backward(fresh, x, y)
    expected = models.full_gradients(fresh)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@ranks.case(2)
def another_model_on_a_rank_is_an_error_on_all(group):
    rank, _ = models.position(group)
    with pytest.raises(ValueError, match="others than rank 0's on rank 1"):
        Fsdp(nn.Linear(3 + rank, 1), group)
    with pytest.raises(ValueError, match="others than rank 0's on rank 1"):
        Fsdp(nn.Linear(3, 1), group, reshard_after_forward=rank == 0)


@ranks.case(1)
def arguments_are_checked(group):
    with pytest.raises(ValueError, match="fp32_reduce_scatter requires mixed_precision=True"):
        Fsdp(nn.Linear(3, 1), group, fp32_reduce_scatter=True)
    with pytest.raises(ValueError, match="FP16"):
        Fsdp(nn.Linear(3, 1), group, compute_dtype=torch.float16)
    with pytest.raises(ValueError, match="FP32"):
        Fsdp(nn.Linear(3, 1).half(), group)
    with pytest.raises(RuntimeError, match="before wrapping"):
        Fsdp(nn.Linear(3, 1), group).half()
    with pytest.raises(RuntimeError, match="not allowed"):
        Fsdp(nn.Linear(3, 1), group).reset_parameters()
    half = Fsdp(nn.Linear(3, 1).half(), group, compute_dtype=torch.float16)
    assert all(value.dtype == torch.float16 for value in half.state_dict().values())


@pytest.mark.parametrize("name", ranks.names(__name__))
def test_on_ranks(outcomes, name):
    outcomes.check(name)
