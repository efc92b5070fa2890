"""The recipe Auto over models: names of layers, converted and loaded models, torch.compile, audits."""

import copy

import plimsoll
import plimsoll.common.precision
import plimsoll.pytorch as te
import pytest
import torch
from auto_training import CALM, RESTLESS, Net, Wrapper, assert_same, batch, bits_of, train
from plimsoll.common.recipe import Auto, DelayedScaling
from plimsoll.models import AutoModelForCausalLM
from tiny_llama import write
from torch._dynamo.utils import counters


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
