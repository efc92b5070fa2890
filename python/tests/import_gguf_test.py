"""The directory that tools/import_gguf makes is a model that transformers loads, with its tokenizer and chat template."""

import os
import pathlib

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

MODELS = pathlib.Path(os.environ.get("PLIMSOLL_CACHE", "~/.cache/plimsoll")).expanduser() / "models"


@pytest.fixture(scope="module")
def smollm2():
    folder = MODELS / "SmolLM2-135M-Instruct"
    if not folder.is_dir():
        pytest.skip(f"{folder} is missing; tools/import_gguf makes it")
    return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize(
    ("question", "answer"),
    [("What is the capital of France?", "The capital of France is Paris."), ("What is 2 + 3?", "2 + 3 = 5")],
)
def test_the_imported_model_answers(smollm2, question, answer):
    model, tokenizer = smollm2
    conversation = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(conversation, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.inference_mode():
        written = model.generate(**prompt, max_new_tokens=20, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert written[-1] == model.generation_config.eos_token_id
    assert tokenizer.decode(written, skip_special_tokens=True) == answer


def test_digits_are_tokens_of_their_own(smollm2):
    assert smollm2[1].tokenize("in 1984") == ["in", "\u0120", "1", "9", "8", "4"]
