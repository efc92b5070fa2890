"""plimsoll.convert: the same model computes the same, in FP8 where asked, and comes back."""

import copy
import inspect
import io

import composition
import plimsoll
import plimsoll.pytorch as te
import pytest
import torch
import torch._dynamo.testing
from plimsoll.common import recipe
from plimsoll.convert.linear import ConvertedLinear
from plimsoll.convert.norm_pairs import ConvertedSequential
from plimsoll.pytorch.autocast import current_recipe
from torch import nn
from torch.nn.utils import prune

DELAYED = recipe.DelayedScaling(amax_history_len=2)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(11)
    torch._dynamo.reset()


def encoder(**options):
    layer = nn.TransformerEncoderLayer(24, 2, 40, dropout=0.0, **options)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


MODELS = {
    "Linear": (lambda: nn.Linear(33, 17), (5, 3, 33)),
    "one vector": (lambda: nn.Linear(33, 17, bias=False), (33,)),
    "LayerNorm and Linear": (
        lambda: nn.Sequential(nn.LayerNorm(33), nn.Linear(33, 17), nn.GELU(), nn.RMSNorm(17, 1e-5), nn.Linear(17, 5)),
        (4, 33),
    ),
    "norm without bias": (lambda: nn.Sequential(nn.LayerNorm(32, bias=False), nn.Linear(32, 16)), (4, 32)),
    "encoder": (lambda: encoder(), (7, 3, 24)),
    "encoder, norm first": (lambda: encoder(norm_first=True, batch_first=True, activation="gelu"), (3, 7, 24)),
    "encoder without bias": (lambda: encoder(norm_first=True, bias=False), (7, 3, 24)),
}


def relative_to_torch(module, convert, *inputs, **keywords):
    """The outputs and all gradients of the converted module, against the original's in double."""
    exact, plain = copy.deepcopy(module).double(), copy.deepcopy(module)
    convert(module)

    def run(model, dtype):
        leaves = [x.detach().to(dtype).requires_grad_() for x in inputs]
        options = {
            name: value.to(dtype) if torch.is_tensor(value) and value.is_floating_point() else value
            for name, value in keywords.items()
        }
        output = model(*leaves, **options)
        outputs = [x for x in (output if isinstance(output, tuple) else (output,)) if x is not None]
        sum(x.square().sum() for x in outputs).backward()
        results = {f"output {number}": x.detach() for number, x in enumerate(outputs)}
        results |= {f"input {number}": x.grad for number, x in enumerate(leaves)}
        return results | {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    ours, theirs, value = run(module, torch.float32), run(plain, torch.float32), run(exact, torch.double)
    assert ours.keys() == theirs.keys() == value.keys()
    largest = max(x.norm() for name, x in value.items() if not name.startswith("output"))
    for name, x in value.items():
        allowed = (
            composition.FP32 * x.norm()
            + 4 * (theirs[name].double() - x).norm()
            + 2.0**-22 * largest * (not name.startswith("output"))
        )
        assert ours[name].shape == x.shape and (ours[name].double() - x).norm() <= allowed, name


@pytest.mark.parametrize("name", MODELS)
def test_without_a_scope_nothing_changes(name):
    make, shape = MODELS[name]
    relative_to_torch(composition.randomize(make()) if "encoder" not in name else make(), plimsoll.convert, torch.randn(shape))


def test_a_decoder_with_masks():
    layer = nn.TransformerDecoderLayer(24, 2, 40, dropout=0.0, batch_first=True)
    causal = nn.Transformer.generate_square_subsequent_mask(7)
    padding = torch.zeros(3, 5).masked_fill(torch.arange(5) >= torch.tensor([[2], [5], [4]]), -torch.inf)
    relative_to_torch(
        nn.TransformerDecoder(layer, 2),
        plimsoll.convert,
        torch.randn(3, 7, 24),
        torch.randn(3, 5, 24),
        tgt_mask=causal,
        tgt_is_causal=True,
        memory_key_padding_mask=padding,
    )


SOME = torch.tensor([[False, True, False, False, True], [False] * 5, [True, False, False, True, True]])
MASKS = {
    "none": {},
    "weights": {"need_weights": True},
    "weights of each head": {"need_weights": True, "average_attn_weights": False, "key_padding_mask": SOME},
    "padding": {"key_padding_mask": SOME},
    "padding, added": {"key_padding_mask": torch.zeros(3, 5).masked_fill(SOME, -torch.inf)},
    "scores": {"attn_mask": torch.randn(5, 5)},
    "some scores": {
        "attn_mask": SOME[[0, 1, 1, 2, 0]],
        "key_padding_mask": torch.tensor([[True, False, False, False, False]] * 3),
    },
    "scores of each head": {"attn_mask": torch.randn(6, 5, 5)},
    "causal": {"attn_mask": torch.ones(5, 5, dtype=torch.bool).triu(1), "is_causal": True},
    "causal, with weights": {"attn_mask": torch.ones(5, 5, dtype=torch.bool).triu(1), "is_causal": True, "need_weights": True},
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("is_self", [True, False])
def test_multihead_attention(is_self, batch_first, mask):
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(12, 2, batch_first=batch_first)

        def forward(self, x, *others, **keywords):
            key, value = others or (x, x)
            return self.attention(x, key, value, **keywords)

    shape = (3, 5, 12) if batch_first else (5, 3, 12)
    inputs = [torch.randn(shape) for _ in range(1 if is_self else 3)]
    relative_to_torch(Attention(), plimsoll.convert, *inputs, **{"need_weights": False, **MASKS[mask]})


def test_attention_of_other_widths_and_without_a_batch():
    attention = nn.MultiheadAttention(12, 3, kdim=7, vdim=9, bias=False)
    relative_to_torch(attention, plimsoll.convert, torch.randn(4, 12), torch.randn(6, 7), torch.randn(6, 9))


def test_evaluation_does_not_bypass_the_converted_layers():
    """torch's fast path would read the weights and call no child."""
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(24, 2, 40, batch_first=True), 2).eval()
    padding = torch.arange(7) >= torch.tensor([[7], [4], [2]])
    x = torch.randn(3, 7, 24)
    with torch.no_grad():
        before = model(x, src_key_padding_mask=padding)
        plimsoll.convert(model)
        after = model(x, src_key_padding_mask=padding)
        composition.assert_close(after[~padding], before[~padding].double(), "output", 4e-6)
        with te.fp8_autocast():
            assert not torch.equal(model(x, src_key_padding_mask=padding), after)


def make_mlp():
    return nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.LayerNorm(48), nn.Linear(48, 8))


def train(model, optimizer, count=3):
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        loss = model(torch.randn(16, 24, generator=generator)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def test_there_and_back_with_one_optimizer():
    model = make_mlp()
    before, keys = list(model.parameters()), list(model.state_dict())
    attributes = [set(module.__dict__) for module in model.modules()]
    types = [type(module) for module in model.modules()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    first = train(model, optimizer)
    plimsoll.convert(model, recipe=DELAYED)
    assert isinstance(model[0], nn.Linear) and isinstance(model[0], te.Linear)
    second = train(model, optimizer)
    assert model[0].input_step.item() == 3
    assert all(a is b for a, b in zip(model.parameters(), before, strict=True))
    plimsoll.convert_back(model)
    third = train(model, optimizer)
    assert third < second < first
    assert all(a is b for a, b in zip(model.parameters(), before, strict=True))
    assert list(model.state_dict()) == keys
    assert [set(module.__dict__) for module in model.modules()] == attributes
    assert [type(module) for module in model.modules()] == types


def test_state_dicts_load_in_both_directions():
    model, converted = make_mlp(), make_mlp()
    plimsoll.convert(converted)
    converted.load_state_dict(model.state_dict())
    assert torch.equal(converted[3].weight, model[3].weight)
    loaded = model.load_state_dict(converted.state_dict(), strict=False)
    assert not loaded.missing_keys and all("_" in key for key in loaded.unexpected_keys)
    again = make_mlp()
    plimsoll.convert(again)
    again.load_state_dict(converted.state_dict())


def test_the_recipe_is_a_scope_around_forward():
    alone = make_mlp()
    scoped = copy.deepcopy(alone)
    plimsoll.convert(alone)
    plimsoll.convert(scoped, recipe=DELAYED)
    for _ in range(2):
        x = torch.randn(5, 24)
        with te.fp8_autocast(fp8_recipe=DELAYED):
            expected = alone(x)
        ours = scoped(x)
        assert torch.equal(ours, expected)
        for output in (ours, expected):
            output.sum().backward()
    for (name, mine), (_, other) in zip(scoped.named_buffers(), alone.named_buffers(), strict=True):
        assert torch.equal(mine, other), name
    assert torch.equal(scoped[0].weight.grad, alone[0].weight.grad)
    plimsoll.convert(scoped, recipe=recipe.MXFP8BlockScaling())
    with te.fp8_autocast(fp8_recipe=recipe.MXFP8BlockScaling()):
        expected = alone(x)
    assert torch.equal(scoped(x), expected)


def test_an_exception_leaves_the_scope():
    model = make_mlp()
    plimsoll.convert(model, recipe=DELAYED)
    with pytest.raises(RuntimeError, match="expected"):
        model(torch.randn(5, 23))
    assert current_recipe() is None


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(24, 8)

    def forward(self, tokens, labels=None):
        return self.inner(tokens)


def test_what_looks_at_the_model_sees_what_it_was():
    model = Named()
    plimsoll.convert(model, recipe=DELAYED)
    assert isinstance(model, Named) and type(model).__name__ == "Named"
    assert list(inspect.signature(model.forward).parameters) == ["tokens", "labels"]


def copied(model):
    return copy.deepcopy(model)


def saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("rule", [None, DELAYED])
@pytest.mark.parametrize("again", [copied, saved])
def test_copies_are_models_of_their_own(again, rule):
    model = Named()
    plimsoll.convert(model, recipe=rule)
    x = torch.randn(5, 24)
    model(x)
    other = again(model)
    assert torch.equal(other(x), model(x))
    model.inner.weight.data.zero_()
    assert not torch.equal(other(x), model(x))
    plimsoll.convert_back(other)
    assert type(other) is Named and type(other.inner) is nn.Linear
    assert isinstance(model.inner, ConvertedLinear)


@pytest.mark.parametrize("make", [make_mlp, lambda: nn.TransformerEncoderLayer(24, 2, 40, dropout=0.0, norm_first=True)])
def test_compiled_models_have_the_bits_of_eager_ones(make):
    model = make()
    plimsoll.convert(model, recipe=DELAYED)
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)  # the scope is outside
    for _ in range(2):
        x = torch.randn(5, 3, 24)
        ours, expected = compiled(x), eager(x)
        assert torch.equal(ours, expected)
        for output in (ours, expected):
            output.sum().backward()
    for (name, mine), (_, other) in zip(model.named_buffers(), eager.named_buffers(), strict=True):
        assert torch.equal(mine, other), name


def test_forward_is_one_graph_with_and_without_a_recipe():
    for rule in (DELAYED, None):
        model, graphs = Named(), torch._dynamo.testing.CompileCounter()
        plimsoll.convert(model, recipe=rule)
        compiled = torch.compile(model, backend=graphs, fullgraph=True)
        x = torch.randn(5, 24)
        with te.fp8_autocast(enabled=rule is None, fp8_recipe=DELAYED):
            assert torch.equal(compiled(x), model(x))
        assert graphs.frame_count == 1


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
    linear = nn.Linear(8, 8)
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


def test_reset_parameters_is_the_originals():
    linear = nn.Linear(24, 8)
    plimsoll.convert(linear, recipe=DELAYED)
    linear(torch.randn(3, 24))
    torch.manual_seed(4)
    linear.reset_parameters()
    torch.manual_seed(4)
    assert torch.equal(linear.weight, nn.Linear(24, 8).weight)
    assert linear.input_step.item() == 0


def test_dtypes_and_devices():
    for dtype in (torch.bfloat16, torch.float16):
        linear = nn.Linear(16, 8, dtype=dtype)
        plimsoll.convert(linear)
        assert linear(torch.randn(3, 16, dtype=dtype)).dtype == dtype and linear.input_scale.dtype == torch.float32
    model = nn.Linear(16, 8, device="meta")
    plimsoll.convert(model)
    assert model(torch.empty(3, 16, device="meta")).is_meta


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"module": 3}, TypeError, "expected module a torch.nn.Module, got 3"),
        ({"recipe": "fp8"}, TypeError, "expected recipe .* got 'fp8'"),
        ({"exclude": ["lm_hed"]}, ValueError, r"expected exclude to name modules, got \['lm_hed'\]"),
    ],
)
def test_mistakes_change_nothing(arguments, error, message):
    model = make_mlp()
    with pytest.raises(error, match=message):
        plimsoll.convert(**{"module": model, **arguments})
    assert type(model[0]) is nn.Linear
