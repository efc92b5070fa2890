"""States and options of plimsoll.optim.AdamW that others write: groups, checkpoints, and what torch's AdamW makes of them."""

import copy
import io
import pickle

import pytest
import torch
from optim_adamw_test import STEPS, groups, parameters, train
from plimsoll.optim import AdamW, adamw
from torch import nn

REFUSED = ("amsgrad", "maximize", "capturable", "differentiable")


def trained(own, **kinds):
    optimizer = AdamW(groups(own), lr=1e-2, seed=7, **kinds)
    train(optimizer, own, range(2))
    return optimizer


def bits(optimizer):
    return [{name: value.clone() for name, value in state.items()} for state in optimizer.state.values()]


def same(one, other):
    return all(a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", REFUSED)
def test_options_that_are_not_made_are_refused_wherever_they_are_written(name):
    own = parameters()
    with pytest.raises(ValueError, match=f"expected {name}=False, got True"):
        AdamW([{"params": own, name: True}])
    optimizer = trained(own)
    with pytest.raises(ValueError, match=f"expected {name}=False, got True"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))], name: True})
    assert len(optimizer.param_groups) == 2
    saved, before = copy.deepcopy(optimizer.state_dict()), [parameter.detach().clone() for parameter in own]
    saved["param_groups"][1][name] = True
    with pytest.raises(ValueError, match=f"expected {name}=False, got True"):
        optimizer.load_state_dict(saved)
    train(optimizer, own, [2])
    before = [parameter.detach().clone() for parameter in own]
    optimizer.param_groups[1][name] = True
    with pytest.raises(ValueError, match=f"expected {name}=False, got True"):
        train(optimizer, own, [3])
    with pytest.raises(ValueError, match=f"expected {name}=False, got True"), optimizer.release_gradients():
        pass
    assert all(torch.equal(a, b) for a, b in zip(own, before, strict=True))


@pytest.mark.parametrize("name, number", [("lr", -1.0), ("lr", float("nan")), ("betas", (2.0, 0.9)), ("eps", -1.0), ("seed", -1)])
def test_numbers_out_of_range_that_are_written_into_a_group_stop_the_step(name, number):
    own = parameters()
    optimizer = trained(own)
    optimizer.param_groups[0][name] = number
    with pytest.raises(ValueError, match=name.removesuffix("s")):
        train(optimizer, own, [2])


def test_a_state_that_torch_made_with_maximize_is_refused():
    reference = torch.optim.AdamW(theirs := parameters(), maximize=True)
    train(reference, theirs, [0])
    with pytest.raises(ValueError, match="expected maximize=False"):
        AdamW(parameters()).load_state_dict(reference.state_dict())


def test_torch_stops_at_8_bit_moments_and_takes_values():
    for kind in ("8bit", "bf16"):
        own = parameters()
        saved = trained(own, optimizer_state=kind).state_dict()
        reference = torch.optim.AdamW(groups(own))
        reference.load_state_dict(copy.deepcopy(saved))
        if kind == "8bit":
            with pytest.raises(KeyError, match="exp_avg"):
                train(reference, own, [2])
        else:
            train(reference, own, [2])


@pytest.mark.parametrize("through", ["state_dict", "torch.save", "pickle", "deepcopy", "earlier names"])
def test_8_bit_moments_come_back_with_the_same_bits(through):
    whole = parameters(torch.bfloat16)
    optimizer = trained(whole, optimizer_state="8bit", masters="split")
    own = [nn.Parameter(parameter.detach().clone()) for parameter in whole]
    again = AdamW(groups(own), optimizer_state="8bit", masters="split", seed=7)
    saved = optimizer.state_dict()
    state = next(iter(saved["state"].values()))
    assert {"exp_avg_codes", "exp_avg_sq_codes"} <= state.keys() and not {"exp_avg", "exp_avg_sq"} & state.keys()
    if through in ("pickle", "deepcopy"):
        copied = (optimizer, whole)
        again, own = pickle.loads(pickle.dumps(copied)) if through == "pickle" else copy.deepcopy(copied)
    elif through == "torch.save":
        file = io.BytesIO()
        torch.save(saved, file)
        file.seek(0)
        again.load_state_dict(torch.load(file))
    else:
        if through == "earlier names":
            states = saved["state"].items()
            saved["state"] = {key: {name.replace("_codes", ""): x for name, x in state.items()} for key, state in states}
        again.load_state_dict(saved)
    assert same(bits(optimizer), bits(again))
    train(optimizer, whole, range(2, STEPS))
    train(again, own, range(2, STEPS))
    assert same(bits(optimizer), bits(again)) and all(torch.equal(a, b) for a, b in zip(whole, own, strict=True))


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda state: state.pop("exp_avg_sq_codes"), "parameter 0, of shape .33, 17., to have exp_avg_sq, got step, exp_avg"),
        (lambda state: state.pop("step"), "to have step, got"),
        (lambda state: state.update(exp_avg_codes=torch.zeros(3, dtype=torch.int8)), "to have exp_avg of that shape, got .3."),
        (lambda state: state.update(correction=torch.zeros(3, dtype=torch.int8)), "to have correction of that shape, got .3."),
        (lambda state: state.pop("exp_avg_scale"), "to have exp_avg_scale of shape .18. beside 8-bit exp_avg_codes, got none"),
        (lambda state: state.update(exp_avg_sq_scale=torch.zeros(2)), "to have exp_avg_sq_scale of shape .18. .* shape .2."),
    ],
)
def test_a_damaged_state_is_refused_by_name_and_leaves_the_optimizer(damage, message):
    own = parameters(torch.bfloat16)
    optimizer = trained(own, optimizer_state="8bit", masters="split")
    saved, before = copy.deepcopy(optimizer.state_dict()), bits(optimizer)
    damage(saved["state"][0])
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(saved)
    assert same(bits(optimizer), before)


@pytest.mark.parametrize("kinds", [{}, {"optimizer_state": "bf16"}, {"optimizer_state": "8bit"}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_loaded_state_is_where_the_parameters_are(dtype, kinds, monkeypatch):
    """On meta tensors, which hold no values and stand for a card."""
    saved = trained(parameters(dtype), **kinds).state_dict()
    monkeypatch.setattr(adamw, "_check_parameter", lambda *_: None)
    there = [nn.Parameter(parameter.to("meta")) for parameter in parameters(dtype)]
    optimizer = AdamW(groups(there))
    optimizer.load_state_dict(saved)
    for parameter in there:
        state = optimizer.state[parameter]
        assert state.keys() == {"step", "exp_avg", "exp_avg_sq"} | ({"master"} if dtype == torch.bfloat16 else set())
        assert {name for name, value in state.items() if value.device != parameter.device} == {"step"}
        assert state["exp_avg"].dtype == torch.float32 and state["exp_avg"].shape == parameter.shape


def test_writes_that_torch_counts_reach_the_master_and_those_through_data_do_not():
    weight = nn.Parameter(torch.ones(8, dtype=torch.bfloat16))
    optimizer = AdamW([weight], lr=1e-3, weight_decay=0.0)
    module = nn.Module()
    module.weight = weight
    train(optimizer, [weight], [0])
    for number, write in enumerate((weight.detach().fill_, lambda x: module.load_state_dict({"weight": torch.full((8,), x)})), 2):
        write(float(number))
        train(optimizer, [weight], [number])
        assert torch.all((optimizer.state[weight]["master"] - number).abs() < 5e-3)
    weight.data.fill_(9.0)  # as the page says
    train(optimizer, [weight], [4])
    assert torch.all((optimizer.state[weight]["master"] - 3).abs() < 1e-2)


def test_a_parameter_of_fsdp2_is_refused_with_what_to_use():
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    try:
        mesh = DeviceMesh("cpu", [0])
        weight = nn.Parameter(DTensor.from_local(torch.ones(4, 4), mesh, run_check=False))
        with pytest.raises(TypeError, match="parameter 0 of group 0 to be a plain tensor, got a DTensor, as torch's fully_shard"):
            AdamW([weight])
    finally:
        torch.distributed.destroy_process_group()
