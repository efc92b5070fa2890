"""docs/t5.md's tables of transformers' names are what the two libraries have."""

import inspect
import re
from pathlib import Path
from typing import Any

import plimsoll.t5
import pytest
import torch
import transformers
from plimsoll.t5 import T5EncoderModel, T5ForConditionalGeneration
from t5_models import make, save
from transformers.models.t5 import modeling_t5
from transformers.utils import generic

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "t5.md"
NO_NAMES = {"self", "kwargs"}
# Keywords of every model's forward that a T5 in transformers computes by.
OF_ALL_MODELS = {"output_hidden_states", "output_attentions", "return_dict"}


def tables():
    """{the first cell of a table's heading: {name: the cell behind it}}"""
    found: dict[str, dict[str, str]] = {}
    section = PAGE.read_text().split("## Names of transformers\n")[1].split("\n## ")[0]
    for table in re.findall(r"(?:^\|.*\|\n)+", section, re.MULTILINE):
        heading, _, *rows = ([cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines())
        names = found[heading[0].replace("`", "")] = {}
        for row in rows:
            for name in re.findall(r"`(\w+)`", row[0]):
                assert name not in names, f"{name} stands twice"
                names[name] = row[1]
    return found


def parameters(function):
    return set(inspect.signature(function).parameters) - NO_NAMES


def theirs_of_generate():
    settings = {name for name in vars(transformers.GenerationConfig()) if not name.startswith("_")} - {"transformers_version"}
    return settings | parameters(transformers.T5ForConditionalGeneration.generate) | {"input_ids", "attention_mask"}


def test_the_tables_name_what_transformers_has():
    found = tables()
    assert set(found["class"]) == {name for name in modeling_t5.__all__}
    assert generic.TransformersKwargs.__annotations__.keys() & OF_ALL_MODELS
    assert set(found["argument of forward"]) == parameters(transformers.T5ForConditionalGeneration.forward) | OF_ALL_MODELS
    assert set(found["argument of generate"]) == theirs_of_generate()


def test_the_tables_say_what_is_here():
    found = tables()
    for name, here in found["class"].items():
        assert hasattr(plimsoll.t5, name) is (here == "yes"), name
    for method in ("forward", "generate"):
        ours = parameters(getattr(T5ForConditionalGeneration, method))
        rows = found[f"argument of {method}"]
        assert set(rows.values()) == {"yes", "refused"}
        assert {name for name, here in rows.items() if here == "yes"} == ours


def test_positions_are_those_of_transformers():
    for ours, theirs in (
        (T5ForConditionalGeneration, transformers.T5ForConditionalGeneration),
        (T5EncoderModel, transformers.T5EncoderModel),
    ):
        positional = [
            name
            for name, parameter in inspect.signature(ours.forward).parameters.items()
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        ]
        expected = [name for name in inspect.signature(theirs.forward).parameters if name != "kwargs"]
        assert positional == expected
    assert parameters(T5EncoderModel.forward) == parameters(transformers.T5EncoderModel.forward) | OF_ALL_MODELS - {
        "output_attentions"
    }


def test_outputs_have_no_members_that_transformers_has_not():
    for name in ("BaseModelOutput", "Seq2SeqLMOutput"):
        theirs = getattr(transformers.modeling_outputs, name)
        assert getattr(plimsoll.t5, name).__annotations__.keys() <= theirs.__annotations__.keys()


def test_what_is_refused_is_an_error(tmp_path):
    ours = T5ForConditionalGeneration.from_pretrained(save(make("v1.1"), tmp_path))
    ids = torch.tensor([[5, 1]])
    calls: dict[str, Any] = {"forward": ours, "generate": ours.generate}
    for method, call in calls.items():
        for name, here in tables()[f"argument of {method}"].items():
            if here == "refused":
                with pytest.raises(TypeError, match=name):
                    call(ids, **{name: None})
