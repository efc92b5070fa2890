"""The recipe Auto: decisions and bits of the library's controller, states, copies, and what it refuses."""

import copy
import json
import math
import os
import pathlib
import pickle
import subprocess
from typing import Any

import gpt_test
import plimsoll
import plimsoll.common.precision
import plimsoll.pytorch as te
import pytest
import ranks
import torch
from plimsoll import amp
from plimsoll.common.recipe import Auto, DelayedScaling, Float8CurrentScaling, Format
from plimsoll.models import AutoModelForCausalLM
from tiny_llama import write
from torch._dynamo.utils import counters

BUILD = pathlib.Path(os.environ.get("PLIMSOLL_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build"))

# Bounds between the errors of these models' operands, and no patience, so that products go up and down in a few steps.
RESTLESS: dict[str, Any] = {
    "every": 1,
    "votes": 1,
    "ballots": 2,
    "quiet": 1,
    "window": 1,
    "bound": (1.1,) * 3,
    "demote_share": 1.0,
}
# Every operand is within them.
CALM: dict[str, Any] = {"bound": (1e9,) * 3, "flushed": 1.0}


class Net(torch.nn.Module):
    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(5)
        self.first = te.Linear(32, 48, **options)
        self.mlp = te.LayerNormMLP(48, 64, **options)
        self.last = torch.nn.ModuleDict({"out": te.Linear(48, 16, **options)})

    def forward(self, x):
        return self.last["out"](self.mlp(self.first(x)))


class Wrapper(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.module = Net()

    def forward(self, x):
        return self.module(x)


PRODUCTS = {
    f"{layer}/{product}"
    for layer in ("first", "mlp.fc1", "mlp.fc2", "last.out")
    for product in ("output", "grad_input", "grad_weight")
}


def batch(step, outlier=False):
    x = torch.randn(24, 32, generator=torch.Generator().manual_seed(step))
    if outlier:
        x[:, 7] = 2.0**20
    return x


def train(auto, model, steps, call=None, group=None):
    """Losses and changes of these steps, of all there are 100. Every third batch but one has an outlier in a column."""
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-10)
    losses, changes = [], []
    for step in steps:
        optimizer.zero_grad()
        with te.autocast(recipe=auto, amax_reduction_group=group):
            output = (call or model)(batch(step, outlier=step % 3 == 1))
        loss = output.float().square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        changes += auto.end_step(step, 100) if isinstance(auto, Auto) else []
    return losses, [str(change) for change in changes]


def bits_of(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same(one, other):
    assert one.keys() == other.keys()
    different = [name for name in one if not torch.equal(one[name], other[name])]
    assert not different, different


def test_bits_and_decisions_are_those_of_cpp(tmp_path):
    auto, steps = Auto("e4m3>fp32", **RESTLESS), 6
    file = tmp_path / "values.pt"
    text = json.dumps({"name": "auto", "ladder": "e4m3>fp32", **RESTLESS})
    subprocess.run([BUILD / "bin" / "gpt_reference", text, file, str(steps)], check=True, timeout=300)
    values = torch.load(file, weights_only=False)  # written by the line above
    model = gpt_test.Gpt()
    model.load_state_dict(
        {key.removeprefix("parameter "): value for key, value in values.items() if key.startswith("parameter ")}
    )
    changes = []
    for step in range(steps):
        model.zero_grad()
        with te.autocast(recipe=auto):
            logits = model(values[f"{step} tokens"], torch.float32)
        assert torch.equal(logits, values[f"{step} logits"])
        logits.backward(values[f"{step} grad"])
        for key, parameter in model.named_parameters():
            assert parameter.grad is not None and torch.equal(parameter.grad, values[f"{step} gradient {key}"]), key
        changes += auto.end_step(step, steps)
        expected = json.loads(bytes(values[f"{step} controller"].tolist()))
        assert expected["layers"].pop()["layer"] == "head"  # C++ lists it, and its products never count
        assert {"step": step + 1, **expected} == auto.state_dict()
    assert {change.after for change in changes} == {"e4m3", "fp32"}
    assert {layer["layer"] for layer in auto.state_dict()["layers"]} >= {
        "blocks.1.self_attention.proj",
        "blocks.0.layernorm_mlp.fc2",
    }


def test_products_that_read_an_outlier_are_promoted():
    auto, model = Auto(every=1, ballots=2), Net()
    for step in range(2):
        with te.autocast(recipe=auto):
            output = model(batch(step, outlier=True).requires_grad_())
        assert output.dtype == torch.bfloat16
        assert auto.measures()
        output.float().sum().backward()
        changes = auto.end_step()
        assert bool(changes) == (step == 1)
    first = [change for change in changes if change.layer == "first"]
    assert [change.product for change in first] == ["output", "grad_weight"]
    for change in first:
        assert (change.step, change.before, change.after, change.operand) == (1, "e4m3", "bf16", "input")
        assert change.reason == "error" and change.error > change.bound > 0
        error, bound = f"{change.error:.3g}", f"{change.bound:.3g}"
        assert str(change) == f"first {change.product}: e4m3 -> bf16 after step 2, error of input {error} above {bound}"
    assert auto.shares() == {"e4m3": 1.0, "bf16": 0.0}, "in both steps"
    products = auto.products()
    with te.autocast(recipe=auto):
        model(batch(2, outlier=True).requires_grad_()).float().sum().backward()
    auto.end_step()
    assert products.keys() == auto.products().keys() == PRODUCTS
    wide = [name for name, product in products.items() if product.format == "bf16"]
    assert {"first/output", "first/grad_weight"} <= set(wide) and "first/grad_input" not in wide
    work = {name: product.multiply_adds for name, product in products.items()}
    assert work["first/output"] == work["first/grad_weight"] == 24 * 32 * 48
    assert auto.shares(of_last_step=True)["bf16"] == pytest.approx(sum(work[name] for name in wide) / sum(work.values()))
    assert auto.shares()["bf16"] == pytest.approx(sum(work[name] for name in wide) / (3 * sum(work.values())))


def test_x_without_a_gradient_has_no_grad_input():
    auto = Auto()
    _, changes = train(auto, Net(), range(1))
    assert not changes
    assert auto.products().keys() == PRODUCTS - {"first/grad_input"}


def test_a_calm_run_has_the_bits_of_delayed_scaling_measured_or_not():
    plain = DelayedScaling(fp8_format=Format.E4M3, high_precision_format="bf16")
    results = []
    for recipe in (Auto(every=1, **CALM), Auto(every=10**6, ballots=1, votes=1, **CALM), plain):
        model = Net()
        losses, changes = train(recipe, model, range(5))
        assert not changes
        results.append((losses, bits_of(model)))
    for losses, bits in results[1:]:
        assert losses == results[0][0]
        assert_same(bits, results[0][1])


@pytest.mark.parametrize("ladder", ["e4m3>bf16", "mxfp8>fp32", "fp8-current>bf16"])
def test_a_resumed_run_has_the_bits_and_decisions_of_one_that_was_not_interrupted(ladder, tmp_path):
    whole, model = Auto(ladder, **RESTLESS), Net()
    losses, changes = train(whole, model, range(12))
    first, before = Auto(ladder, **RESTLESS), Net()
    begun = train(first, before, range(5))
    torch.save({"model": before.state_dict(), "auto": first.state_dict()}, tmp_path / "checkpoint.pt")
    saved = torch.load(tmp_path / "checkpoint.pt")
    second, after = Auto(ladder, **RESTLESS), Net()
    after.load_state_dict(saved["model"])
    second.load_state_dict(saved["auto"])
    for state in (first.state_dict(), second.state_dict()):  # the layers that were not called since stand by name
        assert sorted(state.pop("layers"), key=lambda layer: layer["layer"]) == sorted(
            saved["auto"]["layers"], key=lambda layer: layer["layer"]
        )
        assert state == {"step": 5, "multiply_adds": saved["auto"]["multiply_adds"]}
    ended = train(second, after, range(5, 12))
    assert begun[0] + ended[0] == losses and begun[1] + ended[1] == changes
    assert any(f"after step {step + 1}," in line for step in range(5, 12) for line in changes)
    assert_same(bits_of(after), bits_of(model))
    assert second.state_dict() == whole.state_dict()


def test_steps_count_themselves():
    auto, model = Auto(**RESTLESS), Net()
    for step in (None, None, 7, None):
        with te.autocast(recipe=auto):
            model(batch(0)).float().sum().backward()
        auto.end_step(step)
    auto.abandon_step()
    assert auto.state_dict()["step"] == 10


def test_a_skipped_step_tells_nothing():
    auto, model = Auto("e4m3>fp16", **CALM), Net()
    scaler = amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-10)
    skipped = []
    for step in range(6):
        optimizer.zero_grad()
        with te.autocast(recipe=auto):
            loss = model(batch(step)).float().square().sum() * (2.0**100 if step == 2 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        report = scaler.last_report(optimizer)
        assert report is not None
        skipped.append(report.skipped)
        if skipped[-1]:
            auto.abandon_step()
        else:
            assert not auto.end_step()
    assert skipped == [step == 2 for step in range(6)], skipped
    assert auto.state_dict()["step"] == 6 and auto.shares() == {"e4m3": 1.0, "fp16": 0.0}
    assert {product["measured"] for layer in auto.state_dict()["layers"] for product in layer["products"]} == {3, 0}


def test_without_the_scaler_what_is_not_finite_promotes_at_once():
    auto, model = Auto(**CALM), Net()
    with te.autocast(recipe=auto):
        loss = model(batch(0)).float().square().sum() * math.inf
    loss.backward()
    assert {change.reason for change in auto.end_step()} == {"not finite"}


def test_another_run_of_the_activations_changes_neither_bits_nor_decisions():
    plain = Auto(**RESTLESS), Net()
    expected = train(*plain, range(8))
    for recompute in (te.checkpoint, lambda model, x: torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)):
        auto, model = Auto(**RESTLESS), Net()
        assert train(auto, model, range(8), call=lambda x, model=model, again=recompute: again(model, x)) == expected
        assert_same(bits_of(model), bits_of(plain[1]))
    with te.autocast(recipe=auto):
        x = batch(0).requires_grad_()
        output = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=True)
    with pytest.raises(RuntimeError, match="plimsoll.pytorch.checkpoint"):
        output.float().sum().backward()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))])
def test_copies_go_on_by_themselves(copied):
    auto, model = Auto(**RESTLESS), Net()
    train(auto, model, range(5))
    auto_again, model_again = copied((auto, model))
    assert auto_again == auto and auto_again.state_dict()["step"] == 5
    ours = train(auto, model, range(5, 10))
    assert ours[1]
    state = auto.state_dict()
    assert train(auto_again, model_again, range(5, 10)) == ours
    assert_same(bits_of(model_again), bits_of(model))
    assert auto_again.state_dict() == auto.state_dict() == state
    fresh = copied(Auto(every=3))
    assert fresh == Auto(every=3) and fresh != Auto()


def test_a_module_that_moves_keeps_its_formats():
    auto, model = Auto(**RESTLESS), Net()
    train(auto, model, range(4))
    before, work = auto.state_dict(), {name: product.multiply_adds for name, product in auto.products().items()}
    model.to(torch.bfloat16).float()
    for name, buffer in model.named_buffers():
        owner, _, last = name.rpartition(".")
        model.get_submodule(owner)._buffers[last] = buffer.clone()
    train(auto, model, range(4, 5))
    after = auto.state_dict()
    assert [layer["layer"] for layer in after["layers"]] == [layer["layer"] for layer in before["layers"]]
    assert {name: product.multiply_adds for name, product in auto.products().items()} == work


def test_layers_have_the_names_of_their_modules():
    def called(model, x=None):
        auto = Auto()
        with te.autocast(recipe=auto):
            model(batch(0) if x is None else x).float().sum().backward()
        auto.end_step()
        return {name.partition("/")[0] for name in auto.products()}

    layers = {"first", "mlp.fc1", "mlp.fc2", "last.out"}
    assert called(Net()) == layers
    with plimsoll.watch():
        assert called(Net()) == layers
    assert called(torch.nn.Sequential(te.Linear(32, 8, name="given"), te.Linear(8, 8, name="given"))) == {"given", "given#2"}
    assert called(te.Linear(32, 8)) == {"Linear"}
    assert called(Wrapper()) == layers
    assert not torch.nn.modules.module._global_forward_pre_hooks, "hooks end with the recipe"


def test_converted_models_open_the_scope_themselves():
    auto = Auto(**RESTLESS)
    torch.manual_seed(0)
    block = torch.nn.ModuleDict({"up": torch.nn.Linear(32, 64), "down": torch.nn.Linear(64, 32)})

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.block = block

        def forward(self, x):
            return self.block["down"](self.block["up"](x).relu())

    model = Model()
    plimsoll.convert(model, recipe=auto)
    changes = []
    for step in range(4):
        model(batch(step, outlier=True)).float().square().sum().backward()
        changes += auto.end_step()
    assert {name.partition("/")[0] for name in auto.products()} == {"block.up", "block.down"}
    assert {change.after for change in changes} >= {"bf16"}
    again = copy.deepcopy(model)
    assert torch.equal(again(batch(9)), model(batch(9)))


def test_hugging_face_models_train_and_decide():
    transformers = pytest.importorskip("transformers")
    auto = Auto(every=1, ballots=2)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48, num_key_value_heads=1
    )
    model = transformers.LlamaForCausalLM(config)
    plimsoll.convert(model, recipe=auto)
    with torch.no_grad():  # a channel of outliers, in the function as before
        for name, parameter in model.named_parameters():
            if name.startswith("model.layers.1.") and name.endswith(("up_proj.weight", "fc1_weight")):
                parameter[-1] *= 2.0**20
    tokens = torch.arange(24).reshape(2, 12) * 7 % 40
    changes = []
    for _ in range(3):
        model(input_ids=tokens, labels=tokens).loss.backward()
        model.zero_grad()
        changes += auto.end_step()
    layers = {name.partition("/")[0] for name in auto.products()}
    assert layers and all(layer.startswith(("model.layers.", "lm_head")) for layer in layers), layers
    assert changes and all(change.layer.startswith("model.layers.1.") for change in changes), changes


def test_models_of_the_library_train_and_decide(tmp_path):
    auto = Auto(**RESTLESS)
    model = AutoModelForCausalLM.from_pretrained(write(tmp_path), torch.float32, recipe=auto)
    tokens = torch.arange(24).reshape(2, 12) % 40
    changes = []
    for _ in range(4):
        model(input_ids=tokens, labels=tokens).loss.backward()
        changes += auto.end_step()
    assert {change.layer.split(".")[0] for change in changes} == {"blocks"}, {change.layer for change in changes}
    model.generate(tokens[:1, :4], max_new_tokens=2)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_modules_have_the_bits_and_decisions_of_eager_ones(backend):
    torch._dynamo.reset()
    plain = Auto(**RESTLESS), Net()
    expected = train(*plain, range(8))
    auto, model = Auto(**RESTLESS), Net()
    counters.clear()
    assert train(auto, model, range(8), call=torch.compile(model.forward, fullgraph=True, backend=backend))[0] == expected[0]
    assert_same(bits_of(model), bits_of(plain[1]))
    assert counters["stats"]["unique_graphs"] == 2, "of histories of one element, and then of their length"
    # Layers of a graph are called where nobody sees their modules.
    ours, theirs = ([layer["products"] for layer in each.state_dict()["layers"]] for each in (auto, plain[0]))
    assert ours == theirs


def test_a_graph_that_another_recipe_runs_follows_that_one():
    torch._dynamo.reset()
    model, other = Net(), DelayedScaling()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    auto = Auto(**CALM)
    for _ in range(2):
        for recipe in (auto, other):
            with te.autocast(recipe=recipe):
                x = batch(3)
                assert torch.equal(compiled(x), copy.deepcopy(model)(x))
    auto.end_step()
    names = {layer["layer"].partition("#")[0] for layer in auto.state_dict()["layers"]}
    assert names == {"first", "mlp.fc1", "mlp.fc2", "last.out"}


def test_an_audit_names_the_decision():
    auto, model = Auto(every=1, ballots=2, votes=1), Net()
    train(auto, model, range(1, 2))
    with plimsoll.audit(model) as audit:
        train(auto, model, range(2, 3))
    rows = {(row.layer, row.op): row for row in audit.rows}
    assert {row.decided for row in audit.rows if row.op.startswith("gemm")} == {"auto"}
    assert rows["first", "gemm output"].reason.startswith("bf16 after step 2: error of input")


def test_inner_scopes_of_other_recipes_and_without_one_are_their_own():
    auto, model = Auto(**CALM), te.Linear(32, 8)
    x = batch(0)
    with te.autocast(recipe=auto):
        with te.autocast(recipe=Float8CurrentScaling()):
            inner = model(x)
        with te.autocast(enabled=False):
            high = model(x)
    with te.autocast(recipe=Float8CurrentScaling()):
        assert torch.equal(inner, model(x))
    assert torch.equal(high, model(x))
    auto.end_step()
    assert not auto.products() and auto.shares() == {"e4m3": 0.0, "bf16": 0.0}
    with torch.no_grad(), te.autocast(recipe=auto):
        model(x)
    auto.end_step()
    assert not auto.products(), "without gradients nothing is measured"


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"ladder": "e4m3"}, ValueError, "expected a ladder of a format with codes and one without"),
    ({"ladder": "bf16>e4m3"}, ValueError, "expected a ladder"),
    ({"ladder": "e3m4>bf16"}, ValueError, "e3m4"),
    ({"ladder": 3}, ValueError, "expected ladder as a string, got 3"),
    ({"every": 0}, ValueError, "expected every >= 1, got 0"),
    ({"every": 1.5}, ValueError, "expected every as an integer, got 1.5"),
    ({"every": True}, ValueError, "expected every as an integer, got true"),
    ({"every": 10**30}, ValueError, "expected every as an integer"),
    ({"votes": 5}, ValueError, r"expected votes in \[1, 4\], the ballots, got 5"),
    ({"ballots": 65}, ValueError, r"expected ballots in \[1, 64\], got 65"),
    ({"quiet": 0}, ValueError, "expected quiet >= 1"),
    ({"window": -1}, ValueError, "expected window >= 0"),
    ({"last_share": 2}, ValueError, r"expected last_share in \[0, 1\]"),
    ({"demote_share": -1}, ValueError, r"expected demote_share in \[0, 1\]"),
    ({"mean_decay": 1}, ValueError, r"expected mean_decay in \[0, 1\)"),
    ({"flushed": 0}, ValueError, r"expected flushed in \(0, 1\]"),
    ({"bound": (1, 2)}, ValueError, r"expected bound \[input, weight, grad_output\]"),
    ({"bound": (1, 2, 0)}, ValueError, "expected bound > 0"),
    ({"bound": (1, 2, math.nan)}, ValueError, "expected numbers"),
    ({"flushed": torch.ones(1)}, TypeError, "expected numbers"),
]


@pytest.mark.parametrize("arguments, error, message", WRONG, ids=lambda value: str(value)[:40])
def test_wrong_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        Auto(**arguments)


def test_what_changes_after_the_first_scope_is_an_error():
    auto = Auto()
    auto.every = 0
    with pytest.raises(ValueError, match="expected every >= 1"):
        te.autocast(recipe=auto)
    auto.every = 4
    with te.autocast(recipe=auto):
        pass
    auto.every = 8
    with pytest.raises(ValueError, match="expected arguments that stay as they are"), te.autocast(recipe=auto):
        pass
    auto.fp8_format = Format.HYBRID
    with pytest.raises(ValueError, match="the ladder has the formats"):
        te.autocast(recipe=auto)


def test_wrong_steps_and_states_are_named_and_change_nothing():
    auto, model = Auto(**RESTLESS), Net()
    train(auto, model, range(3))
    before = auto.state_dict()
    for wrong, error in ((-1, ValueError), (2.0, TypeError), (True, TypeError), ("1", TypeError)):
        with pytest.raises(error, match="expected step"):
            auto.end_step(wrong)  # type: ignore[arg-type]
        with pytest.raises(error, match="expected steps"):
            auto.end_step(3, wrong)  # type: ignore[arg-type]
        with pytest.raises(error, match="expected step"):
            auto.abandon_step(wrong)  # type: ignore[arg-type]
    two = copy.deepcopy(before)
    two["layers"][1]["layer"] = two["layers"][0]["layer"]
    states: list[Any] = [None, {}, [], {**before, "step": -1}, {**before, "layers": 3}, {**before, "multiply_adds": [1.0]}]
    states += [{key: value for key, value in before.items() if key != "step"}, {**before, "step": torch.ones(1)}, two]
    for state in states:
        with pytest.raises(ValueError, match="recipe auto|Auto|precision"):
            auto.load_state_dict(state)
    assert auto.state_dict() == before


def test_weights_as_codes_are_refused():
    with pytest.raises(NotImplementedError, match="Auto"), te.quantized_model_init(recipe=Auto()):
        pass
    with te.quantized_model_init():
        model = te.Linear(32, 8)
    with pytest.raises(NotImplementedError, match="expected weights that are values"), te.autocast(recipe=Auto()):
        model(batch(0))


def test_scopes_without_an_end_of_a_step_warn(monkeypatch):
    monkeypatch.setattr(plimsoll.common.precision, "_MOST_SCOPES", 3)
    auto = Auto()
    auto.abandon_step()
    with pytest.warns(UserWarning, match="expected end_step"):
        for _ in range(3):
            with te.autocast(recipe=Auto()):  # a new one in each step
                pass
    for _ in range(5):
        with te.autocast(recipe=auto):
            pass
        auto.end_step()
    for _ in range(5):
        with torch.no_grad(), te.autocast(recipe=auto):
            pass


@ranks.case(2)
def ranks_take_the_same_decisions(group):
    rank = torch.distributed.get_rank(group)
    auto, model = Auto(every=1, ballots=2), Net()
    changes = []
    for step in range(4):
        with te.autocast(recipe=auto, amax_reduction_group=group):
            output = model(batch(10 * step + rank, outlier=rank == 1))
        output.float().square().mean().backward()
        changes += [str(change) for change in auto.end_step(step, 4)]
        ranks.assert_same_bits(group, dict(model.named_buffers()))
    assert any(change.startswith("first output: e4m3 -> bf16") for change in changes)
    mine, theirs = ranks.gathered(group, (changes, auto.state_dict()))
    assert mine == theirs
    alone, model = Auto(every=1, ballots=2), Net()
    for step in range(4):
        with te.autocast(recipe=alone, amax_reduction_group=torch.distributed.new_group([rank], use_local_synchronization=True)):
            output = model(batch(10 * step + rank, outlier=rank == 1))
        output.float().square().mean().backward()
        alone.end_step(step, 4)
    assert (alone.products()["first/output"].format == "bf16") == (rank == 1), "each by itself"


@ranks.case(2)
def layers_and_parameters_that_ranks_share_are_refused(group):
    from plimsoll.shard import FullyShardedDataParallel

    shared = te.Linear(32, 8, parallel_mode="column", tp_group=group)
    try:
        with te.autocast(recipe=Auto(), amax_reduction_group=group):
            shared(batch(0))
        raise AssertionError("expected NotImplementedError")
    except NotImplementedError as error:
        assert "tp_size of 2" in str(error)
    sharded = FullyShardedDataParallel(Net(), group)
    try:
        with te.autocast(recipe=Auto(), amax_reduction_group=group):
            sharded(batch(0))
        raise AssertionError("expected NotImplementedError")
    except NotImplementedError as error:
        assert "gather_codes=False" in str(error)
    auto, values = Auto(**RESTLESS), FullyShardedDataParallel(Net(), group, gather_codes=False)
    for step in range(3):
        with te.autocast(recipe=auto, amax_reduction_group=group):
            output = values(batch(step, outlier=True))
        output.float().square().mean().backward()
        auto.end_step()
    mine, theirs = ranks.gathered(group, auto.state_dict())
    assert mine == theirs
    assert auto.products()["first/output"].format == "bf16", auto.products().keys()


@pytest.mark.parametrize("name", ranks.names(__name__))
def test_on_ranks(outcomes, name):
    outcomes.check(name)
