"""Fields of config.json and generation_config.json that generate() of AutoModelForCausalLM's models takes."""

import copy
import json
from pathlib import Path

import decoder_models
import pytest
import torch
import transformers
from plimsoll.models import AutoModelForCausalLM


@pytest.fixture
def folder(tmp_path):
    decoder_models.make("llama").save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    return tmp_path


def changed(folder, name, **members):
    file = Path(folder) / name
    config = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps(config | members))
    return AutoModelForCausalLM.from_pretrained(folder)


def drawn(model, **options):
    torch.manual_seed(3)
    return model.generate(decoder_models.tokens(2, 7), max_new_tokens=12, **options)


def test_a_model_whose_ends_are_outside_of_its_vocabulary_writes(tmp_path):
    config = transformers.GPT2Config(vocab_size=300, n_embd=24, n_layer=1, n_head=2, n_positions=64)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    assert config.eos_token_id == 50256
    written = AutoModelForCausalLM.from_pretrained(tmp_path).generate(torch.tensor([[5, 6]]), max_new_tokens=9)
    assert written.shape == (1, 11)


def test_ids_that_stand_for_none_are_none(folder):
    model, ids = changed(folder, "config.json", pad_token_id=-1, eos_token_id=[777, 2]), decoder_models.tokens(2, 7)
    whole = model.generate(ids, max_new_tokens=9, eos_token_id=[])
    assert torch.equal(model.generate(ids, max_new_tokens=9), whole)
    end = whole[1, 8].item()
    assert end not in whole[1, 9:].tolist() and end not in whole[1, 7:8].tolist()
    model = changed(folder, "config.json", eos_token_id=[777, end])
    written = model.generate(ids, max_new_tokens=9)
    assert written[1, 8:].tolist() == [end] * 8, "padding is the first end of the vocabulary"
    model = changed(folder, "generation_config.json", eos_token_id=end, pad_token_id=-1, max_new_tokens=9)
    assert torch.equal(model.generate(ids), written)
    assert set(changed(folder, "generation_config.json", pad_token_id=7).generate(ids)[1, 9:].tolist()) == {7}
    given = model.generate(ids, max_new_tokens=9, eos_token_id=[end, 999], pad_token_id=0)
    assert given[1, 8:].tolist() == [end, *[0] * 7]


def test_ids_that_the_config_is_told_later_count(folder):
    model, ids = AutoModelForCausalLM.from_pretrained(folder), decoder_models.tokens(2, 7)
    whole = model.generate(ids, max_new_tokens=9, eos_token_id=[])
    end = whole[1, 8].item()
    assert end not in whole[1, 7:8].tolist()
    model.config.eos_token_id, model.config.pad_token_id = end, 5
    for each in (model, copy.deepcopy(model)):
        written = each.generate(ids, max_new_tokens=9)
        assert written[1, 8:].tolist() == [end, *[5] * 7]
        assert each.generate(ids, max_new_tokens=9, pad_token_id=6)[1, 9:].tolist() == [6] * 7


def test_min_p_is_the_files_unless_it_is_given(folder):
    draws = {"do_sample": True, "temperature": 1.5, "top_k": 0}
    greedy = drawn(AutoModelForCausalLM.from_pretrained(folder))
    model = changed(folder, "generation_config.json", **draws, min_p=1.0)
    assert torch.equal(drawn(model), greedy), "of the likeliest token alone"
    assert not torch.equal(drawn(model, min_p=0.0), greedy)
    plain = changed(folder, "generation_config.json", min_p=None)
    assert torch.equal(drawn(plain), drawn(model, min_p=0.0)) and torch.equal(drawn(plain, min_p=1.0), greedy)
    with pytest.raises(ValueError, match="min_p in \\[0, 1\\]"):
        drawn(plain, min_p=2.0)


def test_draws_that_are_asked_for_are_as_the_file_says(folder):
    plain = AutoModelForCausalLM.from_pretrained(folder)
    asked = drawn(plain, do_sample=True, temperature=1.7, top_k=9, top_p=0.9)
    model = changed(folder, "generation_config.json", temperature=1.7, top_k=9, top_p=0.9, max_new_tokens=4)
    assert torch.equal(drawn(model, do_sample=True), asked) and torch.equal(drawn(model), drawn(plain))
    assert model.generate(decoder_models.tokens(1, 7)).shape == (1, 11)
    with pytest.raises(RuntimeError, match="generation_config.json: top_k: expected an integer, got 1.5"):
        changed(folder, "generation_config.json", top_k=1.5)


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2", "qwen3", "gemma3_text", "gpt2", "gpt_neox"])
def test_members_that_are_absent_are_as_transformers_has_them(name, tmp_path):
    decoder_models.make(name).save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    ids = ("bos_token_id", "eos_token_id", "pad_token_id")
    config = json.loads((tmp_path / "config.json").read_text())
    windows = {"sliding_window", "layer_types", "max_window_layers", *ids}
    absent = {key: value for key, value in config.items() if key not in windows}
    for members in (absent, {**absent, "sliding_window": None, "eos_token_id": None} if name != "gemma3_text" else absent):
        (tmp_path / "config.json").write_text(json.dumps(members))
        theirs = transformers.AutoConfig.from_pretrained(tmp_path)
        ours = json.loads(decoder_models.load(tmp_path).config())
        for member in ids:
            value = getattr(theirs, member)
            assert ours[member] == (value if value is None or value < theirs.vocab_size else None), member
        assert ours.get("sliding_window") == getattr(theirs, "sliding_window", None)
        if "layer_types" in ours:
            assert ours["layer_types"] == theirs.layer_types
