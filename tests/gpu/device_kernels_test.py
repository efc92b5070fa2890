"""Operators on a card against the same on the CPU: the same bits, on millions of elements."""

import itertools

import pytest
import torch

ops = torch.ops.plimsoll
WIDE = (torch.float32, torch.bfloat16, torch.float16)
CODES = ("e4m3", "e5m2")
SHAPES = ((1, 1), (3, 63), (129, 1000), (2048, 4096))


def sample(*shape, dtype=torch.float32, scale=1.0):
    return (torch.randn(*shape) * scale).to(dtype)


def bits(x):
    """Numbers whose equality is that of bits, but that any NaN is any other."""
    if x.is_floating_point():
        x = torch.where(x.isnan(), torch.full_like(x, torch.nan), x)
        return x.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[x.element_size()])
    return x


def expect_same(op, *args, **kwargs):
    """Calls the operator on the CPU and on the card. Returns what the card gave."""
    move = lambda x: x.cuda() if isinstance(x, torch.Tensor) else x
    expected = op(*args, **kwargs)
    got = op(*map(move, args), **{name: move(x) for name, x in kwargs.items()})
    pair = lambda x: x if isinstance(x, tuple) else (x,)
    for place, (mine, theirs) in enumerate(zip(pair(got), pair(expected), strict=True)):
        assert mine.is_cuda and mine.shape == theirs.shape and mine.dtype == theirs.dtype
        different = bits(mine.cpu()) != bits(theirs)
        assert not different.any(), f"result {place}: {int(different.sum())} of {different.numel()} differ"
    return got


@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_quantize(shape, dtype):
    x = sample(*shape, dtype=dtype, scale=100)
    expect_same(ops.amax, x)
    for code in CODES:
        codes, _ = expect_same(ops.quantize, x, torch.tensor([0.37]), code)
        for to in WIDE:
            expect_same(ops.dequantize, codes.cpu(), torch.tensor([0.37]), code, [0, 0], to)


@pytest.mark.parametrize("block", ([0, 0], [1, 0], [1, 32], [32, 1], [1, 128], [128, 1], [128, 128]), ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_quantize_blocks(shape, block):
    for dtype, code in itertools.product(WIDE, CODES):
        x = sample(*shape, dtype=dtype, scale=3)
        for options in ({}, {"power_of_two": True}, {"scale_format": "e8m0"}, {"scale_format": "e8m0", "rounding": "down"}):
            if block == [0, 0] and "scale_format" in options:
                continue  # no recipe has it
            codes, scale, _ = expect_same(ops.quantize_blocks, x, code, block, **options)
            expect_same(ops.dequantize, codes.cpu(), scale.cpu(), code, block, torch.float32)


@pytest.mark.parametrize("worst", (float("inf"), float("-inf"), float("nan"), 1e38))
def test_what_is_not_finite_is_seen(worst):
    for dtype, code in itertools.product(WIDE, CODES):
        x = sample(200, 1000, dtype=dtype)
        x[17, 333] = worst
        expect_same(ops.amax, x)
        expect_same(ops.quantize, x, torch.tensor([1.0]), code)
        for block in ([0, 0], [1, 0], [1, 32], [32, 1], [1, 128], [128, 128]):
            expect_same(ops.quantize_blocks, x, code, block)


@pytest.mark.parametrize("dtype", (torch.uint8, torch.bfloat16, torch.float32), ids=str)
def test_transpose(dtype):
    for shape in ((0, 5), (1, 1), (3, 63), (129, 1000), (4096, 4100)):
        expect_same(ops.transpose, (torch.randn(*shape) * 50).to(dtype))


@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("kind", ("layernorm", "rmsnorm"))
@pytest.mark.parametrize("residual", (False, True))
def test_norm(kind, dtype, residual):
    for rows, cols in ((1, 1), (5, 65), (100, 1000), (4096, 4096), (3, 20000)):
        x, weight = sample(rows, cols, dtype=dtype), sample(cols, dtype=dtype)
        bias = sample(cols, dtype=dtype) if kind == "layernorm" else None
        options = {"kind": kind, "zero_centered": residual, "epsilon": 1e-5}
        added = sample(rows, cols, dtype=dtype) if residual else None
        for to in WIDE:
            expect_same(ops.norm_forward, x, added, weight, bias, dtype=to, **options)
        _, total, mean, rstd = ops.norm_forward(x, added, weight, bias, dtype=dtype, **options)
        passed = {"x": total if residual else x, "weight": weight, "mean": mean, "rstd": rstd, **options}
        for direct in (None, sample(rows, cols, dtype=dtype)):
            expect_same(ops.norm_backward, sample(rows, cols, dtype=dtype), direct, **passed)


KINDS = [kind for gated in (False, True) for kind in ops.activation_names(gated)]


@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_activation(kind, dtype):
    halves = 2 if kind in ops.activation_names(True) else 1
    for rows, cols in ((1, 1), (5, 65), (1000, 4096)):
        x = sample(rows, halves * cols, dtype=dtype, scale=3)
        expect_same(ops.activation_forward, x, kind)
        expect_same(ops.activation_backward, x, sample(rows, cols, dtype=dtype), kind)


def expect_softmax_gradient(got, y, grad, dtype):
    """Within one rounding to the dtype, and FP32's of sums of as many terms as there are keys."""
    exact = 0.3 * y * (grad - (y * grad).sum(-1, keepdim=True))
    magnitude = 0.3 * y * (grad.abs() + (y * grad).abs().sum(-1, keepdim=True))
    info, terms = torch.finfo(dtype), y.shape[-1] + 4
    allowed = (info.eps + terms * torch.finfo(torch.float32).eps) * magnitude + info.smallest_normal * info.eps
    assert ((got - exact).abs() <= allowed).all()


@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("mask_type", ("no_mask", "causal", "causal_bottom_right"))
def test_softmax(mask_type, dtype):
    for shape in ((1, 1, 1, 1), (2, 3, 65, 127), (2, 4, 512, 1024)):
        x = sample(*shape, dtype=dtype, scale=4)
        for mask in (None, torch.rand(shape[0], 1, *shape[2:]) > 0.7):
            y = expect_same(ops.softmax_forward, x, 0.3, mask_type, mask)
            grad = sample(*shape, dtype=dtype)
            expect_softmax_gradient(
                ops.softmax_backward(y, grad.cuda(), 0.3).cpu().double(), y.cpu().double(), grad.double(), dtype
            )


def loss_options(reduction, smoothing=0.0):
    return {"reduction": reduction, "ignore_index": -100, "label_smoothing": smoothing}


@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("reduction", ("none", "mean", "sum"))
def test_cross_entropy(reduction, dtype):
    """Sums of so few losses and weights are exact in FP64, so that their order does not matter."""
    for rows, vocabulary in ((1, 1), (5, 63), (300, 1000), (32, 50257), (16, 131072)):
        x, targets = sample(rows, vocabulary, dtype=dtype, scale=3), torch.randint(vocabulary, (rows,))
        targets[1::5] = -100
        for weight, smoothing in ((None, 0.0), (None, 0.1), (torch.rand(vocabulary) + 0.5, 0.0)):
            options = loss_options(reduction, smoothing)
            for wants_grad in (False, True):
                expect_same(ops.cross_entropy_forward, x, targets, weight, wants_grad=wants_grad, **options)
            grad = torch.rand(rows) if reduction == "none" else torch.rand(())
            expect_same(ops.cross_entropy_backward, grad, x, targets, weight, **options)


@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_cross_entropy_shows_what_is_wrong(dtype):
    x, targets = sample(6, 3000, dtype=dtype), torch.arange(6)
    for row, worst in enumerate((float("inf"), float("-inf"), float("nan"))):
        x[row, 1700] = worst
    x[3] = float("-inf")
    expect_same(ops.cross_entropy_forward, x, targets, None, wants_grad=True, **loss_options("none"))
    targets[4:] = torch.tensor([3000, -1])
    loss, grad = ops.cross_entropy_forward(x.cuda(), targets.cuda(), None, wants_grad=True, **loss_options("none"))
    assert loss[4:].isnan().all() and grad[4:].isnan().all() and loss[1].isfinite()


def parts_of_linear_cross_entropy(hidden, weight, targets, reduction):
    """Loss and gradients by torch's products and the operator on logits, in the chunks of 512 MiB of 131,072 classes."""
    counted = (targets != -100).sum().double()
    factor = (1 / counted if reduction == "mean" else torch.ones_like(counted)).float().expand(len(targets)).contiguous()
    losses, grads, grad_weight = [], [], torch.zeros(weight.shape, device="cuda")
    for part, target, each in zip(hidden.split(2048), targets.split(2048), factor.split(2048), strict=True):
        logits = part @ weight.t()
        losses.append(ops.cross_entropy_forward(logits, target, None, wants_grad=False, **loss_options("none"))[0])
        grad = ops.cross_entropy_backward(each, logits, target, None, **loss_options("none"))
        grads.append(grad @ weight)
        grad_weight += torch.mm(grad.t(), part, out_dtype=torch.float32)
    total = torch.cat(losses).double().sum()
    return (total / counted if reduction == "mean" else total).float(), torch.cat(grads), grad_weight


@pytest.mark.parametrize("reduction", ("mean", "sum"))
def test_linear_cross_entropy_is_its_parts(reduction):
    for rows, vocabulary in ((100, 1000), (4096, 131072)):
        hidden, weight = (sample(n, 64, dtype=torch.bfloat16).cuda() for n in (rows, vocabulary))
        targets = torch.randint(vocabulary, (rows,)).cuda()
        targets[1::5] = -100
        options = {**loss_options(reduction), "dtype": torch.bfloat16, "wants_grad": [True, True]}
        got = ops.linear_cross_entropy_forward(hidden, weight, targets, **options)
        for mine, part in zip(got, parts_of_linear_cross_entropy(hidden, weight, targets, reduction), strict=True):
            assert torch.equal(mine, part)


def test_the_host_does_not_wait_for_a_loss():
    hidden, weight = sample(300, 64, dtype=torch.bfloat16), sample(5000, 64, dtype=torch.bfloat16)
    hidden, weight = (x.cuda().requires_grad_() for x in (hidden, weight))
    targets, classes = torch.randint(5000, (300,)).cuda(), torch.rand(5000).cuda()

    def step():
        for reduction in ("mean", "sum"):
            ops.cross_entropy(hidden @ weight.t(), targets, classes, reduction=reduction).backward()
            ops.linear_cross_entropy(hidden, weight, targets, reduction=reduction).backward()

    step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("weights", WIDE, ids=str)
def test_embedding(weights, dtype):
    for batch, seq, dim, vocabulary in ((1, 1, 1, 1), (3, 7, 37, 11), (4, 512, 1000, 5000), (8, 1024, 520, 3)):
        tokens = torch.randint(vocabulary, (batch, seq))
        table, positions = sample(vocabulary, dim, dtype=weights), sample(seq + 5, dim, dtype=weights)
        expect_same(ops.embedding_forward, tokens, table, None, 0, dtype)
        expect_same(ops.embedding_forward, tokens, table, positions, 3, dtype)
        sizes = {"vocabulary": vocabulary, "positions": seq + 5, "first_position": 3}
        expect_same(ops.embedding_backward, sample(batch, seq, dim, dtype=dtype), tokens, **sizes, dtype=weights)


def test_a_token_that_the_table_lacks_is_nan_and_has_no_gradient():
    table, grad, tokens = torch.randn(11, 40), torch.randn(3, 7, 40), torch.randint(11, (3, 7))
    tokens[1, 2], tokens[2, 6] = 11, -5
    outside = (tokens < 0) | (tokens >= 11)
    y = ops.embedding_forward(tokens.cuda(), table.cuda(), None, 0, torch.float32).cpu()
    assert y[outside].isnan().all() and torch.equal(y[~outside], table[tokens[~outside]])
    rest = {"positions": 0, "first_position": 0, "dtype": torch.float32}
    got, _ = ops.embedding_backward(grad.cuda(), tokens.cuda(), vocabulary=11, **rest)
    expected, _ = ops.embedding_backward(grad, torch.where(outside, 11, tokens), vocabulary=12, **rest)
    assert torch.equal(bits(got.cpu()), bits(expected[:11]))


@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("interleaved", (False, True))
@pytest.mark.parametrize("transposed", (False, True))
def test_rotary(transposed, interleaved, dtype):
    for heads, channels, rotated in ((1, 2, 2), (3, 37, 18), (40, 128, 128), (6, 2100, 1056)):
        x, angles = sample(33, 5, heads, channels, dtype=dtype), torch.randn(40, rotated) * 100
        turns = angles.cos(), angles.sin()
        kind = {"interleaved": interleaved, "transposed": transposed}
        for copied in (0, heads // 2):
            expect_same(ops.rotary_turn, x, *turns, position_dim=0, copied_heads=copied, **kind)
        expect_same(ops.rotary_turn, x.transpose(0, 1), *turns, position_dim=1, **kind)
        last = lambda x, *turns, kind=kind: ops.rotary_turn(x[:, :, -1:, :], *turns, position_dim=0, **kind)
        expect_same(last, x, *turns)


@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_adamw(dtype):
    for count in (1, 1025, 5_000_003):
        start = sample(count)
        grad = sample(count, dtype=dtype)

        def updated(device, start=start, grad=grad, count=count):
            parameter = start.to(dtype, copy=True).to(device)
            master = None if dtype == torch.float32 else start.clone().to(device)
            moments = [torch.zeros(count, device=device) for _ in range(2)]
            for step in (1, 2, 3):
                ops.adamw_(parameter, grad.to(device), *moments, step=step, lr=1e-2, weight_decay=0.1, master=master)
            return [x.cpu() for x in (parameter, master, *moments) if x is not None]

        for mine, theirs in zip(updated("cuda"), updated("cpu"), strict=True):
            assert torch.equal(bits(mine), bits(theirs))
