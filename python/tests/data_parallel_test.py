"""DistributedDataParallel and FSDP2 around the modules, each rank with its own data."""

import copy

import plimsoll.pytorch as te
import pytest
import ranks
import torch
import torch.distributed as dist
from plimsoll.common.recipe import DelayedScaling
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard


def layer_of():
    torch.manual_seed(0)
    return te.TransformerLayer(32, 64, 4, hidden_dropout=0.0, attention_dropout=0.0)


def gradients_are_the_mean_over_ranks(group, wrap, reduce_amax):
    """The wrapped module and a copy of it that nobody wraps take the same steps; the copy's gradients are averaged here."""
    module = layer_of()
    plain = copy.deepcopy(module)
    wrapped = wrap(module, group)
    rule = DelayedScaling(amax_history_len=4, reduce_amax=reduce_amax)
    for step in range(2):
        torch.manual_seed(10 * step + dist.get_rank(group))
        x = torch.randn(5, 2, 32)
        outputs = []
        for layer in (wrapped, plain):
            with te.fp8_autocast(fp8_recipe=rule, fp8_group=group):
                outputs.append(layer(x))
            outputs[-1].square().mean().backward()
        assert torch.equal(*outputs)
        for ours, reference in zip(module.parameters(), plain.parameters(), strict=True):
            dist.all_reduce(reference.grad, group=group)
            mean = reference.grad / dist.get_world_size(group)
            grad = ours.grad.full_tensor() if hasattr(ours.grad, "full_tensor") else ours.grad
            # Two terms: their order changes nothing, and halving before or after rounds alike above subnormals.
            assert torch.equal(grad, mean)
        for layer in (module, plain):
            layer.zero_grad()
        for (name, ours), reference in zip(module.named_buffers(), plain.buffers(), strict=True):
            assert torch.equal(ours, reference), name
    if reduce_amax:
        ranks.assert_same_bits(group, dict(module.named_buffers()))


def ddp(module, group):
    # By default each step starts with the buffers of rank 0, and so with its scales; here each rank keeps its own.
    return torch.nn.parallel.DistributedDataParallel(module, process_group=group, broadcast_buffers=False)


def fsdp(module, group):
    return fully_shard(module, mesh=DeviceMesh.from_group(group, "cpu"))


def fsdp_of_parts(module, group):
    """A group of parameters for each part that the layer runs without a call where it can."""
    for part in ("self_attention.layernorm_qkv", "self_attention.proj", "self_attention", "layernorm_mlp"):
        fsdp(module.get_submodule(part), group)
    return fsdp(module, group)


@ranks.case(2)
def ddp_with_reduced_amaxes(group):
    gradients_are_the_mean_over_ranks(group, ddp, True)


@ranks.case(2)
def ddp_with_each_ranks_own_amaxes(group):
    gradients_are_the_mean_over_ranks(group, ddp, False)


@ranks.case(2)
def fsdp2_with_reduced_amaxes(group):
    gradients_are_the_mean_over_ranks(group, fsdp, True)


@ranks.case(2)
def fsdp2_with_each_ranks_own_amaxes(group):
    gradients_are_the_mean_over_ranks(group, fsdp, False)


@ranks.case(2)
def fsdp2_of_each_part(group):
    gradients_are_the_mean_over_ranks(group, fsdp_of_parts, True)


def codes_stay_equal_on_all_ranks(group, wrap):
    """Parameters that are FP8 codes, which each rank's own optimizer steps."""
    torch.manual_seed(0)
    with te.fp8_model_init():
        module = te.TransformerLayer(32, 64, 4, hidden_dropout=0.0, attention_dropout=0.0)
    before = {name: values_of(parameter) for name, parameter in module.named_parameters()}
    wrapped = wrap(module, group)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    for step in range(2):
        torch.manual_seed(10 * step + dist.get_rank(group))
        with te.fp8_autocast(fp8_recipe=DelayedScaling(amax_history_len=4), fp8_group=group):
            wrapped(torch.randn(5, 2, 32)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    after = {name: values_of(parameter) for name, parameter in module.named_parameters()}
    assert all(not torch.equal(after[name], before[name]) for name in before)
    ranks.assert_same_bits(group, after)
    return module


def values_of(parameter):
    full = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
    return full.detach().clone().dequantize() if isinstance(full, te.QuantizedTensor) else full.detach().clone()


@ranks.case(2)
def ddp_with_parameters_of_codes(group):
    module = codes_stay_equal_on_all_ranks(group, ddp)
    assert isinstance(module.layernorm_mlp.fc1_weight, te.QuantizedTensor)
    codes = {n: p.codes for n, p in module.named_parameters() if isinstance(p, te.QuantizedTensor)}
    ranks.assert_same_bits(group, codes)


@ranks.case(2)
def fsdp2_holds_shards_of_the_values_where_parameters_were_codes(group):
    module = codes_stay_equal_on_all_ranks(group, fsdp)
    assert module.layernorm_mlp.fc1_weight.to_local().dtype == torch.float32


@ranks.case(2)
def ddp_by_default_starts_each_step_with_the_scales_of_rank_0(group):
    module = layer_of()
    wrapped = torch.nn.parallel.DistributedDataParallel(module, process_group=group)
    rule = DelayedScaling(amax_history_len=4, reduce_amax=False)
    for _step in range(2):
        with te.fp8_autocast(fp8_recipe=rule, fp8_group=group):
            output = wrapped(torch.randn(5, 2, 32) * (1 + dist.get_rank(group)))
        output.sum().backward()
    assert torch.isfinite(output).all()
    with torch.no_grad():
        wrapped(torch.zeros(5, 2, 32))  # outside a scope: nothing but the broadcast
    ranks.assert_same_bits(group, {name: b for name, b in module.named_buffers() if b.numel() == 1})


@pytest.mark.parametrize("name", ranks.names(__name__))
def test_on_ranks(outcomes, name):
    outcomes.check(name)
