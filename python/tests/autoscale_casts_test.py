"""Casts of scaled tensors: the value is what torch makes of the value of a plain one, bit for bit, also where it overflows."""

import io
from typing import Any

import plimsoll
import plimsoll.autoscale as autoscale
import pytest
import torch
from rounded_results import RoundedResults, round_significand
from rounding import gamma, rounds_alike, within
from torch import nn

NARROW = [
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]
FORMATS = [torch.float16, torch.bfloat16, torch.float32]


def values(exponent: int = 0) -> torch.Tensor:
    """From far below to far above the numbers of each of these dtypes, and what is no number."""
    generator = torch.Generator().manual_seed(exponent)
    normal = torch.randn(4096, generator=generator)
    spread = normal * torch.exp2(torch.randint(-20, 12, (4096,), generator=generator).float())
    special = torch.tensor([0.0, -0.0, 1.0, float("inf"), -float("inf"), float("nan"), 448.0, 464.0, 465.0, -1e4, 2.0**-9])
    return torch.cat([spread, special]) * 2.0**exponent


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a.float(), b.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("exponent", [-24, -9, 0, 7, 30])
@pytest.mark.parametrize("data", FORMATS)
def test_a_cast_rounds_the_value_as_torch_does(dtype, exponent, data):
    x = autoscale.as_scaled(values(exponent), dtype=data)
    expected = autoscale.value(x).to(dtype)
    cast = x.to(dtype)
    assert cast.dtype == dtype and autoscale.is_scaled(cast) and same(autoscale.value(cast), expected)
    assert same(autoscale.value(cast.float()), expected) and same(autoscale.value(cast.to(dtype, copy=True)), expected)


@pytest.mark.parametrize("method", ["autoscale", "static", "amax_bias", "constant_bias", "dynamic_loss_scale"])
@pytest.mark.parametrize("dtype", NARROW)
def test_a_cast_rounds_alike_under_every_policy(method, dtype):
    x = autoscale.as_scaled(values()[:4096], policy=method)
    assert same(autoscale.value(x.to(dtype)), autoscale.value(x).to(dtype))


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("scale", [torch.tensor([[3.0], [0.1], [700.0], [1e-3]]), torch.tensor([[0.3]])])
def test_a_cast_of_a_tensor_of_several_scales_rounds_its_value(dtype, scale):
    x = autoscale.scaled_array(torch.randn(4, 64, generator=torch.Generator().manual_seed(1)).half(), scale)
    assert same(autoscale.value(x.to(dtype)), autoscale.value(x).to(dtype))
    assert torch.equal(x.to(torch.int64), autoscale.value(x).to(torch.int64))


SPELLINGS = {
    "half": lambda x: x.half(),
    "bfloat16": lambda x: x.bfloat16(),
    "type": lambda x: x.type(torch.bfloat16),
    "type by name": lambda x: x.type("torch.HalfTensor"),
    "type_as": lambda x: x.type_as(torch.ones(1, dtype=torch.bfloat16)),
    "to a tensor's": lambda x: x.to(torch.ones(1, dtype=torch.float8_e5m2)),
    "_to_copy": lambda x: torch.ops.aten._to_copy(x, dtype=torch.float8_e4m3fn),
    "of a view": lambda x: x[3:77:2].to(torch.float8_e4m3fn),
    "of one number": lambda x: x[7].to(torch.bfloat16),
    "in a memory format": lambda x: x[:96].view(2, 3, 4, 4).to(torch.bfloat16, memory_format=torch.channels_last),
    "to an integer": lambda x: x[:4096].to(torch.int32),
    "to a bool": lambda x: x.bool(),
    "to a complex number": lambda x: x[:4096].to(torch.complex64).real,
    "to FP64": lambda x: x.double(),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_of_a_cast_is_one(name):
    x = autoscale.as_scaled(values(3))
    ours, expected = SPELLINGS[name](x), SPELLINGS[name](autoscale.value(x))
    assert ours.dtype == expected.dtype and same(autoscale.value(ours), expected) and ours.stride() == expected.stride()


def target(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """A scaled tensor of another dtype, to write into."""
    return torch.zeros_like(autoscale.as_scaled(torch.ones(shape)), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_a_write_into_a_tensor_of_another_dtype_is_a_cast(dtype):
    plain = torch.randn(8, 32, generator=torch.Generator().manual_seed(2)).mul(3).half().float()
    x = autoscale.as_scaled(plain)
    expected = plain.to(dtype).float()
    assert same(autoscale.value(target(dtype, 8, 32).copy_(x)), expected)
    assert same(autoscale.value(target(dtype, 8, 32).copy_(plain)), expected)
    part = target(dtype, 8, 32)
    part[2:5] = x[2:5]
    assert same(autoscale.value(part[2:5]), expected[2:5]) and not autoscale.value(part[5:]).any()
    assert same(autoscale.value(target(dtype, 3).fill_(0.3)), torch.full((3,), 0.3).to(dtype))
    # A cast to its own dtype rounds nothing once more.
    total = x.to(dtype) + x.to(dtype) * 0.3
    assert torch.equal(autoscale.value(torch.zeros_like(total).copy_(total)), autoscale.value(total))


def test_a_result_goes_into_out_as_a_cast():
    x = autoscale.as_scaled(values()[:64])
    out = torch.add(x, x, out=target(torch.bfloat16, 64))
    assert out.dtype == torch.bfloat16 and same(autoscale.value(out), autoscale.value(x + x).bfloat16())


def test_data_take_the_dtype_that_is_assigned():
    parameter = nn.Parameter(autoscale.as_scaled(torch.tensor([1 / 3, 1e-9])))
    parameter.data = parameter.data.half()
    expected = torch.tensor([1 / 3, 1e-9]).half().float()
    assert parameter.dtype == torch.float16 and torch.equal(autoscale.value(parameter.detach()), expected)
    model: Any = autoscale.autoscale(nn.Linear(8, 4))
    before = autoscale.value(model.weight.detach())
    assert torch.equal(autoscale.value(model.bfloat16().weight.detach()), before.bfloat16().float())


REDUCTIONS = {
    "sum": lambda x, dtype: x.sum(dtype=dtype),
    "sum of rows": lambda x, dtype: x.sum(0, dtype=dtype),
    "mean": lambda x, dtype: x.mean(dtype=dtype),
    "mean of rows": lambda x, dtype: x.mean(1, dtype=dtype),
    "cumsum": lambda x, dtype: x.cumsum(1, dtype=dtype),
    "cumprod": lambda x, dtype: x[:, :3].cumprod(1, dtype=dtype),
    "prod": lambda x, dtype: x[:, :3].prod(1, dtype=dtype),
    "norm": lambda x, dtype: torch.linalg.vector_norm(x, dim=1, dtype=dtype),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.complex64, torch.float32])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_dtype_that_an_operator_is_asked_for_is_that_of_the_value(name, dtype):
    if (name.startswith("mean") and not dtype.is_floating_point) or (name == "norm" and dtype != torch.float32):
        pytest.skip("torch has none of such a dtype")
    plain = torch.randn(16, 32, generator=torch.Generator().manual_seed(4)).half().float() * 2.0**6
    for x in (autoscale.as_scaled(plain), autoscale.scaled_array((plain * 2.0**-6).half(), torch.full((16, 1), 64.0))):
        ours, expected = REDUCTIONS[name](x, dtype), REDUCTIONS[name](plain, dtype)
        assert ours.dtype == expected.dtype
        if dtype == torch.float32:
            # A sum of FP32 numbers in another order, rounded to data: terms are below 2^9, and 512 at most.
            smallest = 2.0**-24 * autoscale.get_data_scale(ours)[1]
            terms = gamma(512) * 2.0**9 * (512 if "sum" in name else 1)
            assert within(autoscale.value(ours), expected, gamma(2, torch.float16) * expected.abs() + smallest + terms)
        else:
            assert same(autoscale.value(ours).abs(), expected.abs())


def test_a_sum_that_half_holds_does_not_overflow_for_its_datas_sake():
    x = autoscale.as_scaled(torch.full((200_000,), 1e-3))
    assert same(autoscale.value(x.sum(dtype=torch.float16)), autoscale.value(x).sum(dtype=torch.float16))


def test_softmax_of_another_dtype_casts_what_it_is_of():
    x = autoscale.as_scaled(torch.randn(8, 32, generator=torch.Generator().manual_seed(5)) * 3)
    ours = x.softmax(1, dtype=torch.bfloat16)
    exact = autoscale.value(x).bfloat16().float().softmax(1)
    smallest = 2.0**-24 * autoscale.get_data_scale(ours)[1]
    bound = gamma(2, torch.float16) * exact + smallest
    assert ours.dtype == torch.bfloat16 and within(autoscale.value(ours), exact, bound)


def fake_quantized(model: nn.Sequential, dtype: torch.dtype) -> nn.Sequential:
    for layer in model:
        if isinstance(layer, nn.Linear):
            layer.register_forward_pre_hook(lambda _, args: (args[0].to(dtype).float(),))
    return model


def test_a_users_fake_quantisation_quantises():
    def network():
        torch.manual_seed(6)
        return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))

    x = torch.randn(64, 16, generator=torch.Generator().manual_seed(7))
    exact = network()(x)
    expected = fake_quantized(network(), torch.float8_e5m2)(x)
    ours: Any = autoscale.value(fake_quantized(autoscale.autoscale(network()), torch.float8_e5m2)(x))
    narrow = network()
    with torch.no_grad():
        for parameter in narrow.parameters():
            parameter.copy_(round_significand(parameter, 11))
    with RoundedResults(11):
        rounded = fake_quantized(narrow, torch.float8_e5m2)(round_significand(x, 11))
    assert rounds_alike(ours, rounded, expected)  # FP16 decides some of the roundings otherwise
    assert (ours - expected).norm() < (expected - exact).norm()


def test_autocast_trains_as_it_does_on_plain_tensors():
    def losses(wrap, dtype=torch.bfloat16):
        torch.manual_seed(8)
        model = wrap(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        generator = torch.Generator().manual_seed(9)
        seen = []
        for _ in range(10):
            x, y = torch.randn(32, 16, generator=generator), torch.randint(4, (32,), generator=generator)
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype != torch.float32):
                out = model(x)
                assert out.dtype == dtype
                loss = nn.functional.cross_entropy(out, y)
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        return torch.tensor(seen)

    plain = lambda model: model
    assert rounds_alike(losses(plimsoll.autoscale), losses(plain), losses(plain, torch.float32))


def bf16_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return autoscale.autoscale(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).bfloat16())


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    torch.manual_seed(7)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.randn(8, 6).bfloat16()), torch.randint(3, (8,))).backward()
        optimizer.step()


def test_files_keep_what_a_tensor_of_a_narrow_dtype_has_beyond_it():
    """Weights and optimizer state of a model in bfloat16 have FP16's bits and more; a checkpoint is no cast."""
    model, other = bf16_model(), bf16_model(seed=1)
    optimizers = [torch.optim.AdamW(each.parameters(), lr=1e-3, foreach=False) for each in (model, other)]
    train(model, optimizers[0], 3)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": autoscale.pack(optimizers[0].state_dict())}, file)
    file.seek(0)
    state = torch.load(file)
    other.load_state_dict(state["model"])
    optimizers[1].load_state_dict(autoscale.unpack(state["optimizer"]))
    for each, optimizer in zip((model, other), optimizers, strict=True):
        train(each, optimizer, 2)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert q.dtype == torch.bfloat16 and torch.equal(autoscale.value(p), autoscale.value(q))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16, torch.int32, torch.float64])
def test_a_plain_tensor_of_any_dtype_enters_with_its_values(dtype):
    plain = torch.randn(64, generator=torch.Generator().manual_seed(10)).mul(8).to(dtype)
    assert same(autoscale.value(autoscale.as_scaled(torch.zeros(64)).copy_(plain)), plain.float().half())
    if dtype.is_floating_point:
        entered = autoscale.as_scaled(plain)
        assert entered.dtype == dtype and same(autoscale.value(entered), plain.float().half())


def test_a_cast_elsewhere_gives_a_plain_tensor():
    x = autoscale.as_scaled(torch.ones(2, 3))
    for meta in (x.to("meta"), x.to("meta", torch.bfloat16), torch.zeros_like(x, device="meta")):
        assert meta.device.type == "meta" and meta.shape == x.shape and not autoscale.is_scaled(meta)
