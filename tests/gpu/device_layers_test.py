"""Layers of plimsoll.pytorch on a card: as near to FP32 as the same layers on the CPU, and without a wait within a pass."""

import copy

import plimsoll.pytorch as te
import pytest
import torch
from host_waits import waits
from plimsoll.common import recipe as recipes
from plimsoll.optim import AdamW

ops = torch.ops.plimsoll
RECIPES = {
    "bf16": None,
    "delayed": recipes.DelayedScaling(amax_history_len=4),
    "current": recipes.Float8CurrentScaling(),
    "blocks": recipes.Float8BlockScaling(),
    "mxfp8": recipes.MXFP8BlockScaling(),
}
# Hopper adds 32 products of FP8 codes and the sum before them at once, each cut to 13 bits below the largest of these 33 (docs/cuda.md).
GROUP, CUT = 32, 2.0**-13


class TurnedLayer(torch.nn.Module):
    """A TransformerLayer with rotary positions."""

    def __init__(self):
        super().__init__()
        self.layer = te.TransformerLayer(256, 512, 4, 2, hidden_dropout=0.0, attention_dropout=0.0, params_dtype=torch.bfloat16)
        self.positions = te.RotaryPositionEmbedding(64)

    def forward(self, x):
        return self.layer(x, rotary_pos_emb=self.positions(x.shape[0]))


LAYERS = {
    "linear": lambda: te.Linear(256, 384, params_dtype=torch.bfloat16),
    "norm linear": lambda: te.LayerNormLinear(256, 384, params_dtype=torch.bfloat16, normalization="RMSNorm"),
    "mlp": lambda: te.LayerNormMLP(256, 512, params_dtype=torch.bfloat16),
    "gated mlp": lambda: te.LayerNormMLP(256, 512, params_dtype=torch.bfloat16, activation="swiglu"),
    "transformer": lambda: te.TransformerLayer(
        256, 512, 4, hidden_dropout=0.0, attention_dropout=0.0, params_dtype=torch.bfloat16
    ),
    "rotary transformer": TurnedLayer,
}


def scope(recipe):
    return te.fp8_autocast(enabled=recipe is not None, fp8_recipe=recipe)


def run(layer, x, grad, recipe, passes=3):
    """Output and gradients of the last of a few passes: scales of before are those of later."""
    for _ in range(passes):
        layer.zero_grad()
        given = x.detach().requires_grad_()
        with scope(recipe):
            y = layer(given)
        y.backward(grad)
    return [y.detach(), given.grad, *(p.grad for p in layer.parameters())]


def distance(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-30)).item()


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_as_near_to_fp32_as_on_the_cpu(name, recipe):
    layer = LAYERS[name]()
    x, grad = torch.randn(64, 4, 256, dtype=torch.bfloat16), torch.randn(64, 4, 256, dtype=torch.bfloat16)
    if "linear" in name:
        grad = torch.randn(64, 4, 384, dtype=torch.bfloat16)
    on_card, wide = copy.deepcopy(layer).cuda(), copy.deepcopy(layer).float()
    assert all(buffer.is_cpu for key, buffer in on_card.named_buffers() if "scale" in key or "history" in key or "step" in key)
    got = run(on_card, x.cuda(), grad.cuda(), RECIPES[recipe])
    mine, truth = run(layer, x, grad, RECIPES[recipe]), run(wide, x.float(), grad.float(), None)
    for place, (card, cpu, fp32) in enumerate(zip(got, mine, truth, strict=True)):
        assert card.is_cuda and card.dtype == cpu.dtype and card.shape == cpu.shape
        # Sums in another order round otherwise: half as much again as the CPU's own distance, or BF16's last place.
        allowed = max(1.5 * distance(cpu, fp32), 2.0**-8)
        assert distance(card.cpu(), fp32) <= allowed, place


def cut_bound(a, b):
    """The largest error of each element of a b^T [m, n], a [m, k] and b [n, k], in sums that are cut as CUT says."""
    terms = torch.einsum("mk,nk->mnk", a, b)
    terms = torch.nn.functional.pad(terms, (0, -terms.shape[-1] % GROUP)).unflatten(-1, (-1, GROUP))
    before = torch.nn.functional.pad(terms.sum(-1).cumsum(-1), (1, 0))[..., :-1]
    largest = torch.maximum(terms.abs().amax(-1), before.abs())
    return CUT * (GROUP + 1) * largest.sum(-1)


@pytest.mark.parametrize("kind", ("output", "grad_input", "grad_weight"))
@pytest.mark.parametrize("code", (("e4m3", "e4m3"), ("e5m2", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e5m2")), ids=str)
def test_products_of_codes_are_within_their_bound(code, kind):
    scale = torch.tensor([0.01]).cuda()
    for m, n, k in ((64, 128, 256), (1, 16, 16), (129, 272, 1040), (30, 50, 70)):
        shapes = {"output": ((m, k), (n, k)), "grad_input": ((m, k), (k, n)), "grad_weight": ((k, m), (k, n))}[kind]
        a, b = (ops.quantize(torch.randn(*shape).cuda(), scale, c)[0] for shape, c in zip(shapes, code, strict=True))
        y = ops.scaled_gemm(
            a,
            b,
            scale,
            scale,
            format_a=code[0],
            format_b=code[1],
            block_a=[0, 0],
            block_b=[0, 0],
            bias=None,
            kind=kind,
            dtype=torch.float32,
        )
        x, w = (ops.dequantize(v, scale, c, [0, 0], torch.float32).double() for v, c in zip((a, b), code, strict=True))
        x, w = (x.t() if kind == "grad_weight" else x), (w if kind == "output" else w.t())
        share = ((y.double() - x @ w.t()).abs() / cut_bound(x, w)).max().item()
        print(code, kind, m, n, k, f"{share:.3f} of the bound")
        assert share <= 1


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("mask_type", ("no_mask", "causal", "causal_bottom_right"))
@pytest.mark.parametrize("rule", ("alone", "window", "mask", "lengths", "bias", "groups"))
def test_attention_under_each_rule(rule, mask_type, dtype):
    if rule == "window" and mask_type == "no_mask":
        return
    groups, queries, keys = 2 if rule == "groups" else 4, 21, 30
    shapes = ((2, 4, queries, 32), (2, groups, keys, 32), (2, groups, keys, 32))
    inputs = [torch.randn(*shape).to(dtype) for shape in shapes]
    grad = torch.randn(2, 4, queries, 32).to(dtype)
    rules = {
        "key_lengths": torch.tensor([7, 30]) if rule == "lengths" else None,
        "mask": torch.rand(2, 1, queries, keys) > 0.6 if rule == "mask" else None,
        "bias": torch.randn(1, 4, queries, keys) if rule == "bias" else None,
    }

    def attended(device, dtype):
        leaves = [x.to(device, dtype).requires_grad_() for x in inputs]
        moved = {name: x if x is None else x.to(device) for name, x in rules.items()}
        y = ops.attention(*leaves, **moved, mask_type=mask_type, scale=0.2, window=4 if rule == "window" else 0)
        y.backward(grad.to(device, dtype))
        return [y.detach(), *(x.grad for x in leaves)]

    for place, (card, cpu, fp32) in enumerate(
        zip(attended("cuda", dtype), attended("cpu", dtype), attended("cpu", torch.float32), strict=True)
    ):
        assert card.is_cuda and card.isfinite().all()
        # Torch's kernel rounds scores of BF16 once more than ours.
        assert distance(card.cpu(), fp32) <= max(2 * distance(cpu, fp32), 2.0**-7 if dtype == torch.bfloat16 else 2.0**-20), place


def test_torch_autocast_of_the_card_decides_the_dtype():
    layer = te.TransformerLayer(256, 512, 4, hidden_dropout=0.0, attention_dropout=0.0, device="cuda")
    norm = te.RMSNorm(256, device="cuda")
    x = torch.randn(8, 2, 256, device="cuda")
    function = recipes.DelayedScaling(scaling_factor_compute_algo=lambda amax, scale, fp8_max, recipe: fp8_max / amax)
    for recipe in (None, RECIPES["delayed"], function):
        with torch.autocast("cuda", torch.bfloat16), scope(recipe):
            y, normed = layer(x), norm(x)
        assert y.dtype == normed.dtype == torch.bfloat16
        y.float().sum().backward()
        with torch.autocast("cpu", torch.bfloat16), scope(recipe):
            assert layer(x).dtype == norm(x).dtype == torch.float32


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_host_waits_at_the_end_of_a_pass_alone(recipe, capfd):
    layers = torch.nn.Sequential(*(te.LayerNormMLP(256, 512, params_dtype=torch.bfloat16, device="cuda") for _ in range(3)))
    x = torch.randn(64, 256, dtype=torch.bfloat16, device="cuda")

    def step():
        with scope(RECIPES[recipe]):
            y = layers(x)
        y.float().square().sum().backward()

    step()  # the first has no scale yet
    assert waits(step, capfd) == (2 if recipe == "delayed" else 0)  # once after forward, once after backward


def test_embedding_and_rotary_never_wait(capfd):
    tokens = torch.randint(50, (8, 16), device="cuda")
    table, positions = (torch.randn(rows, 256, device="cuda", requires_grad=True) for rows in (50, 20))
    angles = te.RotaryPositionEmbedding(64).cuda()(16)[:, 0, 0]

    def step():
        y = ops.embedding(tokens, table, positions, 2)
        ops.rotary(y.unflatten(-1, (4, 64)), angles, position_dim=1).square().sum().backward()

    step()
    assert waits(step, capfd) == 0


def test_training_follows_the_cpu():
    torch.manual_seed(3)
    model = torch.nn.Sequential(te.LayerNormMLP(64, 128), te.LayerNormMLP(64, 128, activation="swiglu"), te.Linear(64, 64))
    x, target = torch.randn(256, 64), torch.randn(256, 64)

    def losses(model, x, target, recipe):
        optimizer, seen = AdamW(model.parameters(), lr=3e-3), []
        for _ in range(40):
            optimizer.zero_grad()
            with scope(recipe):
                y = model(x)
            loss = (y - target).square().mean()
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        return seen

    truth = losses(copy.deepcopy(model), x, target, None)
    for recipe in ("delayed", "current", "mxfp8"):
        cpu = losses(copy.deepcopy(model), x, target, RECIPES[recipe])
        card = losses(copy.deepcopy(model).cuda(), x.cuda(), target.cuda(), RECIPES[recipe])
        fell = truth[0] - truth[-1]
        # Two roundings of one training differ by what either differs from FP32.
        assert abs(card[-1] - truth[-1]) <= max(2 * abs(cpu[-1] - truth[-1]), 0.02 * fell), (recipe, card[-1], cpu[-1], truth[-1])
        assert card[0] - card[-1] > 0.9 * fell


def test_states_travel_between_devices():
    layer = te.Linear(64, 64, device="cuda")
    x = torch.randn(32, 64, device="cuda")
    with scope(RECIPES["delayed"]):
        layer(x)
    other = te.Linear(64, 64)
    other.load_state_dict(layer.state_dict())
    scale = layer.get_buffer("input_scale")
    assert scale.is_cpu and scale.item() != 0 and torch.equal(other.get_buffer("input_scale"), scale)
    assert layer.to("cpu").weight.is_cpu


def test_one_clear_error():
    layer = te.Linear(64, 64, device="cuda")
    with pytest.raises(RuntimeError, match=r"linear: expected weight on cpu as the others, got it on cuda:0"):
        layer(torch.randn(8, 64))
    with pytest.raises(NotImplementedError, match="expected codes of eight bits or none"), scope(recipes.NVFP4BlockScaling()):
        layer(torch.randn(16, 64, device="cuda"))
    with pytest.raises(TypeError, match="expected optimizer_state and masters 'fp32'"):
        AdamW(layer.parameters(), optimizer_state="8bit")
