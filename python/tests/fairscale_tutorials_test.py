"""Training as the first pages of fairscale's documentation show it, fully sharded and with a sharded optimizer, with nothing but
the import changed: the calls are fairscale's, and the results those of one process."""

import functools

import pytest
import ranks
import shard_models as models
import torch
from plimsoll.shard import OSS, ShardedGradScaler, auto_wrap, checkpoint_wrapper, default_auto_wrap_policy, enable_wrap, wrap
from plimsoll.shard import FullyShardedDataParallel as FSDP
from plimsoll.shard import ShardedDataParallel as ShardedDDP
from torch import nn

STEPS = 5


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(9, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))


def one_process(make=torch.optim.SGD, **options):
    """Weights after training on whole batches, and what two halves of a batch may round differently.

    A step adds lr times a gradient of relative rounding (ROWS + 16 features) 2^-24, and later steps see weights that far
    apart: the sum over steps is doubled for that, since lr times the curvature is below one here."""
    model = net()
    optimizer = make(model.parameters(), **options)
    moved = 0.0
    for step in range(STEPS):
        optimizer.zero_grad()
        models.backward(model, *models.batch(step))
        moved += options["lr"] * max(p.grad.abs().max().item() for p in model.parameters())
        optimizer.step()
    largest = max(p.abs().max().item() for p in model.parameters())
    return model.state_dict(), 2 * STEPS * (moved + largest) * (models.ROWS + 16) * 2.0**-24


def train(model, optimizer, rank, size):
    for step in range(STEPS):
        x, y = models.part(models.batch(step), rank, size)
        model.train()
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    return loss.item()


def assert_as_one_process(state, expected, bound):
    assert state.keys() == expected.keys()
    for name, value in expected.items():
        assert (state[name] - value).abs().max() <= bound, name


@ranks.case(2)
def fully_sharded(group):
    """The module is wrapped as it is, and the optimizer made of what it has then."""
    rank, size = models.position(group)
    model = FSDP(net(), process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, rank, size)
    assert sum(p.numel() for p in model.parameters()) <= -(-sum(p.numel() for p in net().parameters()) // size)
    assert_as_one_process(model.state_dict(), *one_process(lr=0.1))


@ranks.case(2)
def fully_sharded_inside_a_class(group):
    """Layers are wrapped where the model is made, and options given once."""
    rank, size = models.position(group)

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            plain = net()
            self.first = wrap(plain[0])
            self.middle = auto_wrap(nn.Sequential(*plain[1:4]))
            self.last = checkpoint_wrapper(wrap(plain[4]))

        def forward(self, x):
            return self.last(self.middle(self.first(x)))

    policy = functools.partial(default_auto_wrap_policy, min_num_params=100)
    with enable_wrap(auto_wrap_policy=policy, wrapper_cls=FSDP, process_group=group, flatten_parameters=True):
        model = wrap(Wrapped())
    assert sum(isinstance(part, FSDP) for part in model.modules()) == 4
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, rank, size)
    state = dict(zip(net().state_dict(), model.state_dict().values(), strict=True))
    assert_as_one_process(state, *one_process(lr=0.1))


@ranks.case(2)
def saved_and_loaded_whole_and_in_shards(group):
    """Evaluation, the whole state dict, the state of the optimizer, and the shards of each rank."""
    rank, size = models.position(group)
    model = FSDP(net(), process_group=group)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    train(model, optimizer, rank, size)
    model.eval()
    with torch.no_grad():
        expected = model(models.batch(9)[0])
    full_state, full_optim_state = model.state_dict(), model.gather_full_optim_state_dict(optimizer, recipient_rank=None)
    shards = ranks.gathered(group, ({k: v.clone() for k, v in model.local_state_dict().items()}, model.local_metadata_dict()))

    again = FSDP(net(seed=1), process_group=group)
    again.load_state_dict(full_state)
    assert full_optim_state is not None
    resumed = torch.optim.Adam(again.parameters(), lr=0.1)
    resumed.load_state_dict(again.get_shard_from_optim_state_dict(full_optim_state))
    with torch.no_grad():
        assert torch.equal(again(models.batch(9)[0]), expected)
    assert train(again, resumed, rank, size) == train(model, optimizer, rank, size)

    alone = net(seed=2)
    alone.load_state_dict(FSDP.consolidate_shard_weights([s for s, _ in shards], [m for _, m in shards]))
    with torch.no_grad():
        assert torch.equal(alone(models.batch(9)[0]), expected)


@ranks.case(2)
def optimizer_state_sharded(group):
    """An optimizer around torch's, by its class and arguments; the model around the module and that optimizer."""
    rank, size = models.position(group)
    module = net()
    optimizer = OSS(params=module.parameters(), optim=torch.optim.SGD, group=group, lr=0.1, momentum=0.5)
    model = ShardedDDP(module, optimizer, process_group=group)
    train(model, optimizer, rank, size)
    assert_as_one_process(module.state_dict(), *one_process(lr=0.1, momentum=0.5))
    held = len(optimizer.optim.state)
    assert sum(ranks.gathered(group, held)) == len(list(module.parameters())) and held > 0


@ranks.case(2)
def optimizer_state_consolidated_on_one_rank(group):
    rank, size = models.position(group)
    module = net()
    optimizer = OSS(params=module.parameters(), optim=torch.optim.Adam, group=group, lr=0.1)
    train(ShardedDDP(module, optimizer, process_group=group), optimizer, rank, size)
    optimizer.consolidate_state_dict(recipient_rank=0)
    state = ranks.gathered(group, optimizer.state_dict() if rank == 0 else None)[0]
    plain = torch.optim.Adam(net().parameters(), lr=0.1)
    plain.load_state_dict(state)
    assert len(plain.state) == len(list(module.parameters()))
    resumed = OSS(params=module.parameters(), optim=torch.optim.Adam, group=group, lr=0.3)
    resumed.load_state_dict(state)
    assert resumed.param_groups[0]["lr"] == 0.1 and len(resumed.optim.state) == len(optimizer.optim.state)


@ranks.case(2)
def mixed_precision_with_a_loss_scale(group):
    rank, size = models.position(group)
    module = net()
    optimizer = OSS(params=module.parameters(), optim=torch.optim.SGD, group=group, lr=0.1)
    model = ShardedDDP(module, optimizer, process_group=group)
    scaler = ShardedGradScaler(process_group=group)
    x, y = models.part(models.batch(0), rank, size)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x).float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        optimizer.clip_grad_norm(1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < losses[0] and scaler.get_scale() == 2.0**16
    ranks.assert_same_bits(group, module.state_dict())


@pytest.mark.parametrize("name", ranks.names(__name__))
def test_on_ranks(outcomes, name):
    outcomes.check(name)
