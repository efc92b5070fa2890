"""Things that users bring to autoscale: operators of their own, questions about scales, files, several processes,
torch.compile."""

import copy
import io
import math
from typing import Any

import plimsoll.autoscale as autoscale
import pytest
import ranks
import torch
import torch.nn.functional as F
from plimsoll.autoscale import ScaledArray
from rounding import gamma, within
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode


@torch.library.custom_op("plimsoll_test::cube", mutates_args=())
def cube(x: torch.Tensor) -> torch.Tensor:
    return x * x * x


@torch.library.custom_op("plimsoll_test::halves", mutates_args=())
def halves(x: torch.Tensor, y: torch.Tensor, count: int) -> list[torch.Tensor]:
    return [part.clone() for part in (x + y).chunk(count)]


def report_of(x: torch.Tensor) -> dict[str, autoscale.OpCalls]:
    return {row.op: row for row in autoscale.report(x).ops}


def test_a_rule_of_the_user():
    x = autoscale.as_scaled(torch.tensor([1.0, -2.0, 3.0]) * 2.0**30)
    assert autoscale.value(cube(x)).isfinite().all() and report_of(x)["aten::mul.Tensor"].calls == 2  # of its parts

    @autoscale.rule("plimsoll_test::cube")
    def rule(x):
        return ScaledArray(cube(x.data), x.scale**3)

    y = cube(x)
    assert report_of(x)["plimsoll_test::cube"].storage == 1
    data, scale = autoscale.get_data_scale(x)
    assert torch.equal(autoscale.get_data_scale(y)[0], data**3) and autoscale.get_data_scale(y)[1] == scale**3
    assert rule(ScaledArray(torch.ones(1), 2.0)).scale == 8  # still a function


def test_a_rule_of_the_user_sees_plain_tensors_numbers_and_lists():
    @autoscale.rule("plimsoll_test::halves")
    def _(x, y, count):
        assert y.scale == 1 and isinstance(count, int)
        return [ScaledArray(part, 0.75) for part in halves(x.data.float() * x.scale + y.data, torch.zeros(4), count)]

    x = torch.arange(4.0)
    low, high = halves(autoscale.as_scaled(x), torch.ones(4), 2)
    assert torch.equal(autoscale.value(low), 0.75 * (x + 1)[:2]) and torch.equal(autoscale.value(high), 0.75 * (x + 1)[2:])
    assert autoscale.get_data_scale(low)[1] == 0.5
    with pytest.raises(ValueError, match="rule: expected an operator as library::name, got 'cube'"):
        autoscale.rule("cube")


def test_a_result_that_its_rules_scale_does_not_hold_is_moved():
    @torch.library.custom_op("plimsoll_test::huge", mutates_args=())
    def huge(x: torch.Tensor) -> torch.Tensor:
        return x * 1e9

    @autoscale.rule("plimsoll_test::huge")
    def _(x):
        return ScaledArray(x.data.float() * 1e9, x.scale)

    x = torch.randn(5)
    # Roundings of the operand and of the result; elements below a unit of FP16's subnormal numbers are lost.
    bound = gamma(2, torch.float16) * (x * 1e9).abs() + 2.0**-24 * (x * 1e9).abs().max()
    assert within(autoscale.value(huge(autoscale.as_scaled(x))), x * 1e9, bound)


def test_an_inspection_lists_calls_with_their_scales():
    model: Any = autoscale.autoscale(nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU()))
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(4) * 2.0**9)
    with autoscale.inspect(model) as seen:
        model(torch.ones(2, 4) * 2.0**-3)
    calls = {call.op: call for call in seen.calls}
    relu = calls["aten::relu"]
    assert relu.operands == relu.results == calls["aten::mm"].results
    assert -3 in calls["aten::mm"].operands and f"aten::relu: 2^{relu.operands[0]} -> 2^{relu.results[0]}" in str(seen)
    model(torch.ones(1, 4))
    assert len(seen.calls) == len(str(seen).splitlines())


def test_printing_shows_the_value_and_the_scale():
    x = autoscale.scaled_array(torch.tensor([1.5, -2.0]).half(), 2.0**100)
    assert "1.9015e+30" in repr(x) and "data=torch.float16, scale=1.26765e+30" in repr(x)
    assert "Parameter containing" in repr(autoscale.autoscale(nn.Linear(1, 1)).weight)
    assert repr(torch.ones(1)) == "tensor([1.])" and f"{autoscale.as_scaled(torch.tensor(3.0)):.1f}" == "3.0"


@pytest.mark.parametrize("fullgraph", [True, False])
def test_torch_compile_says_that_it_cannot(fullgraph):
    model: Any = autoscale.autoscale(nn.Linear(4, 4))
    torch.compiler.reset()
    with pytest.raises(Exception, match="torch.compile( and FakeTensor mode)? cannot look into"):
        torch.compile(model, backend="eager", fullgraph=fullgraph)(torch.ones(1, 4))


def test_fake_tensors_are_refused():
    model: Any = autoscale.autoscale(nn.Linear(4, 4))
    with FakeTensorMode(), pytest.raises(RuntimeError, match="expected a tensor with memory"):
        model(torch.ones(1, 4))


def test_a_module_is_given_once():
    model: Any = autoscale.autoscale(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="expected a module that it was not given before, got one, a Linear"):
        autoscale.autoscale(model, matmul_format="nvfp4")


def test_a_report_is_of_the_module_and_not_of_a_part_that_was_given_before():
    part: Any = autoscale.autoscale(nn.Linear(2, 2, bias=False))
    whole: Any = autoscale.autoscale(nn.Sequential(part, nn.ReLU()))
    whole(torch.ones(1, 2))
    calls = [{row.op: row.calls for row in autoscale.report(of).ops} for of in (whole, part)]
    assert calls == [{"aten::mm": 1, "aten::relu": 1}, {}]  # the first operand's settings hold: those of the input


def test_gradients_of_a_plain_input_have_gradients():
    torch.manual_seed(1)
    x, weight = torch.randn(4, 5, requires_grad=True), torch.randn(5, 3)

    def second(of: Any) -> torch.Tensor:
        (first,) = torch.autograd.grad(of(x, weight), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    def loss(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return (x @ weight).square().sum()

    ours, exact = second(autoscale.autoscale(loss)), second(loss)
    # 8 x (W W^T)^2: 4 products, of which operands and results are rounded.
    gram = weight.abs() @ weight.abs().T
    assert within(ours, exact, gamma(12, torch.float16) * (8 * x.detach().abs() @ gram @ gram))


def test_a_sparse_argument_is_an_operand_at_its_value():
    model: Any = autoscale.autoscale(lambda matrix, x: torch.sparse.mm(matrix, x))
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert torch.equal(autoscale.value(model(torch.eye(2).roll(1, 0).to_sparse(), x)), x.roll(1, 0))


def test_jacobians_in_reverse_mode():
    def function(x):
        return torch.tanh(x) * x

    plain = torch.randn(5, generator=torch.Generator().manual_seed(1))
    x, jacrev = autoscale.as_scaled(plain), torch.func.jacrev
    for of in (jacrev(function), jacrev(jacrev(lambda x: function(x).sum()))):
        # Eight roundings of numbers of the size of the largest.
        assert within(autoscale.value(of(x)), of(plain), gamma(8, torch.float16) * of(plain).abs().max())
    model: Any = autoscale.autoscale(nn.Linear(5, 3))
    weight = autoscale.value(model.weight)
    assert within(jacrev(model)(plain), weight, gamma(1, torch.float16) * weight.abs().max())


@pytest.mark.parametrize("mode", ["jvp", "jacfwd", "hessian", "linearize", "a module"])
def test_forward_mode_is_refused(mode):
    x, model = autoscale.as_scaled(torch.ones(3)), autoscale.autoscale(nn.Linear(3, 2))
    calls = {
        "jvp": lambda: torch.func.jvp(torch.tanh, (x,), (torch.ones(3),)),
        "jacfwd": lambda: torch.func.jacfwd(torch.tanh)(x),
        "hessian": lambda: torch.func.hessian(lambda x: x.tanh().sum())(x),
        "linearize": lambda: torch.func.linearize(torch.tanh, x),
        "a module": lambda: torch.func.jacfwd(model)(torch.ones(3)),
    }
    with pytest.raises(NotImplementedError, match="expected reverse mode"):
        calls[mode]()


def stepped(steps: int = 3, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model: Any = autoscale.autoscale(nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)))
    train(model, steps)
    return model


def train(model: nn.Module, steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    torch.manual_seed(7)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(8, 6)), torch.randint(3, (8,))).backward()
        optimizer.step()


def equal(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(autoscale.value(p), autoscale.value(q)) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def test_a_checkpoint_and_a_copy_go_on_with_the_same_bits():
    model = stepped()
    state = model.state_dict()
    assert state["0.weight.remainder"].dtype == torch.float16 and state["0.weight.remainder"].any()
    loaded = stepped(0, seed=1)
    loaded.load_state_dict(state)
    twin, without = copy.deepcopy(model), stepped(0, seed=2)
    without.load_state_dict({name: x for name, x in state.items() if not name.endswith(".remainder")})
    for other in (model, loaded, twin, without):
        train(other, 4)
    assert equal(model, loaded) and equal(model, twin) and not equal(model, without)


def test_safetensors_hold_a_state_dict(tmp_path):
    from safetensors.torch import load_file, save_file

    model = stepped()
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    other = stepped(0, seed=1)
    other.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert equal(model, other)


def test_a_pickle_of_a_scaled_tensor_is_an_error_that_says_what_to_do():
    with pytest.raises(NotImplementedError, match=r"a scaled tensor: .* pickles and files take pack\(\)"):
        torch.save(autoscale.as_scaled(torch.ones(2)), io.BytesIO())


@ranks.case(2)
def ddp_reduces_gradients_at_their_value(group):
    rank = torch.distributed.get_rank(group)
    torch.manual_seed(rank)  # all start as rank 0
    model: Any = autoscale.gradients_as_values(autoscale.autoscale(nn.Linear(6, 4)))
    wrapped = nn.parallel.DistributedDataParallel(model, process_group=group)
    reference = copy.deepcopy(model)
    torch.manual_seed(0)
    inputs = [torch.randn(8, 6) * 10.0**-part for part in range(2)]  # gradients whose exponents differ by rank
    wrapped(inputs[rank]).square().mean().backward()
    (sum(reference(x).square().mean() for x in inputs) / 2).backward()
    for ours, expected in zip(model.parameters(), reference.parameters(), strict=True):
        error: Any = autoscale.value(ours.grad) - autoscale.value(expected.grad)
        assert error.norm() < 2.0**-8 * autoscale.value(expected.grad).norm(), error
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    ranks.assert_same_bits(group, {name: autoscale.value(p) for name, p in model.named_parameters()})


PROMISED = 0.01  # what autoscaled FP16 promises of a training run, against FP32


def blocks():
    torch.manual_seed(5)
    return nn.Sequential(nn.Embedding(11, 16), nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32)), nn.Linear(32, 3))


@ranks.case(2)
def fsdp_trains_as_fp32_does_on_one_process(group):
    from plimsoll.shard import FullyShardedDataParallel as Fsdp

    rank = torch.distributed.get_rank(group)
    inside = blocks()
    inside[1] = Fsdp(inside[1], process_group=group)
    model: Any = autoscale.autoscale(Fsdp(inside, process_group=group))
    reference = blocks()
    optimizers = [torch.optim.AdamW(each.parameters(), lr=1e-2) for each in (model, reference)]
    generator = torch.Generator().manual_seed(3)
    for _ in range(5):
        x, y = torch.randint(11, (2, 8), generator=generator), torch.randint(3, (16,), generator=generator).view(2, 8)
        for optimizer in optimizers:
            optimizer.zero_grad()
        F.cross_entropy(model(x[rank]), y[rank]).backward()
        F.cross_entropy(reference(x.flatten()), y.flatten()).backward()
        for optimizer in optimizers:
            optimizer.step()
    for name, weight in model.state_dict().items():
        expected = reference.state_dict()[name]
        assert weight.dtype == torch.float32 and (weight - expected).norm() < PROMISED * expected.norm(), name
    seen = autoscale.report(model)
    assert not seen.without_rule and {"aten::addmm", "aten::native_layer_norm"} <= {row.op for row in seen.ops}


@ranks.case(1)
def fsdp_of_scaled_parameters_says_what_to_do(group):
    from plimsoll.shard import FullyShardedDataParallel as Fsdp

    with pytest.raises(ValueError, match="expected plain parameters, got scaled ones; call plimsoll.autoscale afterwards"):
        Fsdp(autoscale.autoscale(nn.Linear(2, 2)), process_group=group)
    with pytest.raises(ValueError, match="expected a policy that leaves a sharded model as it is, got unit_scaling"):
        autoscale.autoscale(Fsdp(nn.Linear(2, 2), process_group=group), policy="unit_scaling")


FOLLOWS = {
    autoscale.policy.dynamic_loss_scale: [14, 13, 13, 14],  # it doubles after two clean steps
    autoscale.policy.automatic_loss_scale: [14, 13, 10, 10],  # 16 gradients of 1: 65504 / (8 * 4) is 2^10.99
}


def four_steps(model, firsts_last, after_backward=lambda last: None):
    """Whether each step left the parameters as they were, and the loss scale's exponent in it. The last of four outputs counts
    firsts_last times in the first step: as 8, its gradients are 8 * 2^14, beyond fp16."""
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    before, unchanged = [autoscale.value(parameter).clone() for parameter in parameters], []
    exponents: list[float] = []
    for last in (firsts_last, 1.0, 1.0, 1.0):
        optimizer.zero_grad()
        output = model(torch.ones(1, 4))
        output.register_hook(lambda grad, seen=exponents: seen.append(-math.log2(autoscale.get_data_scale(grad)[1])))
        (output * torch.tensor([1.0, 1.0, 1.0, last])).sum().backward()
        after_backward(last)
        optimizer.step()
        unchanged.append(all(map(torch.equal, map(autoscale.value, parameters), before)))
    return unchanged, exponents


@ranks.case(2)
def loss_scales_of_sharded_parameters_follow_all_ranks(group):
    from plimsoll.shard import FullyShardedDataParallel as Fsdp

    for make, expected in FOLLOWS.items():
        model = autoscale.autoscale(
            Fsdp(nn.Linear(4, 4, bias=False), process_group=group), policy=make(2.0**14, growth_interval=2)
        )
        (shard,) = model.parameters()

        def the_second_rank_alone_overflows(last, shard=shard):
            if last != 1:
                assert shard.grad is not None
                assert shard.grad.isfinite().all() == (torch.distributed.get_rank(group) == 0)

        assert four_steps(model, 8.0, the_second_rank_alone_overflows) == ([True, False, False, False], expected)


@ranks.case(2)
def loss_scales_follow_gradients_that_ddp_has_averaged(group):
    rank = torch.distributed.get_rank(group)
    for make, expected in FOLLOWS.items():
        for as_views in (False, True):
            model: Any = autoscale.autoscale(nn.Linear(4, 4, bias=False), policy=make(2.0**14, growth_interval=2))
            wrapped = nn.parallel.DistributedDataParallel(
                autoscale.gradients_as_values(model), process_group=group, gradient_as_bucket_view=as_views
            )
            # One rank alone overflows, and both skip the step.
            assert four_steps(wrapped, [1.0, 8.0][rank]) == ([True, False, False, False], expected), (make, as_views)
            ranks.assert_same_bits(group, {"weight": autoscale.value(model.weight)})


@pytest.mark.parametrize("name", ranks.names(__name__))
def test_on_ranks(outcomes, name):
    outcomes.check(name)
