"""SmolLM2-135M-Instruct with its real weights: logits and greedy replies against transformers."""

import os
import pathlib

import decoder_models
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

FOLDER = pathlib.Path(os.environ.get("PLIMSOLL_CACHE", "~/.cache/plimsoll")).expanduser() / "models/SmolLM2-135M-Instruct"
REPLY = 12  # tokens
QUESTIONS = [
    "What is the capital of France?",
    "What is 2 + 3?",
    "Name three colours.",
    "Write a haiku about the sea.",
    "Who wrote Hamlet?",
    "What does a compiler do?",
    "Give me a recipe for bread.",
    "Why is the sky blue?",
    "Translate 'good morning' to Spanish.",
    "What is the largest planet?",
    "Explain gravity to a child.",
    "How many legs does a spider have?",
    "What is water made of?",
    "Write a sentence with the word 'ship'.",
    "What year did the Titanic sink?",
    "List the days of the week.",
    "What is a prime number?",
    "How do I boil an egg?",
    "What is the opposite of hot?",
    "Tell me a short story.",
]


@pytest.fixture(scope="module")
def smollm2():
    if not FOLDER.is_dir():
        pytest.skip(f"{FOLDER} is missing; tools/import_gguf makes it")
    theirs = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    return theirs, decoder_models.load(FOLDER, "fp32"), AutoTokenizer.from_pretrained(FOLDER)


def prompt(tokenizer, question):
    conversation = [{"role": "user", "content": question}]
    return tokenizer.apply_chat_template(conversation, add_generation_prompt=True, return_tensors="pt", return_dict=True)[
        "input_ids"
    ]


def test_logits_are_as_near_to_double_as_those_of_transformers(smollm2):
    theirs, ours, tokenizer = smollm2
    ids = prompt(tokenizer, " ".join(QUESTIONS[:6]))
    with torch.inference_mode():
        expected = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float64)(input_ids=ids).logits
        error, their_error = (
            (model.double() - expected).norm() for model in (ours.forward(ids, None), theirs(input_ids=ids).logits)
        )
    # Thirty layers round too often for the bound of two layers in decoder_test.py.
    assert error <= 4 * their_error


def test_greedy_replies_are_those_of_transformers(smollm2):
    theirs, ours, tokenizer = smollm2
    for question in QUESTIONS:
        ids = prompt(tokenizer, question)
        with torch.inference_mode():
            expected = theirs.generate(ids, max_new_tokens=REPLY, do_sample=False)[0, ids.shape[1] :].tolist()
        past = ours.start()
        logits = ours.extend(ids, None, past)
        reply: list[int] = []
        while len(reply) < REPLY:
            reply.append(logits[0, -1].argmax().item())
            if reply[-1] in ours.eos_token_ids():
                break
            logits = ours.extend(torch.tensor([reply[-1:]]), None, past)
        assert reply == expected, question
