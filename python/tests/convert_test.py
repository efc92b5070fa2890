"""plimsoll.convert: the same model computes the same, in FP8 where asked, and comes back."""

import copy
import inspect
import io
from typing import Any

import composition
import plimsoll
import plimsoll.pytorch as te
import pytest
import torch
import torch._dynamo.testing
from convert_models import make_mlp
from plimsoll.common import recipe
from plimsoll.convert.linear import ConvertedLinear
from plimsoll.pytorch.autocast import current_recipe
from torch import nn

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
MASKS: dict[str, dict[str, Any]] = {
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


def test_reset_parameters_is_the_originals():
    linear: Any = nn.Linear(24, 8)
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


@pytest.mark.parametrize("steps_before", [0, 1])
@pytest.mark.parametrize("use_buffers", [False, True])
def test_an_average_of_a_converted_model_may_be_made_before_the_first_step_or_after(steps_before, use_buffers):
    model = make_mlp()
    plimsoll.convert(model, recipe=recipe.DelayedScaling())

    def step():
        model(torch.randn(8, model[0].in_features)).sum().backward()

    for _ in range(steps_before):
        step()
    average = torch.optim.swa_utils.AveragedModel(model, use_buffers=use_buffers)
    step()
    average.update_parameters(model)
    step()
    average.update_parameters(model)
    names = {name for name, _ in model.named_buffers()}
    assert {name.removeprefix("module.") for name, _ in average.named_buffers() if name != "n_averaged"} == names
    average.module.load_state_dict(model.state_dict())


def test_a_checkpoint_of_unused_histories_loads_into_a_model_with_a_recipe_and_back():
    unused, sized = make_mlp(), make_mlp()
    plimsoll.convert(unused)
    plimsoll.convert(sized, recipe=recipe.DelayedScaling(amax_history_len=7))
    assert {b.numel() for n, b in sized.named_buffers() if n.endswith("_amax_history")} == {7}
    state = copy.deepcopy(sized.state_dict())
    sized.load_state_dict(unused.state_dict())
    sized(torch.randn(8, sized[0].in_features)).sum().backward()
    unused.load_state_dict(state)
