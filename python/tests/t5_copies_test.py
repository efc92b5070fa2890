"""A copy of a T5 computes what its original computes, from tensors of its own."""

import copy
from typing import Any

import plimsoll
import pytest
import torch
from plimsoll.t5 import T5ForConditionalGeneration
from t5_models import KINDS, inputs, make, save

LENGTHS = [17, 9, 1, 30]


@pytest.fixture(scope="module", params=KINDS)
def folder(request, tmp_path_factory):
    return save(make(request.param), tmp_path_factory.mktemp("t5"))


def arguments(model):
    ids, mask = inputs(model, LENGTHS)
    return {"input_ids": ids, "attention_mask": mask, "labels": ids[:, :12]}


def leave_nan_behind(model):
    """Memory that a new table is likely to get, full of NaN."""
    for _ in range(4):
        torch.full_like(model.get_parameter("shared.weight"), torch.nan)


def gradients(model):
    model.zero_grad()
    model(**arguments(model)).loss.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def twin_of(model):
    leave_nan_behind(model)
    twin = copy.deepcopy(model)
    leave_nan_behind(model)
    return twin


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, "fp8", "nvfp4"], ids=str)
@torch.no_grad()
def test_a_copy_has_the_logits_and_ids_of_its_original(folder, dtype):
    ours: Any = T5ForConditionalGeneration.from_pretrained(folder, dtype)
    given = arguments(ours)
    want = ours(**given).logits
    for twin in (twin_of(ours), twin_of(twin_of(ours))):
        assert torch.equal(twin(**given).logits, want)
        assert torch.equal(twin(**given).logits, want)  # with packed weights
        ids = [model.generate(given["input_ids"], given["attention_mask"]) for model in (twin, ours)]
        assert torch.equal(*ids)
        assert {p.data_ptr() for p in twin.parameters() if p.numel()}.isdisjoint(p.data_ptr() for p in ours.parameters())


def test_a_copy_has_the_gradients_of_its_original(folder):
    ours = T5ForConditionalGeneration.from_pretrained(folder, torch.float32)
    want = gradients(ours)
    for name, gradient in gradients(twin_of(ours)).items():
        assert torch.equal(gradient, want[name]), name


@torch.no_grad()
def test_the_head_of_a_copy_follows_what_is_loaded_into_it(folder):
    ours = T5ForConditionalGeneration.from_pretrained(folder, torch.float32)
    given, twin = arguments(ours), twin_of(ours)
    want = ours(**given).logits
    for parameter in twin.parameters():
        parameter.zero_()
    assert not twin(**given).logits.any()
    assert torch.equal(ours(**given).logits, want)
    twin.load_state_dict(ours.state_dict())
    assert torch.equal(twin(**given).logits, want)
    halves = [model.half()(**given).logits for model in (copy.deepcopy(twin), ours)]
    assert torch.equal(*halves)


def test_a_copy_of_more_than_the_model_refers_to_the_copys_parameters(folder):
    ours = T5ForConditionalGeneration.from_pretrained(folder, torch.float32)
    ours.get_parameter("shared.weight").requires_grad_(False)
    held: dict[str, Any] = {"model": ours, "weights": list(ours.parameters())}
    twin: Any = copy.deepcopy(held)
    assert all(a is b for a, b in zip(twin["weights"], twin["model"].parameters(), strict=True))
    assert [p.requires_grad for p in twin["weights"]] == [p.requires_grad for p in held["weights"]]


@torch.no_grad()
def test_a_copy_is_watched_under_the_names_of_its_original(folder):
    ours = T5ForConditionalGeneration.from_pretrained(folder, torch.float16)

    def names(model):
        with plimsoll.watch() as seen:
            model(**arguments(ours))
        return {record["name"] for record in seen.records}

    want = names(ours)
    assert any(name.startswith("lm_head/") for name in want)
    assert names(copy.deepcopy(ours)) == want
