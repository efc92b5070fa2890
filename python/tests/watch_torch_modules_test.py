"""plimsoll.watch over modules of plain torch: what runs in them has their path, and watching changes no number."""

import copy
from contextlib import nullcontext
from typing import Any

import plimsoll
import pytest
import torch
from plimsoll.amp import autocast
from torch import nn
from torch.nn.functional import softmax
from torch.utils.checkpoint import checkpoint

MODES = ["guard", "count", "trap", "shadow"]


class Attention(nn.Module):
    """One head; its products are functions."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(softmax(q @ k.transpose(-1, -2), -1) @ v)


class Model(nn.Module):
    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(dim), Attention(dim), nn.GELU()) for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


def overflowing_model():
    """In fp16: its scores in block 1 are Inf, and all that comes before is far from that."""
    model: Any = Model()
    with torch.no_grad():
        model.blocks[1][1].qkv.weight[:32] *= 400
    return model.half()


X = torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(2))
SCORES, WEIGHTS = "blocks.1.1.matmul", "blocks.1.1.softmax"


def names_of(w):
    return {record["name"] for record in w.records}


def record_of(w, name):
    return next(record for record in w.records if record["name"] == name)


def test_operands_and_results_have_the_path_of_their_module_and_their_amax():
    model: Any = Model()
    with torch.no_grad(), plimsoll.watch("guard") as w:
        model(X)
        model(X)
    assert names_of(w) >= {
        *(f"blocks.{block}.0/{name}" for block in (0, 1) for name in ("input", "weight", "bias", "output")),
        *(
            f"blocks.{block}.1.{layer}/{name}"
            for block in (0, 1)
            for layer in ("qkv", "out")
            for name in ("input", "weight", "output")
        ),
        *(
            f"blocks.{block}.1.matmul{second}/{name}"
            for block in (0, 1)
            for second in ("", ".2")
            for name in ("self", "other", "output")
        ),
        f"{WEIGHTS}/self",
        f"{WEIGHTS}/output",
    }
    assert all(record["calls"] == 2 and record["format"] == "fp32" for record in w.records)
    first: Any = model.blocks[0]
    normed = first[0](X)
    for name, value in {"0/input": X, "0/output": normed, "1.qkv/output": first[1].qkv(normed)}.items():
        assert record_of(w, f"blocks.0.{name}")["amax"] == value.abs().max().item()


@torch.no_grad()
@pytest.mark.parametrize("mode", MODES)
def test_an_overflow_inside_a_plain_model_is_found_and_named(mode):
    with plimsoll.watch(mode) as w:
        assert overflowing_model()(X.half()).isnan().any()
    assert record_of(w, f"{SCORES}/output")["non_finite"] and not record_of(w, f"{SCORES}/self")["non_finite"]
    first = [record["name"] for record in w.records if record["non_finite"]]
    assert all(name.startswith("blocks.1.1.") for name in first)
    assert SCORES in w.report()
    if mode == "count":
        assert record_of(w, f"{SCORES}/output")["overflowed"] > 1
    if mode in ("trap", "shadow"):
        incident = w.incidents[0]
        assert (incident["incident"], incident["op"], incident["call"]) == (SCORES, "aten::matmul", 0)
        assert [operand["shape"] for operand in incident["operands"]] == [[3, 5, 16], [3, 16, 5]]
        assert incident["harm"] == "NaN-producing" and incident["consumers"][0]["path"] == WEIGHTS
        assert [step["path"] for step in incident["before"]][0] == "blocks.1.1.qkv"
    if mode == "shadow":
        assert incident["replay"]["headroom_bits"] < 0 and abs(incident["value"]) > 65504


@torch.no_grad()
@pytest.mark.filterwarnings("error")
def test_the_first_incident_stops_the_module_that_made_it():
    for mode in ("trap", "shadow"):
        with pytest.raises(RuntimeError, match=SCORES), plimsoll.watch(mode, stops=True):
            overflowing_model()(X.half())


@pytest.mark.parametrize("mode", ["off", *MODES])
def test_no_mode_changes_a_result_or_a_gradient(mode):
    plain, watched = Model(), Model()
    plain(X).square().sum().backward()
    with plimsoll.watch(mode) as w:
        output = watched(X)
        output.square().sum().backward()
    assert torch.equal(output, plain(X))
    gradients: list[list[Any]] = [[parameter.grad for parameter in model.parameters()] for model in (plain, watched)]
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    assert bool(w.records) is (mode != "off") and not w.incidents
    if mode == "off":
        assert w._names is None  # no hook


@torch.no_grad()
def test_layers_of_torch_are_named_as_they_compute():
    image = torch.randn(2, 3, 8, 8)
    layers: dict[str, tuple[nn.Module, tuple[torch.Tensor, ...], set[str]]] = {
        "conv": (nn.Conv2d(3, 4, 3), (image,), {"Conv2d/output"}),
        "norm": (nn.BatchNorm2d(3), (image,), {"BatchNorm2d/output"}),
        "transposed": (nn.ConvTranspose2d(3, 4, 3), (image,), {"ConvTranspose2d/output"}),
        "softmax": (nn.Softmax(-1), (X,), {"Softmax/output"}),
        "lstm": (nn.LSTM(16, 8), (X,), {"LSTM/output"}),
        "attention": (nn.MultiheadAttention(16, 2).train(), (X, X, X), {"MultiheadAttention.linear/output"}),
        "fast path": (nn.MultiheadAttention(16, 2).eval(), (X, X, X), set()),
    }
    for name, (layer, inputs, expected) in layers.items():
        with plimsoll.watch("guard") as w:
            layer(*inputs)
        assert names_of(w) >= expected and names_of(w), name


@torch.no_grad()
def test_the_dtype_of_autocast_is_that_of_the_results():
    model = Model()
    with plimsoll.watch("guard") as w, autocast("cpu", torch.float16):
        model(X)
    assert record_of(w, "blocks.0.1.qkv/output")["format"] == "fp16"
    assert record_of(w, "blocks.0.1.qkv/weight")["format"] == "fp32"


@torch.no_grad()
def test_an_inner_watch_holds_and_the_outer_one_goes_on():
    model: Any = Model()
    with plimsoll.watch("guard") as outer:
        model.blocks[0](X)
        with plimsoll.watch("guard") as inner:
            model.blocks[1](X)
        model.blocks[0](X)
    assert record_of(outer, "1.qkv/output")["calls"] == 2
    assert record_of(inner, "1.qkv/output")["calls"] == 1


@torch.no_grad()
def test_our_layers_keep_their_names_among_torchs():
    ours = plimsoll.pytorch.Linear(32, 32)
    mixed = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.LayerNorm(32), ours)
    with plimsoll.watch("guard") as w:
        mixed(torch.ones(2, 32))
    assert {"0/output", "2/output", "3/output"} <= names_of(w)
    assert "not observed" not in w.report()


@torch.no_grad()
def test_a_module_that_raises_is_left():
    model: Any = nn.Sequential(Model(), nn.Linear(16, 4))
    with plimsoll.watch("guard") as w:
        with pytest.raises(RuntimeError, match="normalized_shape"):
            model[0](torch.ones(2, 3, 5))
        torch.ones(2, 2) @ torch.ones(2, 2)
        copy.deepcopy(model[1])(X)
    assert {name for name in names_of(w) if "matmul" in name} == set()
    assert "Linear/output" in names_of(w)


@pytest.mark.filterwarnings("ignore:Using `torch.compile")
@pytest.mark.parametrize("mode", ["guard", "shadow"])
def test_a_compiled_model_runs_as_without_a_watch(mode, capfd):
    model = Model()
    compiled = torch.compile(model, backend="aot_eager")
    with plimsoll.watch(mode) as w:
        outputs = [compiled(X), compiled(X)]
    assert all(torch.equal(output, model(X)) for output in outputs)
    assert not w.incidents and "callback" not in capfd.readouterr().err


def test_what_a_recomputed_block_runs_is_observed():
    block = Attention(16)
    for reentrant in (False, True):
        with plimsoll.watch("guard") as w:
            output = checkpoint(block, X.clone().requires_grad_(), use_reentrant=reentrant)
            assert record_of(w, "Attention.softmax/output")["calls"] == 1
            output.sum().backward()
        assert record_of(w, "Attention.softmax/output")["calls"] == 2  # again, for backward


class DropoutModel(nn.Module):
    """In fp16, with numbers so small that each product is counted, and with each kind of state that an operator keeps: random
    numbers of dropout, attention and a generator, running statistics."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.into, self.norm, self.lstm = nn.Linear(16, 16), nn.BatchNorm1d(16), nn.LSTM(16, 16, 2, dropout=0.5)
        self.end = nn.Linear(16, 16)
        with torch.no_grad():
            for weight, value in ((self.norm.weight, 1e-3), (self.end.weight, 6e4)):
                weight.fill_(value)

    def block(self, x):
        heads = self.into(x).unflatten(-1, (4, 4)).transpose(0, 1) * 1e-2
        attended = nn.functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.5)
        return nn.functional.dropout(self.norm(attended.transpose(0, 1).flatten(1)), 0.3)

    def forward(self, x):
        with torch.autocast("cpu", torch.float16):
            x = checkpoint(self.block, self.block(x), use_reentrant=False)
            overflowing = self.end(nn.functional.dropout(self.lstm(x)[0] + 2, 0.1))
            return torch.tanh(overflowing).float() * torch.rand_like(x, dtype=torch.float32)


@pytest.mark.parametrize("mode", MODES)
def test_random_numbers_and_running_statistics_are_those_of_the_program(mode):
    def train(watch):
        model = DropoutModel()
        torch.manual_seed(3)
        x = torch.randn(6, 16, generator=torch.Generator().manual_seed(2))
        with watch as w:
            for _ in range(2):
                output = model(x)
                output.sum().backward()
        return [output, *model.buffers(), *(p.grad for p in model.parameters()), torch.get_rng_state()], w

    plain, _ = train(nullcontext())
    watched, w = train(plimsoll.watch(mode))
    assert all(torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in zip(plain, watched, strict=True))
    if mode == "count":
        assert any(record.get("counted") for record in w.records)
    if mode == "shadow":
        assert len(w.incidents[0]["window"]) > 1


@torch.no_grad()
def test_count_sees_a_product_that_was_flushed_to_zero():
    model = nn.Linear(16, 16, bias=False).half()
    model.weight.fill_(1e-4)
    with plimsoll.watch("count") as w:
        assert model(torch.full((3, 16), 1e-5).half()).eq(0).all()
    record = record_of(w, "Linear/output")
    assert (record["counted"], record["flushed"]) == (48, 48)
