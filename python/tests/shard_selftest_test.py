"""plimsoll.shard.selftest: agrees with sharded steps as they are, and notices what may go wrong with them."""

import pytest
import ranks
import shard_models as models
import torch
import torch.distributed as dist
from plimsoll.shard import FullyShardedDataParallel as Fsdp
from plimsoll.shard import selftest


def step_of(group, step, passes=1):
    mine = models.part(models.batch(step), dist.get_rank(group), dist.get_world_size(group))

    def backward(module):
        rows = len(mine[0]) // passes
        for first in range(0, len(mine[0]), rows):
            models.backward(module, *(x[first : first + rows] for x in mine))

    return backward


def weights_of(model):
    with model.summon_full_params(volatile=True):
        return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


@ranks.case(3)
def steps_agree_with_those_of_the_whole_model(group):
    for options in (
        {},
        {"flatten_parameters": False, "ordered_passes": 2},
        {"state_dict_on_rank_0_only": True},
        {"mixed_precision": True, "compute_dtype": torch.bfloat16},
    ):
        model = models.wrapped(models.blocks_net(), group, **options)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        before = weights_of(model)
        for step in range(2):
            found = selftest(model, optimizer, step_of(group, step, options.get("ordered_passes", 1)))
        names = {name for name, parameter in models.blocks_net().named_parameters() if parameter.requires_grad}
        assert found.gradients.keys() == found.weights.keys() == names
        after = weights_of(model)
        assert not torch.equal(before["first.weight"], after["first.weight"]), "the steps count"
        assert torch.equal(before["frozen.weight"], after["frozen.weight"])


@ranks.case(2)
def shared_weights_and_ranks_alone_agree(group):
    alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    for ours in (group, alone):
        model = Fsdp(models.Net(), ours)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
        assert "tied.weight" not in selftest(model, optimizer, step_of(ours, 0)).gradients


@ranks.case(2)
def a_sum_instead_of_an_average_is_noticed(group):
    model = models.wrapped(models.blocks_net(), group)
    model.set_gradient_divide_factors(1.0, 1.0, recursive=False)
    with pytest.raises(AssertionError, match="the ranks' sum, and no average, have .'first.weight'"):
        selftest(model, torch.optim.SGD(model.parameters(), lr=0.1), step_of(group, 0))


@ranks.case(2)
def a_rank_that_lacks_its_share_is_noticed(group):
    model = models.wrapped(models.blocks_net(), group)
    backward = step_of(group, 0)

    def forgets(module):
        backward(module)
        if module is model and dist.get_rank(group) == 1:
            model.blocks[1].flat_param_0.grad.zero_()

    with pytest.raises(AssertionError, match="expected the gradients of the whole model, got errors of .'blocks.1.0"):
        selftest(model, torch.optim.SGD(model.parameters(), lr=0.1), forgets)


@ranks.case(2)
def an_optimizer_that_is_not_elementwise_is_noticed(group):
    class Normalised(torch.optim.SGD):
        def step(self, closure=None):
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad /= parameter.grad.norm()
            super().step()

    model = Fsdp(models.blocks_net(), group)
    with pytest.raises(AssertionError, match="expected the weights of the whole model"):
        selftest(model, Normalised(model.parameters(), lr=0.1), step_of(group, 0))


@pytest.mark.parametrize("name", ranks.names(__name__))
def test_on_ranks(outcomes, name):
    outcomes.check(name)
