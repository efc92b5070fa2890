"""Averages of gradients under ShardedDataParallel: after exceptions, around checkpoints, over several backward()."""

import copy
import gc
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
from plimsoll.shard import OSS, OffloadModel, ShardedDataParallel, checkpoint_wrapper
from sharded_data_parallel_models import Layers, assert_averaged, assert_next_averaged, averaged, backward, rows, sharded, wrapped
from torch import nn
from torch.utils.checkpoint import checkpoint


@ranks.case(2)
def after_an_exception_in_backward_gradients_are_averaged(group):
    for size in (2**23, 0):  # nothing, or three of four, had been sent when it came
        parallel, optimizer, alone = sharded(Layers(), group, reduce_buffer_size=size)
        kept = []
        for step, error in enumerate((RuntimeError("broken off"), KeyboardInterrupt("broken off"), MemoryError("broken off"))):
            parallel.module.breaks = {0: error}
            with pytest.raises(type(error), match="broken off") as caught:
                backward(parallel, rows(group, step))
            kept.append(caught)  # with the frames in it
            parallel.module.breaks = {}
            assert_next_averaged(group, parallel, optimizer, alone, step)


@ranks.case(2)
def an_exception_in_forward_or_in_a_hook_leaves_the_next_pass_whole(group):
    parallel, optimizer, alone = sharded(Layers(), group, reduce_buffer_size=0)
    last = parallel.module.layers[3].weight

    def failing(*_):
        raise ValueError("broken off")

    hooks = (
        parallel.module.layers[2].register_forward_hook,
        parallel.module.layers[2].register_full_backward_hook,
        last.register_hook,
        last.register_post_accumulate_grad_hook,
    )
    for step, register in enumerate(hooks):
        handle = register(failing)
        optimizer.zero_grad()
        with pytest.raises(ValueError, match="broken off"), parallel.no_sync():
            backward(parallel, rows(group, step))
        with pytest.raises(ValueError, match="broken off"):
            backward(parallel, rows(group, step))
        handle.remove()
        assert_next_averaged(group, parallel, optimizer, alone, step)


@ranks.case(2)
def an_exception_inside_a_checkpoint_leaves_the_next_pass_whole(group):
    parallel, optimizer, alone = sharded(Checkpointed(Layers()), group)
    parallel.module.body.breaks = {1: RuntimeError("broken off")}
    with pytest.raises(RuntimeError, match="broken off"):
        backward(parallel, rows(group))
    parallel.module.body.breaks = {}
    assert_next_averaged(group, parallel, optimizer, alone)


@ranks.case(2)
def a_pass_that_ended_on_one_rank_alone_is_an_error(group):
    parallel, optimizer, _ = sharded(Layers(), group, reduce_buffer_size=0)
    # Two of four gradients of rank 0 had been sent, and none of rank 1.
    parallel.module.breaks = {1 if dist.get_rank(group) == 0 else 3: RuntimeError("broken off")}
    with pytest.raises(RuntimeError, match="broken off"):
        backward(parallel, rows(group))
    parallel.module.breaks = {}
    optimizer.zero_grad()
    with pytest.raises(RuntimeError, match="expected gradients of the same backward pass from each rank"):
        backward(parallel, rows(group, 1))


class Checkpointed(nn.Module):
    """A module that is used in two checkpoints, one of them around another one."""

    def __init__(self, body, outside=False):
        super().__init__()
        self.body, self.outside = body, outside

    def forward(self, x):
        x = x.clone().requires_grad_()
        once = lambda x: checkpoint(self.body, x, use_reentrant=True)
        x = once(x)
        x = checkpoint(lambda x: once(2 * x) + x, x, use_reentrant=True)
        return self.body(x) if self.outside else x

    def energy(self, x):
        return self(x).square().sum()


@ranks.case(2)
def a_module_in_two_reentrant_checkpoints_has_the_gradients_of_the_unsharded_model(group):
    for size in (2**23, 0):
        parallel, optimizer, alone = sharded(Checkpointed(Layers()), group, reduce_buffer_size=size)
        for step in range(3):
            assert_next_averaged(group, parallel, optimizer, alone, step)


@ranks.case(2)
def a_module_inside_and_outside_of_checkpoints_has_the_gradients_of_the_unsharded_model(group):
    for size in (2**23, 0):
        parallel, optimizer, alone = sharded(Checkpointed(Layers(), outside=True), group, reduce_buffer_size=size)
        for step in range(2):
            assert_next_averaged(group, parallel, optimizer, alone, step, exact=False)


class Between(nn.Module):
    """Two layers outside of a checkpoint, and the first one inside it once more, whose gradient comes between theirs."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.layers = nn.ModuleList(nn.Linear(6, 6, bias=False) for _ in range(6))

    def forward(self, x):
        for layer in (*self.layers[:4], lambda x: checkpoint(self.layers[5], x, use_reentrant=True), *self.layers[4:]):
            x = torch.tanh(layer(x))
        return x


@ranks.case(2)
def averages_that_arrive_between_two_gradients_of_a_parameter_change_neither(group):
    parallel, optimizer, alone = sharded(Between(), group, reduce_buffer_size=0)
    for step in range(2):
        assert_next_averaged(group, parallel, optimizer, alone, step, exact=False)


@ranks.case(2)
def passes_that_forward_has_not_seen_have_the_gradients_of_the_unsharded_model(group):
    # A method of the module, through the wrapper, whose first gradients come from inside a checkpoint.
    for outside in (False, True):
        parallel, optimizer, alone = sharded(Checkpointed(Layers(), outside), group)
        for step in range(2):
            optimizer.zero_grad()
            alone.zero_grad()
            parallel.energy(rows(group, step)).backward()
            alone.energy(rows(group, step)).backward()
            assert_averaged(group, parallel, optimizer, alone, exact=False)


@ranks.case(2)
def a_wrapper_inside_of_checkpoints_has_the_gradients_of_the_unsharded_model(group):
    parallel, optimizer, alone = sharded(Layers(), group)
    for step in range(2):
        optimizer.zero_grad()
        alone.zero_grad()
        backward(Checkpointed(parallel), rows(group, step))
        backward(Checkpointed(alone), rows(group, step))
        assert_averaged(group, parallel, optimizer, alone)


@ranks.case(2)
def other_recomputations_have_the_gradients_of_the_unsharded_model(group):
    for wrap in (
        lambda layers: nn.Sequential(*(checkpoint_wrapper(layer) for layer in layers)),
        lambda layers: OffloadModel(nn.Sequential(*layers), device="cpu", num_slices=2),
    ):
        layers = [nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh()]
        alone = nn.Sequential(*copy.deepcopy(layers))
        parallel, optimizer = wrapped(wrap(layers), group)
        backward(parallel, rows(group))
        backward(alone, rows(group))
        whole = averaged(group, alone)
        for average, parameter in zip(whole.values(), parallel.module.parameters(), strict=True):
            if optimizer.param_to_rank[parameter] == dist.get_rank(group):
                assert torch.equal(parameter.grad, average)
            else:
                assert parameter.grad is None


@ranks.case(2)
def several_backward_add_up_to_the_gradients_of_the_unsharded_model(group):
    parallel, optimizer, alone = sharded(Checkpointed(Layers()), group)
    for clear in (lambda o: o.zero_grad(), lambda o: o.zero_grad(set_to_none=False)):
        clear(optimizer)
        alone.zero_grad()
        for step in range(3):
            backward(parallel, rows(group, step))
            backward(alone, rows(group, step))
            assert_averaged(group, parallel, optimizer, alone, exact=False)
            kept = {p: p.grad for p in parallel.parameters()}
            torch.autograd.grad(parallel.body(rows(group)).sum(), list(parallel.parameters()))
            assert all(p.grad is grad for p, grad in kept.items()), "autograd.grad leaves gradients alone"
    with parallel.no_sync(), pytest.raises(RuntimeError, match="after gradients had been averaged"):
        backward(parallel, rows(group))


class Choosing(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(6)
        self.branches = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, x, branch):
        return self.branches[branch](x)


@ranks.case(2)
def what_added_up_without_synchronisation_is_averaged_whoever_uses_it_last(group):
    parallel, optimizer, alone = sharded(Choosing(), group)
    rank = dist.get_rank(group)
    for _ in range(2):
        optimizer.zero_grad()
        alone.zero_grad()
        with parallel.no_sync():
            parallel(rows(group, 1), rank).sum().backward()
        parallel(rows(group, 2), 2).sum().backward()
        alone(rows(group, 1), rank).sum().backward()
        alone(rows(group, 2), 2).sum().backward()
        assert_averaged(group, parallel, optimizer, alone)


@ranks.case(2)
def what_requires_no_gradient_is_not_trained_until_it_does_again(group):
    for auto in (True, False):
        model: Any = Layers()
        parallel, optimizer, _ = sharded(model, group, auto_refresh_trainable=auto, warn_on_trainable_params_changed=False)
        optimizer = OSS(model.parameters(), torch.optim.AdamW, group=group, lr=0.1, weight_decay=0.1)
        parallel.sharded_optimizers = [optimizer]
        parallel.refresh_trainable()
        # As many are trained before and after: one freezes while the other thaws.
        for step, frozen in enumerate(([], [0], [1], [1, 2], [0, 3], [])):
            for index, layer in enumerate(model.layers):
                layer.requires_grad_(index not in frozen)
            if not auto:
                if step == 2:
                    with pytest.raises(RuntimeError, match=r"expected forward\(\) or refresh_trainable\(\).*got 1 parameters"):
                        parallel(rows(group))
                parallel.refresh_trainable()
            before = [layer.weight.detach().clone() for layer in model.layers]
            optimizer.zero_grad()
            backward(parallel, rows(group, step))
            optimizer.step()
            changed = [not torch.equal(layer.weight, old) for layer, old in zip(model.layers, before, strict=True)]
            assert changed == [index not in frozen for index in range(4)], (auto, step)
            ranks.assert_same_bits(group, dict(model.named_parameters()))


@ranks.case(2)
def what_trains_anew_behind_the_back_of_forward_is_an_error(group):
    module = Checkpointed(Layers())
    module.body.layers[1].requires_grad_(False)
    parallel, optimizer, _ = sharded(module, group)
    parallel.energy(rows(group)).backward()
    module.body.layers[1].requires_grad_(True)
    with pytest.raises(RuntimeError, match=r"expected forward\(\) or refresh_trainable\(\).*got 1 parameters"):
        parallel.energy(rows(group)).backward()


@ranks.case(2)
def what_froze_after_it_had_added_up_is_not_trained(group):
    parallel, optimizer, _ = sharded(Layers(), group, warn_on_trainable_params_changed=False)
    frozen = parallel.module.layers[0]
    before = frozen.weight.detach().clone()
    with parallel.no_sync():
        backward(parallel, rows(group, 1))
    frozen.requires_grad_(False)
    backward(parallel, rows(group, 2))
    optimizer.step()
    assert torch.equal(frozen.weight, before)


@ranks.case(2)
def a_module_is_wrapped_again_once_its_wrapper_is_gone(group):
    module = Layers()
    first, optimizer = wrapped(module, group)
    second = ShardedDataParallel(module, optimizer, group)
    with pytest.raises(RuntimeError, match="second ShardedDataParallel around the same module"):
        backward(second, rows(group))
    del first
    gc.collect()  # the broken pass and its reducer know each other
    alone = copy.deepcopy(module)
    assert_next_averaged(group, second, optimizer, alone)


@ranks.case(2)
def a_sparse_gradient_is_an_error_that_says_so(group):
    embedding = nn.Embedding(4, 2, sparse=True)
    parallel, _, _ = sharded(embedding, group)
    with pytest.raises(RuntimeError, match=r"expected dense gradients, got a sparse one of a parameter of shape \[4, 2\]"):
        parallel(torch.tensor([1, 1])).sum().backward()


@ranks.case(2)
def ranks_that_train_other_parameters_are_refused(group):
    module = Layers()
    module.layers[1].weight.requires_grad_(dist.get_rank(group) == 0)
    with pytest.raises(ValueError, match=r"requires_grad of parameters and buffers on all ranks, got others .* on rank 1"):
        wrapped(module, group)


@ranks.case(2)
def ranks_that_freeze_other_parameters_are_refused(group):
    parallel, _, _ = sharded(Layers(), group, warn_on_trainable_params_changed=False)
    backward(parallel, rows(group))
    layers = parallel.module.layers
    layers[dist.get_rank(group)].weight.requires_grad_(False)
    with pytest.raises(ValueError, match=r"requires_grad of parameters and buffers on all ranks, got others .* on rank 1"):
        backward(parallel, rows(group))


@pytest.mark.parametrize("name", ranks.names(__name__))
def test_on_ranks(outcomes, name):
    outcomes.check(name)
