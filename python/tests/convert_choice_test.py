"""Modules that convert() changes and those that it keeps, with the reason; arguments that it refuses."""

from typing import Any

import composition
import plimsoll
import pytest
import torch
import torch._dynamo.testing
from convert_models import make_mlp
from plimsoll.convert.norm_pairs import ConvertedSequential
from torch import nn
from torch.nn.utils import prune


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(11)


def test_pairs_fuse_where_nobody_looks_between():
    model = nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 8))
    report = plimsoll.convert(model)
    assert isinstance(model, ConvertedSequential) and report.converted[-1].text == "0 and 1 as one"
    x, seen = torch.randn(5, 24), []
    fused = model(x)
    hook = model[0].register_forward_hook(lambda module, inputs, output: seen.append(output))
    composition.assert_close(model(x).detach(), fused.detach().double(), "output")
    assert len(seen) == 1
    hook.remove()
    model[0] = nn.Identity()
    assert torch.equal(model(x), model[1](x))


class ReadsWeight(nn.Module):
    def __init__(self):
        super().__init__()
        self.read = nn.Linear(16, 16)
        self.both = nn.Linear(16, 16)

    def forward(self, x):
        return nn.functional.linear(self.both(x.to(self.both.weight.dtype)), self.read.weight, self.read.bias)


class Subclass(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def tied():
    model = nn.ModuleDict({"embedding": nn.Embedding(16, 8), "head": nn.Linear(8, 16)})
    model["head"].weight = model["embedding"].weight
    return model


def replaced():
    linear: Any = nn.Linear(8, 8)
    linear.forward = lambda x: x
    return linear


def sparse():
    linear = nn.Linear(8, 8)
    linear.weight = nn.Parameter(linear.weight.detach().to_sparse())
    return linear


def bypassing():
    layer = nn.TransformerEncoderLayer(8, 2, 8)
    layer.self_attn.add_zero_attn = True
    return layer


REASONS = {
    "subclass": (lambda: Subclass(8, 8), "", "subclass of Linear"),
    "lazy": (lambda: nn.LazyLinear(8), "", "no sizes before its first call"),
    "parametrized": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)), "", "its weight is parametrized"),
    "pruned": (lambda: prune.l1_unstructured(nn.Linear(8, 8), "weight", 3), "", "computed from other parameters"),
    "replaced": (replaced, "", "forward has been replaced"),
    "sparse": (sparse, "", "its weight is sparse"),
    "double": (lambda: nn.Linear(8, 8, dtype=torch.double), "", "torch.float64"),
    "tied": (tied, "head", "its weight is embedding.weight, too"),
    "embedding": (tied, "embedding", "no counterpart"),
    "read": (ReadsWeight, "read", "ReadsWeight reads its weight and never calls it"),
    "attention": (lambda: nn.MultiheadAttention(8, 2, add_bias_kv=True), "", "it has bias_k"),
    "quantized": (lambda: torch.ao.nn.quantized.dynamic.Linear(8, 8), "", "it is not torch.nn.Linear"),
    "bypassed": (bypassing, "linear1", "its layer's attention is kept"),
}


@pytest.mark.parametrize("name", REASONS)
def test_what_is_kept_says_why(name):
    make, path, reason = REASONS[name]
    model = make()
    types = {p: type(m) for p, m in model.named_modules()}
    report = plimsoll.convert(model)
    kept = {entry.path: entry.text for entry in report.kept}
    assert reason in kept[path]
    assert type(dict(model.named_modules())[path]) is types[path]
    assert reason in str(report)


def test_a_module_read_and_called_is_converted():
    model = ReadsWeight()
    report = plimsoll.convert(model)
    assert [entry.path for entry in report.converted] == ["both"]


def test_shared_weights_on_request():
    model = tied()
    report = plimsoll.convert(model, shared_weights=True)
    assert [entry.path for entry in report.converted] == ["head"]
    assert model["head"].weight is model["embedding"].weight


def test_a_module_in_two_places_is_one():
    linear = nn.Linear(8, 8)
    report = plimsoll.convert(nn.Sequential(linear, nn.ReLU(), linear))
    assert [entry.path for entry in report.converted] == ["0"]


def test_exclude_takes_patterns_of_paths():
    model = nn.ModuleDict({"encoder": make_mlp(), "head": nn.Linear(8, 8)})
    report = plimsoll.convert(model, exclude=["head", "*.3"])
    assert [entry.path for entry in report.converted] == ["encoder.0"]
    assert {entry.path for entry in report.kept if entry.text == "excluded"} == {"encoder.3", "head"}


def test_converting_twice_changes_nothing():
    model = make_mlp()
    plimsoll.convert(model)
    report = plimsoll.convert(model)
    assert not report.converted and not report.kept
    plimsoll.convert_back(model)
    assert type(model) is nn.Sequential
    plimsoll.convert_back(model)
    assert type(model[0]) is nn.Linear


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"module": 3}, TypeError, "expected module a torch.nn.Module, got 3"),
        ({"recipe": "fp8"}, TypeError, "^convert: expected recipe .* got 'fp8'"),
        ({"exclude": [1]}, TypeError, r"^convert: expected exclude a list of paths, got \[1\]"),
        ({"exclude": 1}, TypeError, "^convert: expected exclude a list of paths, got 1"),
        ({"exclude": ["lm_hed"]}, ValueError, r"expected exclude to name modules, got \['lm_hed'\]"),
    ],
)
def test_mistakes_change_nothing(arguments, error, message):
    model = make_mlp()
    with pytest.raises(error, match=message):
        plimsoll.convert(**{"module": model, **arguments})
    assert type(model[0]) is nn.Linear
