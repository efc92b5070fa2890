"""State of modules that ranks share: parts of weights, random draws, copies, recomputation and codes."""

import copy
import functools
import pickle
from typing import Any

import oracle
import plimsoll.pytorch as te
import pytest
import ranks
import torch
from plimsoll.common import recipe
from tensor_parallel_models import part, rank_of, scope, seeded


@ranks.case(2)
def a_rank_saves_its_tokens_alone(group):
    saved = {}
    for sequence in (False, True):
        options = {"parallel_mode": "column", "tp_group": group, "sequence_parallel": sequence}
        layer = seeded(functools.partial(te.Linear, 64, 64, **options))
        x = torch.randn(32 // (2 if sequence else 1), 4, 64)
        sizes: list[Any] = []

        def keep(tensor, sizes=sizes):
            sizes.append(tensor.nbytes)
            return tensor

        saves = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
        with saves, scope(group, oracle.RECIPES["delayed"]):
            layer(x.requires_grad_())
        saved[sequence] = sum(sizes)
    assert saved[False] - saved[True] == 16 * 4 * 64


@ranks.case(2)
def state_dicts_hold_the_parts(group):
    layer: Any = te.TransformerLayer(32, 64, 4, set_parallel_mode=True, tp_group=group)
    shapes = {name: tuple(value.shape) for name, value in layer.state_dict().items()}
    assert shapes["self_attention.layernorm_qkv.query_weight"] == (16, 32)
    assert shapes["self_attention.proj.weight"] == (32, 16) and shapes["self_attention.proj.bias"] == (32,)
    assert shapes["layernorm_mlp.fc1_weight"] == (32, 32) and shapes["layernorm_mlp.fc1_bias"] == (32,)
    assert shapes["layernorm_mlp.fc2_weight"] == (32, 32) and shapes["layernorm_mlp.layer_norm_weight"] == (32,)
    assert sum(parameter.numel() for parameter in layer.parameters()) * 4 == sum(
        value.numel() * 4 for name, value in layer.state_dict().items() if not name.endswith(("_scale", "_amax_history", "_step"))
    )
    assert layer.tp_size == 2 and layer.layernorm_mlp.fc1_weight.tensor_model_parallel
    other = te.TransformerLayer(32, 64, 4, set_parallel_mode=True, tp_group=group)
    other.load_state_dict(layer.state_dict())
    ranks.assert_same_bits(group, {"norm": other.layernorm_mlp.layer_norm_weight})


@ranks.case(2)
def the_group_may_come_later_from_meta_and_copies(group):
    whole = seeded(lambda: te.Linear(8, 6))
    layer: Any = te.Linear(8, 6, parallel_mode="column", tp_size=2, device="meta")
    assert layer.weight.is_meta and layer.weight.shape == (3, 8)
    with pytest.raises(RuntimeError, match="set_tensor_parallel_group before the first call, tp_size is 2"):
        te.Linear(8, 6, parallel_mode="column", tp_size=2)(torch.zeros(1, 8))
    layer.set_tensor_parallel_group(group)
    torch.manual_seed(0)
    layer.reset_parameters()
    assert torch.equal(layer.weight, part(group, whole.weight, 0))
    assert layer.weight.partition_dim == 0
    x = torch.randn(2, 8)
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))
    loaded = pickle.loads(pickle.dumps(layer))
    assert loaded.tp_group is None and loaded.tp_size == 2
    loaded.set_tensor_parallel_group(group)
    assert torch.equal(loaded(x), layer(x))
    block = te.TransformerLayer(32, 64, 4, set_parallel_mode=True, tp_size=2, hidden_dropout=0.0, attention_dropout=0.0)
    block.set_tensor_parallel_group(group)
    assert block(torch.randn(2, 1, 32)).shape == (2, 1, 32) and block.self_attention.proj.tp_group is group


@ranks.case(2)
def a_tracker_draws_other_weights_and_dropout_on_each_rank(group):
    tracker = te.distributed.CudaRNGStatesTracker()
    tracker.add("model-parallel-rng", 100 + rank_of(group))
    torch.manual_seed(0)
    layer = te.TransformerLayer(
        32,
        64,
        4,
        set_parallel_mode=True,
        tp_group=group,
        get_rng_state_tracker=lambda: tracker,
        attention_dropout=0.5,
        hidden_dropout=0.0,
    )
    first, second = ranks.gathered(group, layer.layernorm_mlp.fc1_weight.detach())
    assert not torch.equal(first, second)
    before = tracker.get_states()["model-parallel-rng"].clone()
    layer(torch.randn(4, 2, 32))
    assert not torch.equal(before, tracker.get_states()["model-parallel-rng"])
    ranks.assert_same_bits(group, {"outside": torch.get_rng_state(), "drawn": torch.randn(4)})


def steps(group, layer, call):
    """Bits of two training steps: outputs, gradients of inputs and parameters, scaling state."""
    seen: dict[Any, Any] = {}
    for step in range(2):
        torch.manual_seed(step)
        x = torch.randn(4, 3, 32).requires_grad_()
        with scope(group, recipe.DelayedScaling(amax_history_len=4)):
            output = call(layer, x)
        output.square().sum().backward()
        seen |= {f"output {step}": output.detach(), f"gradient of x {step}": x.grad}
    grads = {name: getattr(p, "main_grad", p.grad) for name, p in layer.named_parameters()}
    return seen | grads | dict(layer.named_buffers())


def shared_layer(group, **more):
    return seeded(
        lambda: te.TransformerLayer(
            32,
            64,
            4,
            hidden_dropout=0.0,
            attention_dropout=0.5,
            set_parallel_mode=True,
            tp_group=group,
            sequence_parallel=True,
            **more,
        )
    )


@ranks.case(2)
def recompute_and_accumulation_in_place_change_no_bit(group):
    plain = steps(group, shared_layer(group), lambda layer, x: layer(x))
    recomputed = steps(group, shared_layer(group), te.checkpoint)
    fused = shared_layer(group, fuse_wgrad_accumulation=True)
    for parameter in fused.parameters():
        if parameter.dim() == 2:
            parameter.main_grad = torch.zeros(parameter.shape)
    accumulated = steps(group, fused, lambda layer, x: layer(x))
    assert plain.keys() == recomputed.keys() == accumulated.keys()
    for name, value in plain.items():
        assert torch.equal(recomputed[name], value), f"recomputed {name}"
        assert torch.equal(accumulated[name], value), f"accumulated {name}"


@ranks.case(2)
def weights_held_as_codes_are_parts_of_what_one_rank_draws(group):
    whole = seeded(lambda: te.Linear(32, 48))
    with te.fp8_model_init():
        layer: Any = seeded(lambda: te.Linear(32, 48, parallel_mode="column", tp_group=group, sequence_parallel=True))
    assert layer.weight.partition_dim == 0 and isinstance(layer.weight, te.QuantizedTensor)
    mine = part(group, whole.weight.detach(), 0)
    # Half of E4M3's distances, and half the smallest one of the common scale.
    bound = 2.0**-4 * mine.abs() + 2.0**-10 * layer.weight.scale
    assert bool(((layer.weight.dequantize() - mine).abs() <= bound).all())
    with scope(group, recipe.DelayedScaling()):
        layer(torch.randn(2, 3, 32)).sum().backward()
    assert layer.weight.grad is not None and layer.weight.grad.shape == (24, 32)


@ranks.case(2)
def a_compiler_leaves_these_modules_out(group):
    layer = te.Linear(8, 8, parallel_mode="column", tp_group=group)
    x = torch.randn(2, 8)
    assert torch.equal(torch.compile(layer, backend="eager")(x), layer(x))
    torch._dynamo.reset()
    with pytest.raises(Exception, match="tp_size: expected 1 under torch.compile"):
        torch.compile(layer, backend="eager", fullgraph=True)(x)


@pytest.mark.parametrize("name", ranks.names(__name__))
def test_on_ranks(outcomes, name):
    outcomes.check(name)
