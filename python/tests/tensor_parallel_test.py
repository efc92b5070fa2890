"""Modules that ranks share, against one rank's and against the oracle."""

import copy
import functools
import pickle

import oracle
import plimsoll.pytorch as te
import pytest
import ranks
import torch
import torch.distributed as dist
from plimsoll.common import recipe
from torch.profiler import profile

ALL_RECIPES = {"none": None, **oracle.RECIPES}


def rank_of(group):
    return dist.get_rank(group)


def part(group, tensor, dim):
    return tensor.chunk(dist.get_world_size(group), dim)[rank_of(group)]


def scope(group, rule):
    return te.fp8_autocast(enabled=rule is not None, fp8_recipe=rule, fp8_group=group)


def seeded(make, seed=0):
    torch.manual_seed(seed)
    return make()


def randomized(module):
    """The same values for a whole module and for the parts of its ranks: biases and norms away from what has no effect."""
    for name, parameter in module.named_parameters():
        if parameter.dim() == 1:
            torch.manual_seed(len(name))
            with torch.no_grad():
                parameter.copy_(torch.linspace(0.5, 1.5, 4).repeat(parameter.numel() // 4))
    return module


def sum_over_tokens(group, module):
    """Sums the gradients that each rank has from its tokens alone, as Megatron-LM does."""
    for parameter in module.parameters():
        if getattr(parameter, "sequence_parallel", False):
            dist.all_reduce(parameter.grad, group=group)


def linear_parts(group, rule, mode, x, weight, bias, grad):
    """For each rank what the oracle says of its part; {name: (value, bound)}."""
    size, by_rows = dist.get_world_size(group), mode == "row"
    xs = x.flatten(0, -2).chunk(size, 1) if by_rows else [x.flatten(0, -2)] * size
    grads = [grad.flatten(0, -2)] * size if by_rows else grad.flatten(0, -2).chunk(size, 1)
    weights = weight.chunk(size, 1 if by_rows else 0)
    biases = [None] * size if by_rows or bias is None else bias.chunk(size)
    return [oracle.linear(rule, *operands) for operands in zip(xs, weights, biases, grads, strict=False)]


def summed(parts, name, extra=None):
    """Over ranks, in FP32 and in any order."""
    values, bounds = zip(*(each[name] for each in parts), strict=False)
    total = sum(values) if extra is None else sum(values) + extra.double()
    terms = sum(value.abs() for value in values) + (0 if extra is None else extra.abs())
    return total, sum(bounds) + len(parts) * 2.0**-23 * terms


def check_linear(group, mode, sequence, rule, shape, out_features):
    torch.manual_seed(1)
    by_rows, in_features = mode == "row", shape[-1]
    whole = te.Linear(in_features, out_features)
    layer = seeded(lambda: te.Linear(in_features, out_features, parallel_mode=mode, tp_group=group, sequence_parallel=sequence))
    with torch.no_grad():
        whole.bias.normal_()
        layer.weight.copy_(part(group, whole.weight, 1 if by_rows else 0))
        layer.bias.copy_(whole.bias if by_rows else part(group, whole.bias, 0))
    x, grad = torch.randn(shape), torch.randn(*shape[:-1], out_features)
    mine = part(group, x, -1) if by_rows else part(group, x, 0) if sequence else x
    mine = mine.clone().requires_grad_()
    with scope(group, rule):
        output = layer(mine)
    output.backward(grad if by_rows and not sequence else part(group, grad, 0 if by_rows else -1))
    sum_over_tokens(group, layer)

    parts, own = linear_parts(group, rule, mode, x, whole.weight.detach(), whole.bias.detach(), grad), rank_of(group)
    outputs = summed(parts, "output", whole.bias.detach()) if by_rows else parts[own]["output"]
    inputs = parts[own]["input"] if by_rows else summed(parts, "input")

    def of_tokens(value_and_bound, feature_split):
        value, bound = (tensor.reshape(*shape[:-1], tensor.shape[-1]) for tensor in value_and_bound)
        return [part(group, tensor, 0) for tensor in (value, bound)] if sequence and not feature_split else (value, bound)

    oracle.assert_within(output.detach(), of_tokens(outputs, not by_rows), "output")
    oracle.assert_within(mine.grad, of_tokens(inputs, by_rows), "gradient of the input")
    oracle.assert_within(layer.weight.grad, parts[own]["weight"], "gradient of the weight")
    tokens, bias_grad = grad.flatten(0, -2), layer.bias.grad
    exact = tokens.double().sum(0), (len(tokens) + 8) * 2.0**-24 * tokens.double().abs().sum(0)
    oracle.assert_within(bias_grad, exact if by_rows else [part(group, t, 0) for t in exact], "gradient of the bias")


def linears(group, shapes):
    for mode in ("column", "row"):
        for sequence in (False, True):
            for name, rule in ALL_RECIPES.items():
                for shape, out_features in shapes:
                    try:
                        check_linear(group, mode, sequence, rule, shape, out_features)
                    except Exception as error:
                        raise AssertionError(f"{mode}, sequence_parallel={sequence}, {name}, {shape}") from error


@ranks.case(2)
def linear_is_within_the_bound_of_the_oracle_under_every_recipe(group):
    # Tokens of a rank: 64, so blocks of 32 rows travel as codes and those of 128 do not; 15.
    linears(group, [((16, 8, 96), 160), ((6, 5, 34), 18)])


@ranks.case(2)
def no_tokens_at_all_give_no_output_and_zero_gradients(group):
    for mode in ("column", "row"):
        for rule in ALL_RECIPES.values():
            layer = te.Linear(32, 32, parallel_mode=mode, tp_group=group, sequence_parallel=True)
            x = torch.zeros(0, 3, 32 if mode == "column" else 16, requires_grad=True)
            with scope(group, rule):
                output = layer(x)
            output.sum().backward()
            assert output.shape == (0, 3, 16 if mode == "column" else 32) and x.grad.shape == x.shape
            assert not layer.weight.grad.any()


@ranks.case(3)
def linear_is_within_the_bound_on_three_ranks(group):
    linears(group, [((9, 2, 51), 33)])


MODULES = {
    "LayerNormLinear": lambda **tp: te.LayerNormLinear(32, 48, **column(tp)),
    "LayerNormLinear without bias": lambda **tp: te.LayerNormLinear(32, 48, bias=False, normalization="RMSNorm", **column(tp)),
    "LayerNormMLP": lambda **tp: te.LayerNormMLP(32, 64, **tp),
    "LayerNormMLP swiglu": lambda **tp: te.LayerNormMLP(32, 64, activation="swiglu", normalization="RMSNorm", **tp),
    "MultiheadAttention": lambda **tp: te.MultiheadAttention(32, 4, attention_dropout=0.0, **tp),
    "MultiheadAttention fused": lambda **tp: te.MultiheadAttention(
        32, 8, attention_dropout=0.0, num_gqa_groups=4, input_layernorm=True, fuse_qkv_params=True, **tp
    ),
    "MultiheadAttention fused apart": lambda **tp: te.MultiheadAttention(
        32, 8, attention_dropout=0.0, num_gqa_groups=4, fuse_qkv_params=True, qkv_weight_interleaved=False, **tp
    ),
    "TransformerLayer": lambda **tp: te.TransformerLayer(
        32, 64, 4, hidden_dropout=0.0, attention_dropout=0.0, activation="geglu", **tp
    ),
    "TransformerLayer decoder": lambda **tp: te.TransformerLayer(
        32, 64, 4, 4, hidden_dropout=0.0, attention_dropout=0.0, layer_type="decoder", normalization="RMSNorm", **tp
    ),
}


def column(tp):
    tp = dict(tp)
    return {**tp, "parallel_mode": "column"} if tp.pop("set_parallel_mode", False) else tp


def part_of_parameter(group, module_name, name, tensor, mark):
    """Part of a whole parameter that this rank has; halves of gated fc1 and fused queries, keys, values are split each."""
    dim = getattr(mark, "partition_dim", None)
    if dim is None:
        return tensor
    pieces = [tensor]
    if "fc1" in name and tensor.shape[0] == 128:
        pieces = tensor.chunk(2)
    if module_name.endswith("fused apart") and "qkv" in name:
        pieces = tensor.split([32, 16, 16])
    return torch.cat([part(group, piece, dim) for piece in pieces], dim)


def run(module, x, grad, forward=None):
    x = x.clone().requires_grad_()
    output = (forward or module)(x)
    output.backward(grad)
    return output.detach(), x.grad


def both(group, name, sequence, rule):
    """{what: (this rank's, one rank's part of it)}; a whole module and a shared one of one seed."""
    whole = randomized(seeded(MODULES[name]))
    tp = {"set_parallel_mode": True, "tp_group": group, "sequence_parallel": sequence}
    shared = randomized(seeded(lambda: MODULES[name](**tp)))
    by_columns = name.startswith("LayerNormLinear")
    torch.manual_seed(3)
    x, grad = torch.randn(8, 5, 32), torch.randn(8, 5, 48 if by_columns else 32)

    def tokens(tensor):
        return part(group, tensor, 0) if sequence else tensor

    encoded = torch.randn(8, 5, 32)
    cross = "decoder" in name
    with scope(group, rule):
        output, input_grad = run(whole, x, grad, (lambda v: whole(v, encoder_output=encoded)) if cross else None)
    with scope(group, rule):
        results = run(
            shared,
            tokens(x),
            part(group, grad, -1) if by_columns else tokens(grad),
            (lambda v: shared(v, encoder_output=tokens(encoded))) if cross else None,
        )
    sum_over_tokens(group, shared)
    compared = {
        "output": (results[0], part(group, output, -1) if by_columns else tokens(output)),
        "gradient of the input": (results[1], tokens(input_grad)),
    }
    for (key, mine), theirs in zip(shared.named_parameters(), whole.parameters(), strict=False):
        if theirs.dim() == 2:
            assert torch.equal(mine, part_of_parameter(group, name, key, theirs, mine)), f"initial {key}"
        compared[f"gradient of {key}"] = (mine.grad, part_of_parameter(group, name, key, theirs.grad, mine))
    return compared


def distance(compared, exact, which):
    """Distance of all gradients together, relative to the exact ones: some are zero but for rounding. which: 0 this rank's, 1 one
    rank's."""
    values = [
        torch.cat([pairs[what][place].flatten() for what in exact]).double() for pairs, place in ((compared, which), (exact, 1))
    ]
    return ((values[0] - values[1]).norm() / values[1].norm()).item()


def modules_equal_one_ranks(group):
    for name in MODULES:
        for sequence in (False, True):
            largest = max(pair[1].double().norm() for pair in both(group, name, sequence, None).values())
            for what, (mine, theirs) in both(group, name, sequence, None).items():
                assert mine.shape == theirs.shape, f"{name}: {what}"
                # Each is within 1e-6 of exact (docs/python.md), or, where terms cancel, a rounding of the largest.
                bound = 2e-6 * theirs.double().norm() + 2.0**-23 * largest
                error = (mine.double() - theirs.double()).norm()
                assert error <= bound, f"{name}, sequence_parallel={sequence}, {what}: {error:.2e}, bound {bound:.2e}"


@ranks.case(2)
def modules_equal_one_ranks_on_two(group):
    modules_equal_one_ranks(group)


@ranks.case(4)
def modules_equal_one_ranks_on_four(group):
    modules_equal_one_ranks(group)


@ranks.case(2)
def modules_are_as_near_to_fp32_as_one_ranks_under_every_recipe(group):
    for name in ("LayerNormMLP swiglu", "TransformerLayer"):
        for rule_name, rule in oracle.RECIPES.items():
            for sequence in (False, True):
                compared, exact = both(group, name, sequence, rule), both(group, name, sequence, None)
                mine, alone = distance(compared, exact, 0), distance(compared, exact, 1)
                # E4M3 has three bits of mantissa: both are far from exact, by as much.
                assert 2.0**-10 < mine <= 1.25 * alone, f"{name}, {rule_name}, sequence_parallel={sequence}: {mine}, {alone}"


@ranks.case(2)
def delayed_scales_become_those_of_the_whole_and_codes_with_them(group):
    """From the second step on, the output of a column-parallel layer has the bits of one rank's."""
    for sequence in (False, True):
        whole = seeded(lambda: te.Linear(32, 48))
        options = {"parallel_mode": "column", "tp_group": group, "sequence_parallel": sequence}
        shared = seeded(functools.partial(te.Linear, 32, 48, **options))
        rule = recipe.DelayedScaling(amax_history_len=4)
        for step in range(3):
            torch.manual_seed(step)
            x, grad = torch.randn(8, 5, 32), torch.randn(8, 5, 48)
            with scope(group, rule):
                output = whole(x)
            with scope(group, rule):
                mine = shared(part(group, x, 0) if sequence else x)
            output.backward(grad)
            mine.backward(part(group, grad, -1))
            for (name, buffer), theirs in zip(shared.named_buffers(), whole.buffers(), strict=False):
                assert torch.equal(buffer, theirs), (step, name)
            if step:
                assert torch.equal(mine, part(group, output, -1))


@ranks.case(2)
def ranks_agree_on_the_scales_of_tokens_without_reduce_amax(group):
    rule = recipe.DelayedScaling(amax_history_len=4, reduce_amax=False)
    layer = seeded(lambda: te.Linear(32, 32, parallel_mode="column", tp_group=group, sequence_parallel=True))
    for step in range(3):
        x = torch.full((2, 3, 32), 1.0 + step + rank_of(group))
        with scope(group, rule):
            layer(x).sum().backward()
    assert layer.input_amax_history.tolist() == [0, 2, 3, 4]
    ranks.assert_same_bits(group, {"scale": layer.input_scale})


def gathers(events):
    """Bytes that this rank sends to be gathered, one number a collective."""
    return [event.input_shapes[0][0] for event in events.events() if event.name == "gloo:all_gather"]


@ranks.case(2)
def fp8_codes_travel_as_bytes(group):
    """Forward pass of 64 x 512 inputs a rank: bf16 sends two bytes an element, FP8 one, and its scales."""
    elements = 64 * 512
    scales = {"delayed": 4, "current": 4, "row": 4 * 64, "block": 4 * elements // 128, "mxfp8": elements // 32}
    for make in (
        lambda: te.Linear(512, 64, parallel_mode="column", tp_group=group, sequence_parallel=True),
        lambda: te.LayerNormLinear(512, 64, parallel_mode="column", tp_group=group, sequence_parallel=True),
        lambda: te.LayerNormMLP(512, 64, set_parallel_mode=True, tp_group=group, sequence_parallel=True),
    ):
        layer, x = make(), torch.randn(64, 1, 512)
        for name in (None, *scales):
            rule = oracle.RECIPES.get(name)
            with scope(group, rule), torch.no_grad():
                layer(x)
            with torch.autocast("cpu", torch.bfloat16), scope(group, rule), profile(record_shapes=True) as events:
                output = layer(x)
            sent = gathers(events)
            if name is None:
                assert sent == [2 * elements]
                continue
            assert sorted(sent) == sorted([elements, scales[name]]), name
            with profile(record_shapes=True) as events:  # the same again for the weight's gradient, and half for delayed's
                output.sum().backward()
            if name in ("delayed", "current", "mxfp8"):
                assert elements in gathers(events) and max(gathers(events)) == elements, name


@ranks.case(2)
def a_rank_saves_its_tokens_alone(group):
    saved = {}
    for sequence in (False, True):
        options = {"parallel_mode": "column", "tp_group": group, "sequence_parallel": sequence}
        layer = seeded(functools.partial(te.Linear, 64, 64, **options))
        x = torch.randn(32 // (2 if sequence else 1), 4, 64)
        sizes = []
        saves = torch.autograd.graph.saved_tensors_hooks(lambda t, sizes=sizes: sizes.append(t.nbytes) or t, lambda t: t)
        with saves, scope(group, oracle.RECIPES["delayed"]):
            layer(x.requires_grad_())
        saved[sequence] = sum(sizes)
    assert saved[False] - saved[True] == 16 * 4 * 64


@ranks.case(2)
def state_dicts_hold_the_parts(group):
    layer = te.TransformerLayer(32, 64, 4, set_parallel_mode=True, tp_group=group)
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
    layer = te.Linear(8, 6, parallel_mode="column", tp_size=2, device="meta")
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


@ranks.case(2)
def ranks_with_other_scales_are_told_apart(group):
    layer = seeded(lambda: te.Linear(8, 8, parallel_mode="column", tp_group=group, sequence_parallel=True))
    layer.input_scale.fill_(1.0 + rank_of(group))
    with pytest.raises(RuntimeError, match="one scale on all ranks of tp_group"), scope(group, recipe.DelayedScaling()):
        layer(torch.ones(2, 1, 8))


@ranks.case(2)
def mistakes_name_the_argument(group):
    tp = {"set_parallel_mode": True, "tp_group": group}
    for error, message, make in (
        (
            ValueError,
            "out_features that tp_size=2 divides, got 5",
            lambda: te.Linear(8, 5, parallel_mode="column", tp_group=group),
        ),
        (ValueError, "in_features that tp_size=2 divides, got 5", lambda: te.Linear(5, 8, parallel_mode="row", tp_group=group)),
        (
            ValueError,
            r"parameters_split\['a'\] that tp_size=2",
            lambda: te.Linear(8, 6, parallel_mode="column", tp_group=group, parameters_split={"a": 3, "b": 3}),
        ),
        (ValueError, "ffn_hidden_size that tp_size=2 divides, got 7", lambda: te.LayerNormMLP(8, 7, **tp)),
        (ValueError, "num_attention_heads that tp_size=2 divides, got 3", lambda: te.MultiheadAttention(12, 3, **tp)),
        (ValueError, "num_gqa_groups that tp_size=2 divides, got 1", lambda: te.TransformerLayer(8, 8, 2, 1, **tp)),
        (
            ValueError,
            "tp_size 2, the ranks of tp_group, got 3",
            lambda: te.Linear(6, 6, parallel_mode="row", tp_group=group, tp_size=3),
        ),
        (
            ValueError,
            "tp_group of tp_size=4 ranks, got one of 2",
            lambda: te.Linear(8, 8, parallel_mode="row", tp_size=4).set_tensor_parallel_group(group),
        ),
        (ValueError, "a norm needs all features", lambda: te.LayerNormLinear(8, 8, parallel_mode="row", tp_group=group)),
        (
            TypeError,
            "tp_group a torch.distributed.ProcessGroup, got 'x'",
            lambda: te.Linear(8, 8, parallel_mode="row", tp_group="x"),
        ),
        (
            RuntimeError,
            "tokens that the 2 ranks .* divide",
            lambda: te.Linear(8, 8, parallel_mode="row", tp_group=group, sequence_parallel=True)(torch.zeros(3, 1, 4)),
        ),
        (
            RuntimeError,
            r"x \[tokens, ..., in\]",
            lambda: te.Linear(8, 8, parallel_mode="column", tp_group=group, sequence_parallel=True)(torch.zeros(8)),
        ),
    ):
        with pytest.raises(error, match=message):
            make()


def steps(group, layer, call):
    """Bits of two training steps: outputs, gradients of inputs and parameters, scaling state."""
    seen = {}
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
        layer = seeded(lambda: te.Linear(32, 48, parallel_mode="column", tp_group=group, sequence_parallel=True))
    assert isinstance(layer.weight, te.QuantizedTensor) and layer.weight.partition_dim == 0
    mine = part(group, whole.weight.detach(), 0)
    # Half of E4M3's distances, and half the smallest one of the common scale.
    bound = 2.0**-4 * mine.abs() + 2.0**-10 * layer.weight.scale
    assert bool(((layer.weight.dequantize() - mine).abs() <= bound).all())
    with scope(group, recipe.DelayedScaling()):
        layer(torch.randn(2, 3, 32)).sum().backward()
    assert layer.weight.grad.shape == (24, 32)


@ranks.case(2)
def a_compiler_leaves_these_modules_out(group):
    layer = te.Linear(8, 8, parallel_mode="column", tp_group=group)
    x = torch.randn(2, 8)
    assert torch.equal(torch.compile(layer, backend="eager")(x), layer(x))
    torch._dynamo.reset()
    with pytest.raises(Exception, match="tp_size: expected 1 under torch.compile"):
        torch.compile(layer, backend="eager", fullgraph=True)(x)


@ranks.case(2)
def bf16_sums_round_once(group):
    """Parts of ranks are added up in FP32."""
    layer = te.Linear(64, 32, parallel_mode="row", tp_group=group, params_dtype=torch.bfloat16, bias=False)
    x = torch.randn(6, 3, 32).bfloat16()
    output = layer(x)
    with torch.no_grad():
        parts = [
            torch.nn.functional.linear(a.double(), b.double()).float().bfloat16()
            for a, b in ranks.gathered(group, (x, layer.weight.detach()))
        ]
    # A part may be the neighbour in bf16 where its FP32 sum is near the middle; the sum of parts rounds once.
    exact, terms = sum(p.double() for p in parts), sum(p.double().abs() for p in parts)
    assert bool(((output.double() - exact).abs() <= 2.0**-8 * exact.abs() + 2.0**-7 * terms).all())
    assert ((output.double() - exact).abs() <= 2.0**-8 * exact.abs()).double().mean() > 0.9
    ranks.assert_same_bits(group, {"output": output.detach().float()})


@pytest.mark.parametrize("name", ranks.names(__name__))
def test_on_ranks(outcomes, name):
    outcomes.check(name)
