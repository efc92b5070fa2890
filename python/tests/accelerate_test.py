"""plimsoll.accelerate(): torch's own operator samples, a Transformer block, and torch as it was when it is off."""

import concurrent.futures
import contextlib
import copy
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import plimsoll
import pytest
import torch
from rounding import rounds_alike

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module", autouse=True)
def rules():
    a, b = matrices()
    with plimsoll.accelerated():
        a @ b
    if replaced() == 0:
        pytest.skip("no rule for this processor")


@pytest.fixture(autouse=True)
def off_again():
    plimsoll.reset_acceleration_report()
    yield
    plimsoll.accelerate(False)


def matrices(dtype=FP16, m=64, k=64, n=64):
    torch.manual_seed(0)
    return torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)


def replaced(op="mm"):
    return plimsoll.acceleration_report().get(op, {}).get("replaced", 0)


def dispatcher():
    """Kernels of all operators, as torch shows them."""
    return {name: torch._C._dispatch_dump(name) for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")}


def test_off_gives_torch_its_kernels_and_its_bits_back():
    a, b = matrices()
    kernels, bits = dispatcher(), a @ b
    plimsoll.accelerate()
    assert dispatcher() != kernels
    assert (a @ b).dtype == bits.dtype and replaced() == 1
    plimsoll.accelerate(False)
    assert dispatcher() == kernels
    assert torch.equal(a @ b, bits) and replaced() == 1


def test_a_second_call_changes_nothing_and_the_object_turns_it_off():
    kernels = dispatcher()
    plimsoll.accelerate()
    once = dispatcher()
    acceleration = plimsoll.accelerate()
    assert dispatcher() == once
    acceleration.off()
    assert dispatcher() == kernels


def test_a_context_leaves_it_as_it_was():
    with plimsoll.accelerated():
        a, b = matrices()
        with plimsoll.accelerated() as inner:
            a @ b
        a @ b
        assert inner.report()["mm"]["replaced"] == replaced() == 2
    a @ b
    assert replaced() == 2


def test_turning_it_on_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plimsoll.accelerate()


def in_process(isa, script):
    """Output of the script, run where this instruction set is the best."""
    path = os.pathsep.join([str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "PLIMSOLL_ISA": isa}
    done = subprocess.run([sys.executable, *script], env=environment, capture_output=True, text=True)
    if done.returncode == 2:  # the processor has less
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("isa", ["avx2", "avx512", "avx512_bf16"])
def test_samples_of_torchs_own_tests_pass(isa):
    report = json.loads(in_process(isa, [HERE / "accelerate_samples.py"]))
    ours = {"mm", "addmm", "bmm", "attention", "attention_backward", "gelu", "gelu_backward", "silu", "silu_backward"}
    ours |= {"softmax", "log_softmax", "log_softmax_backward", "layer_norm", "layer_norm_backward", "rms_norm"}
    assert {op for op, outcomes in report.items() if outcomes["replaced"]} == ours


class Block(torch.nn.Module):
    """A Transformer's block."""

    def __init__(self, width=128, heads=4):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(self.norm1(x)).chunk(3, -1))
        attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))


def step(block, x, autocast=None, function=None):
    """The result and all gradients."""
    block.zero_grad()
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", dtype=autocast or BF16, enabled=autocast is not None):
        y = function(x) if function is not None else block(x)
    y.float().square().mean().backward()
    return [y.detach(), x.grad, *(p.grad.clone() for p in block.parameters())]


def inputs(dtype):
    torch.manual_seed(0)
    return Block().to(dtype), torch.randn(2, 64, 128, dtype=dtype)


@pytest.mark.parametrize("dtype", [FP16, BF16, FP32])
def test_a_block_is_as_near_to_the_exact_result_as_torchs(dtype):
    block, x = inputs(dtype)
    exact = step(copy.deepcopy(block).double(), x.double())
    theirs = step(block, x)
    with plimsoll.accelerated():
        ours = step(block, x)
    assert all(rounds_alike(*each) for each in zip(ours, theirs, exact, strict=True))


@pytest.mark.parametrize("dtype", [FP16, BF16])
def test_a_block_under_autocast(dtype):
    block, x = inputs(FP32)
    exact = step(copy.deepcopy(block).double(), x.double())
    theirs = step(block, x, dtype)
    with plimsoll.accelerated():
        ours = step(block, x, dtype)
    assert [each.dtype for each in ours] == [each.dtype for each in theirs]
    assert all(rounds_alike(*each) for each in zip(ours, theirs, exact, strict=True))
    if dtype is FP16:
        assert replaced("addmm") > 0 and replaced("mm") > 0


def test_a_compiled_block_calls_our_products():
    block, x = inputs(FP16)
    exact = step(copy.deepcopy(block).double(), x.double())
    compiled = torch.compile(block)
    theirs = step(block, x, function=compiled)
    with plimsoll.accelerated():
        plimsoll.reset_acceleration_report()
        ours = step(block, x, function=compiled)
        assert replaced("addmm") + replaced("mm") > 0
    assert all(rounds_alike(*each) for each in zip(ours, theirs, exact, strict=True))


@pytest.mark.parametrize("forward_on", [False, True])
def test_forward_and_backward_of_attention_may_be_torchs_and_ours(forward_on):
    """The logarithms that forward keeps are torch's own, those of a query that sees no key too."""
    torch.manual_seed(0)
    q, k, v, gradient = (torch.randn(2, 4, 128, 32, dtype=FP16) for _ in range(4))
    mask = torch.randn(128, 128, dtype=FP16)
    mask[5] = -torch.inf

    def run(dtype, switch=None):
        leaves = [x.to(dtype).requires_grad_() for x in (q, k, v)]
        with plimsoll.accelerated() if switch is True else contextlib.nullcontext():
            y = torch.nn.functional.scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], mask.to(dtype))
        with plimsoll.accelerated() if switch is False else contextlib.nullcontext():
            return [y.detach(), *torch.autograd.grad(y, leaves, gradient.to(dtype))]

    exact, theirs, ours = run(torch.float64), run(FP16), run(FP16, forward_on)
    assert replaced("attention") == forward_on and replaced("attention_backward") == (not forward_on)
    assert all(rounds_alike(*each) for each in zip(ours, theirs, exact, strict=True))


@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_a_row_masked_with_the_lowest_number_has_the_mean_of_all_values(dtype):
    """As the softmax of such scores has it, and its gradient; the keys of other rows stay hidden."""
    torch.manual_seed(0)
    leaves = [torch.randn(1, 4, 160, 64).to(dtype).requires_grad_() for _ in range(3)]
    gradient = torch.randn(1, 4, 160, 64).to(dtype)
    mask = torch.zeros(160, 160, dtype=dtype)
    mask[:, :70] = torch.finfo(dtype).min
    mask[:70] = torch.finfo(dtype).min
    q, k, v = leaves
    with plimsoll.accelerated():
        ours = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)
        gradients = torch.autograd.grad(ours, leaves, gradient)
    if replaced("attention") == 0:
        pytest.skip("no rule for attention in this dtype")
    q, k, v = (x.detach().double().requires_grad_() for x in leaves)
    exact = (q @ k.transpose(-1, -2) / 8 + mask.double()).softmax(-1) @ v
    for got, right in zip((ours, *gradients), (exact, *torch.autograd.grad(exact, (q, k, v), gradient.double())), strict=True):
        assert (got.double() - right).norm() < 4 * torch.finfo(dtype).eps * right.norm()


def test_what_is_not_ours_goes_where_it_went():
    a, b = matrices(FP16)
    cases = {
        "dtype": lambda: torch.mm(a.double(), b.double()),
        "shape": lambda: torch.mm(a[:0], b),
        "strides": lambda: torch.mm(a.repeat(1, 2)[:, ::2].repeat_interleave(2, 0)[::2], b.repeat(2, 2)[::2, ::2]),
        "size": lambda: torch.mm(a[:1], b.t()),
    }
    for reason, call in cases.items():
        expected = call()
        with plimsoll.accelerated():
            plimsoll.reset_acceleration_report()
            assert torch.equal(call(), expected), reason
        assert plimsoll.acceleration_report()["mm"] == {**dict.fromkeys(plimsoll.acceleration_report()["mm"], 0), reason: 1}


@pytest.mark.parametrize(
    "call",
    [
        lambda a, b: torch.mm(a, b[:3]),
        lambda a, b: torch.mm(a, b.float()),
        lambda a, b: torch.addmm(torch.zeros(3, dtype=a.dtype), a, b),
        lambda a, b: torch.mm(a, b, out=torch.empty(64, 64)),
        lambda a, b: torch.bmm(a, b),
    ],
)
def test_mistakes_have_torchs_own_errors(call):
    a, b = matrices(FP16)
    with pytest.raises(RuntimeError) as theirs:
        call(a, b)
    with plimsoll.accelerated(), pytest.raises(RuntimeError) as ours:
        call(a, b)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16])
def test_a_bias_may_be_a_row_of_the_result(dtype):
    torch.manual_seed(0)
    a, b, out = (torch.randn(96, 96).to(dtype) for _ in range(3))
    expected, exact = torch.addmm(out[5], a, b), torch.addmm(out[5].double(), a.double(), b.double())
    for bias in (lambda out: out[5], lambda out: out[5:6]):
        with plimsoll.accelerated():
            own = out.clone()
            assert rounds_alike(torch.addmm(bias(own), a, b, out=own), expected, exact)


def test_an_out_tensor_that_is_an_operand_is_torchs():
    a, b = matrices(FP16)
    expected = torch.addmm(a[0], a, b)
    with plimsoll.accelerated():
        bias = a[0].clone()
        out = torch.empty(64, 64, dtype=FP16)
        out[0] = bias
        assert rounds_alike(torch.addmm(out[0], a, b, out=out), expected, expected.double() + 2.0**-12)
        plimsoll.reset_acceleration_report()
        torch.mm(a, b, out=a)
        assert plimsoll.acceleration_report()["mm"]["strides"] == 1


@pytest.mark.parametrize("dtype", [FP16, BF16, FP32])
def test_an_activation_in_place_has_the_bits_of_a_new_result(dtype):
    torch.manual_seed(0)
    x = torch.randn(300, 257).to(dtype)
    for name, options in (("gelu", {"approximate": "tanh"}), ("silu", {})):
        function, in_place = (getattr(torch.ops.aten, each) for each in (name, f"{name}_"))
        with plimsoll.accelerated():
            y, version = x.clone(), x._version
            assert in_place(y, **options).data_ptr() == y.data_ptr()
            calls = replaced(name)
            expected = function(x, **options)
            assert replaced(name) == 2 * calls  # both, or neither where torch's own is as fast
            assert torch.equal(y, expected) and y._version > version
            columns = x.t().clone(memory_format=torch.preserve_format)
            in_place(columns, **options)
            assert replaced(name) == 2 * calls
        assert rounds_alike(columns.t(), function(x, **options), function(x.double(), **options))


def test_threads_call_at_once_and_their_number_does_not_change_bits():
    a, b = matrices(FP16, 128, 256, 192)
    with plimsoll.accelerated(), concurrent.futures.ThreadPoolExecutor(4) as pool:
        expected = a @ b
        assert all(torch.equal(each, expected) for each in pool.map(lambda _: a @ b, range(16)))
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            assert torch.equal(a @ b, expected)
        finally:
            torch.set_num_threads(threads)


def test_the_report_is_printed_when_the_process_ends():
    script = "import plimsoll, torch; plimsoll.accelerate(report=True); a = torch.ones(64, 64).half(); a @ a"
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": str(HERE.parent)}, capture_output=True, text=True
    )
    head, row = done.stdout.splitlines()
    assert head.split() == ["operator", "replaced", "dtype", "shape", "strides", "size", "processor"]
    assert row.split() == ["mm", "1", "0", "0", "0", "0", "0"]
