"""Names of fairscale's FullyShardedDataParallel that its users call: each does here what it does there."""

from typing import Any

import pytest
import ranks
import shard_models as models
import torch
import torch.distributed as dist
from plimsoll.shard import FullyShardedDataParallel as Fsdp
from plimsoll.shard import TrainingState
from torch import nn

IDLE, FORWARD, BEFORE, AFTER, SUMMON = TrainingState


class Alone:
    """A process group that knows two numbers."""

    def __init__(self, rank=0, size=1):
        self.numbers = rank, size

    def rank(self):
        return self.numbers[0]

    def size(self):
        return self.numbers[1]


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))


X = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))


# One process, without torch.distributed.


@pytest.fixture
def no_distributed():
    assert not dist.is_initialized()


@pytest.mark.usefixtures("no_distributed")
def test_a_group_of_two_numbers_needs_no_torch_distributed():
    parts = [Fsdp(net(), Alone(rank, 3)) for rank in range(3)]
    assert [(part.rank, part.world_size, part.process_group.size()) for part in parts] == [(0, 3, 3), (1, 3, 3), (2, 3, 3)]
    values = torch.cat([parameter.detach() for part in parts for parameter in part.parameters()])
    assert torch.equal(values, torch.cat([p.detach().reshape(-1) for p in net().parameters()]))
    with pytest.raises(RuntimeError, match="all_gather on rank 1 of 3 failed: its process group tells rank and size alone"):
        parts[1](X)
    with pytest.raises(ValueError, match="got rank 3 of 3"):
        Fsdp(net(), Alone(3, 3))
    with pytest.raises(TypeError, match="expected a torch.distributed.ProcessGroup"):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            Fsdp(net(), "a group")
        finally:
            dist.destroy_process_group()


@pytest.mark.usefixtures("no_distributed")
def test_a_group_of_one_rank_trains_with_the_bits_of_the_module():
    plain, model = net(), Fsdp(net(), Alone())
    for each in (plain, model):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        each(X).square().sum().backward()
        optimizer.step()
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in plain.state_dict().items())


@pytest.mark.usefixtures("no_distributed")
def test_parameters_and_modules_have_fairscales_paths():
    inner = nn.Sequential(Fsdp(nn.Linear(3, 5), Alone()), nn.Linear(5, 2))
    model = Fsdp(inner, Alone())
    outer, below = "_fsdp_wrapped_module", "_fsdp_wrapped_module._fpw_module.0._fsdp_wrapped_module"
    assert [name for name, _ in model.named_parameters()] == [f"{outer}.flat_param_0", f"{below}.flat_param_0"]
    assert model.get_parameter(f"{below}.flat_param_0") is model[0].flat_param_0
    assert model._fsdp_wrapped_module._fpw_module is model.module is inner
    assert [name for name, _ in model.named_modules()][1:4] == [outer, f"{outer}._fpw_module", f"{outer}._fpw_module.0"]
    called = []
    for path in (outer, f"{outer}._fpw_module", below):
        model.get_submodule(path).register_forward_hook(lambda *_, path=path: called.append(path))
    model(X)
    assert called == [below, f"{outer}._fpw_module", outer]
    assert list(model.local_state_dict()) == ["flat_param_0", "0.flat_param_0"]
    with model.summon_full_params():
        assert [name for name, _ in model.named_parameters()] == [name for name, _ in net().named_parameters()]
    with model.summon_full_params(recurse=False):
        assert [name for name, _ in model.named_parameters()] == ["0.flat_param_0", "1.weight", "1.bias"]
    state = model.local_state_dict()
    again = Fsdp(nn.Sequential(Fsdp(nn.Linear(3, 5), Alone()), nn.Linear(5, 2)), Alone())
    again.load_local_state_dict({name: value.clone() for name, value in state.items()})
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())


@pytest.mark.usefixtures("no_distributed")
def test_unflattened_parameters_of_one_rank_keep_their_shapes_names_and_bits():
    plain, model = net(), Fsdp(net(), Alone(), flatten_parameters=False)
    assert [(n, p.shape) for n, p in model.named_parameters()] == [(n, p.shape) for n, p in plain.named_parameters()]
    optimizers = [torch.optim.AdamW(each.parameters(), lr=0.1) for each in (plain, model)]
    for _ in range(3):
        for each, optimizer in zip((plain, model), optimizers, strict=True):
            optimizer.zero_grad()
            each(X).square().sum().backward()
            optimizer.step()
    grads = [dict((name, p.grad) for name, p in each.named_parameters()) for each in (plain, model)]
    assert all(torch.equal(grad, grads[1][name]) for name, grad in grads[0].items())
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in plain.state_dict().items())
    full = model.gather_full_optim_state_dict(optimizers[1])
    assert full is not None
    theirs = optimizers[0].state_dict()["state"]
    assert all(torch.equal(theirs[i]["exp_avg"], full["state"][i]["exp_avg"]) for i in theirs)
    fresh = torch.optim.AdamW(model.parameters(), lr=0.1)
    fresh.load_state_dict(model.get_shard_from_optim_state_dict(full))
    assert torch.equal(fresh.state[next(model.parameters())]["exp_avg"], theirs[0]["exp_avg"])
    held = model.sharded_optim_state_dict(optimizers[1])
    assert held["0.weight.exp_avg"].shape == (5, 3) and held["0.weight.step"] == 3


@pytest.mark.usefixtures("no_distributed")
def test_assert_state_names_both_states():
    states = []

    class Watched(nn.Linear):
        def forward(self, x):
            states.append((model.training_state, model[1].training_state))
            out = super().forward(x)
            out.register_hook(lambda _: states.append((model.training_state, model[1].training_state)))
            return out * 1

    model = Fsdp(nn.Sequential(Watched(3, 5), Fsdp(Watched(5, 2), Alone())), Alone())
    model.assert_state(IDLE)
    model(X).sum().backward()
    # Forward, inside the second, and back: the second's is over when the first one's outputs have their gradients.
    assert states == [(FORWARD, IDLE), (FORWARD, FORWARD), (BEFORE, BEFORE), (BEFORE, AFTER)]
    model.assert_state([FORWARD, IDLE])
    with pytest.raises(ValueError, match="expected to be in states .*FORWARD.* but current state is TrainingState.IDLE"):
        model.assert_state(FORWARD)
    with model.summon_full_params():
        model.assert_state(SUMMON)


@pytest.mark.usefixtures("no_distributed")
def test_reset_lazy_init_lets_the_next_pass_choose_the_outermost_instance():
    inner = Fsdp(nn.Linear(5, 2), Alone())
    model = Fsdp(nn.Sequential(nn.Linear(3, 5), inner), Alone())
    model(X)
    assert model._is_root and inner._is_root is False
    with pytest.raises(RuntimeError, match="expected the outermost"):
        inner.clip_grad_norm_(1.0)
    inner._reset_lazy_init()
    assert model._is_root is None and inner._is_root is None
    inner(torch.ones(1, 5))
    assert inner._is_root and inner.clip_grad_norm_(1.0) == 0
    model._reset_lazy_init()
    model(X).sum().backward()
    assert model._is_root and inner._is_root is False and inner.flat_param_0.grad.any()


@pytest.mark.usefixtures("no_distributed")
def test_each_forward_pass_registers_hooks_by_methods_that_can_be_replaced():
    calls = []

    class Watched(Fsdp):
        def _register_post_backward_hooks(self):
            calls.append("post")
            return super()._register_post_backward_hooks()

        def _register_pre_backward_hooks(self, outputs):
            calls.append("pre")
            return super()._register_pre_backward_hooks(outputs)

    model: Any = Watched(net(), Alone())
    out = model(X)
    assert calls == ["post", "pre"]
    # A hook of somebody else took the place of one of the model's; the next pass has it again.
    model.module[0].weight.register_post_accumulate_grad_hook(lambda _: calls.append("lost"))
    out = model(X)
    out.sum().backward()
    assert "lost" not in calls and model.flat_param_0.grad[:15].any()
    model._register_pre_backward_hooks = lambda outputs: (outputs, "replaced")
    assert model(X)[1] == "replaced"


@pytest.mark.usefixtures("no_distributed")
def test_mixed_precision_with_fp32_parameters_casts_inputs_to_fp16_as_fairscale_does():
    seen = []

    class Reads(nn.Linear):
        def forward(self, x, other=None):
            seen.append((x.dtype, other.dtype, self.weight.dtype))
            return super().forward(x.float())

    for dtype, expected in ((torch.float32, torch.float16), (torch.bfloat16, torch.bfloat16), (None, torch.float16)):
        model = Fsdp(Reads(3, 2), Alone(), mixed_precision=True, compute_dtype=dtype)
        if dtype is torch.float32:
            model(X, other=torch.arange(3)).sum().backward()
            assert seen.pop() == (expected, torch.int64, torch.float32)
            assert model.flat_param_0.grad.dtype == torch.float32 and model.flat_param_0.grad.any()
            model(X, other=X.double())
            assert seen.pop() == (expected, torch.float64, torch.float32)
        else:
            with pytest.raises(RuntimeError, match="dtype"):  # the product of this module's own cast
                model(X, other=torch.arange(3))
            assert seen.pop() == (expected, torch.int64, expected)


@pytest.mark.usefixtures("no_distributed")
def test_arguments_can_be_read_as_attributes():
    model = Fsdp(net(), Alone(0, 4), bucket_cap_mb=3, disable_reshard_on_root=False, verbose=True)
    assert (model.bucket_cap_mb, model.disable_reshard_on_root, model.verbose) == (3, False, True)
    assert not model.fp32_reduce_scatter and model.compute_device == model.state_dict_device == torch.device("cpu")
    assert (model.gradient_predivide_factor, model.gradient_postdivide_factor) == (2, 2)
    model.set_gradient_divide_factors(4, 1, recursive=True)
    assert (model.gradient_predivide_factor, model.gradient_postdivide_factor) == (4, 1)
    assert model.non_shared_params() == model.params == list(model.parameters())
    given = Fsdp(net(), Alone(0, 4), gradient_predivide_factor=8)
    assert (given.gradient_predivide_factor, given.gradient_postdivide_factor) == (8, 0.5)


def fairscales(weights, size):
    """A model's shards and metadata in the form that fairscale gives them: each flat parameter padded to equal parts."""
    units = {"": ["1.weight", "1.bias"], "0": ["weight", "bias"]}
    everyone: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {"param_metadata": [], "buffer_names": ["steps"]}) for _ in range(size)
    ]
    for path, names in units.items():
        prefix = path + "." if path else ""
        values = [weights[prefix + name] for name in names]
        flat = torch.cat([value.reshape(-1) for value in values])
        part = -(-flat.numel() // size)
        for rank, (shards, metadata) in enumerate(everyone):
            mine = flat[rank * part : (rank + 1) * part]
            padding = part - mine.numel()
            shards[prefix + "flat_param_0"] = nn.functional.pad(mine, (0, padding), value=float("nan"))
            numels = [value.numel() for value in values]
            entry = {"names": names, "shapes": [v.shape for v in values], "numels": numels, "padding": padding}
            unit = {"fsdp_path": path, "params": {"flat_param_0": entry}, "no_broadcast_optim_state": False}
            shared = [("1.weight", "2.weight")] if path == "" else []  # the first of two names stands first
            metadata["param_metadata"].append({**unit, "shared_param_info": shared})
            shards["steps"] = torch.tensor(7)
    return [shards for shards, _ in everyone], [metadata for _, metadata in everyone]


@pytest.mark.parametrize("size", [1, 3, 5])
def test_shards_and_metadata_of_fairscale_are_consolidated(size):
    weights = {name: value.detach() for name, value in net().named_parameters()}
    shards, metadata = fairscales(weights, size)
    whole = Fsdp.consolidate_shard_weights(shards, metadata)
    assert whole.keys() == weights.keys() | {"2.weight", "steps"} and whole["steps"] == 7
    assert all(torch.equal(value, whole[name]) for name, value in weights.items())
    assert torch.equal(whole["2.weight"], weights["1.weight"])
    assert "steps" not in Fsdp.consolidate_shard_weights(shards, metadata, with_module_buffers=False)
    shards[0].pop("0.flat_param_0")
    assert "0.weight" not in Fsdp.consolidate_shard_weights(shards, metadata, strict=False)
    with pytest.raises(KeyError, match="0.flat_param_0"):
        Fsdp.consolidate_shard_weights(shards, metadata)


def test_parameters_that_each_rank_has_whole_are_read_once():
    weights = {name: value.detach() for name, value in net().named_parameters()}
    shards, metadata = fairscales(weights, 1)
    whole = Fsdp.consolidate_shard_weights(shards * 2, metadata * 2)
    assert all(torch.equal(value, whole[name]) for name, value in weights.items())
    shards[0]["flat_param_0"] = shards[0]["flat_param_0"][:5]
    with pytest.raises(ValueError, match="expected 12 elements of flat_param_0, got 5"):
        Fsdp.consolidate_shard_weights(shards, metadata)


# Two ranks.


@ranks.case(2)
def metadata_says_what_fairscales_does(group):
    rank, _ = models.position(group)
    model = Fsdp(nn.Sequential(Fsdp(nn.Linear(3, 5), group), nn.Linear(5, 3)), group)
    outer, inner = model.local_metadata_dict()["param_metadata"]
    assert (outer["fsdp_path"], inner["fsdp_path"], outer["no_broadcast_optim_state"]) == ("", "0", False)
    assert outer["params"]["flat_param_0"] == {
        "names": ["1.weight", "1.bias"],
        "shapes": [torch.Size([3, 5]), torch.Size([3])],
        "numels": [15, 3],
        "padding": 0,
    }
    assert model.flat_param_0.numel() == 9 and rank in (0, 1)


@ranks.case(2)
def full_parameters_that_were_let_go_of_come_again(group):
    rank, size = models.position(group)
    x, y = models.part(models.batch(0), rank, size)
    kept, freed = (models.wrapped(models.blocks_net(), group, reshard_after_forward=False) for _ in range(2))
    expected = models.backward(kept, x, y)
    loss = nn.functional.mse_loss(freed(x), y)
    block = freed.blocks[0]
    assert block.module[0].weight.numel() == 17 * 17
    block._free_full_params([freed.flat_param_0])
    assert block.module[0].weight.numel() == 17 * 17, "those of other shards stay"
    block._free_full_params()
    assert block.module[0].weight.numel() == 0
    loss.backward()
    assert torch.equal(loss.detach(), expected)
    grads = [dict((name, p.grad) for name, p in each.named_parameters() if p.grad is not None) for each in (kept, freed)]
    assert grads[0].keys() == grads[1].keys() and all(torch.equal(grad, grads[1][name]) for name, grad in grads[0].items())
    with freed.summon_full_params(), pytest.raises(RuntimeError, match="outside summon_full_params"):
        freed._free_full_params()


@ranks.case(2)
def process_groups_can_be_asked(group):
    twin = dist.new_group([0, 1])
    for given, expected in ((twin, twin), ("reduce_scatter", group), ("default", group)):
        model = Fsdp(net(), group, process_group_reduce_scatter=given)
        assert model.process_group is group and model.process_group_reduce_scatter is expected
        assert model.process_group_reduce_scatter.size() == 2
    with pytest.raises(TypeError, match="unsupported type"):
        Fsdp(net(), group, process_group_reduce_scatter=3)


@pytest.mark.parametrize("name", ranks.names(__name__))
def test_on_ranks(outcomes, name):
    outcomes.check(name)
