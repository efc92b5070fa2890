"""SmolLM2-135M-Instruct with its real weights: logits and greedy replies against transformers."""

import math
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


# Relative error of one rounding to FP32, root mean square: 2^-24 sqrt(E[1 / m^2] / 3) of a mantissa m in [1, 2), log-uniform, whose
# E[1 / m^2] is 3 / (8 ln 2).
ROUNDING = 2.0**-24 * math.sqrt(1 / (8 * math.log(2)))


def product_error(terms):
    """Relative error, root mean square, of a sum of random terms one after the other: the j-th partial sum has sqrt(j / terms) of the
    whole, and each is rounded. 4.3e-7 for 576 terms and 7.0e-7 for 1536, as measured."""
    return ROUNDING * math.sqrt(terms / 2)


def measured_product_error(linear, terms):
    torch.manual_seed(0)
    x, weight = torch.randn(200, terms), torch.randn(700, terms)
    exact = x.double() @ weight.double().T
    return ((linear(x, weight).double() - exact).norm() / exact.norm()).item()


def test_a_product_errs_as_a_sum_of_terms_one_after_the_other():
    for terms in (576, 1536):
        # An instruction set that sums in another order errs less.
        assert 0 < measured_product_error(torch.ops.plimsoll.linear, terms) <= 1.05 * product_error(terms)


def test_logits_err_by_no_more_than_products_do_against_those_of_transformers(smollm2):
    theirs, ours, tokenizer = smollm2
    ids = prompt(tokenizer, " ".join(QUESTIONS[:6]))
    with torch.inference_mode():
        expected = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float64)(input_ids=ids).logits
        error, their_error = (
            (model.double() - expected).norm() for model in (ours.forward(ids, None), theirs(input_ids=ids).logits)
        )
    # An error of a product reaches the logits through the same layers here and there, so that the logits' differ by no more than
    # the products' do. Norms, attention and SiLU add less than a tenth.
    sizes = (theirs.config.hidden_size, theirs.config.intermediate_size)
    assert error <= 1.1 * their_error * max(
        product_error(size) / measured_product_error(torch.nn.functional.linear, size) for size in sizes
    )


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
