"""The recipe Auto: decisions and bits of the library's controller, resumed runs, skipped steps, copies."""

import copy
import json
import math
import pickle
import subprocess

import gpt_test
import plimsoll.pytorch as te
import pytest
import torch
from auto_training import BUILD, CALM, PRODUCTS, RESTLESS, Net, assert_same, batch, bits_of, train
from plimsoll import amp
from plimsoll.common.recipe import Auto, DelayedScaling, Format


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


@pytest.mark.parametrize("ladder", ["e4m3>bf16", "mxfp8>fp32", "fp8-current>bf16", "e2m1>e4m3>bf16"])
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
        assert state == {"formats": ladder.split(">"), "step": 5, "multiply_adds": saved["auto"]["multiply_adds"]}
    ended = train(second, after, range(5, 12))
    assert begun[0] + ended[0] == losses and begun[1] + ended[1] == changes
    assert any(f"after step {step + 1}," in line for step in range(5, 12) for line in changes)
    assert_same(bits_of(after), bits_of(model))
    assert second.state_dict() == whole.state_dict()


def evaluated(model, auto):
    with torch.no_grad(), te.autocast(recipe=auto):
        return model(batch(1, outlier=True))


def test_a_copy_that_is_evaluated_has_the_formats_of_the_model_and_adds_no_layer():
    auto, model = Auto(**RESTLESS), Net()
    train(auto, model, range(2))
    layers = auto.state_dict()["layers"]
    assert torch.equal(evaluated(copy.deepcopy(model), auto), evaluated(model, auto))
    assert auto.state_dict()["layers"] == layers


def test_a_copy_that_is_evaluated_first_takes_no_formats_from_a_model_that_is_resumed():
    first, model = Auto(**RESTLESS), Net()
    train(first, model, range(2))
    again = Auto(**RESTLESS)
    again.load_state_dict(first.state_dict())
    assert torch.equal(evaluated(copy.deepcopy(model), again), evaluated(model, first))
    assert train(again, copy.deepcopy(model), range(2, 6)) == train(first, model, range(2, 6))
    assert again.state_dict() == first.state_dict()


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
    assert {product["own"]["measured"] for layer in auto.state_dict()["layers"] for product in layer["products"]} == {3, 0}


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
        assert auto.products() == plain[0].products() and auto.shares() == plain[0].shares()
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
