"""Runs of plimsoll finetune on a small random Llama and made-up chats, and transformers' losses on the same tokens."""

import json
import math
import random
import signal
import subprocess

import launched_ranks
import tiny_llama
import tokenizer_texts
import torch
import traced
from chat_template_test import TEMPLATES
from program import PROGRAM, command_of, done, plimsoll
from rounding import approx
from transformers import AutoTokenizer

ROLES = ("system", "user", "assistant")
CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
QUICK = ["--threads=1", "--recipe=fp32", "--log-scales=0", "--samples=0"]
PLAN = ["--context=64", "--batch=2", "--steps=12", "--lr=3e-3", "--save-every=2", "--keep=2", *QUICK]
STEPS_OF_20 = ["--context=256", "--pack=no", "--batch=2", "--accumulate=2", "--steps=20", "--eval-share=0"]
STOPS = [signal.SIGKILL, signal.SIGINT]


def words_of(model, data, *more):
    return ["finetune", "--model", model, "--data", data, *more]


def done_by_two(*words):
    command = [*launched_ranks.words(2), PROGRAM, *map(str, words), "--deadline=120"]
    environment = launched_ranks.environment()
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr


def stop_at_step_4(words, out, how):
    """Stops a run that saves this step as soon as it has."""
    process = traced.stopped_when(command_of(*words), lambda: any(out.glob("step-*0004/manifest.json")))
    assert traced.strike(process, how)[2] == (130 if how == signal.SIGINT else -signal.SIGKILL)


def refusal(tmp_path, *words):
    """The line of a run that does not begin."""
    result = plimsoll(*words, "--out", tmp_path / "out")
    assert result.returncode in (1, 2) and result.stderr.count("\n") == 1, result
    assert not (tmp_path / "out").exists()
    assert "configuration" not in result.stdout, "the plan of a run that does not begin"
    return result.stderr


def logged(out):
    return [json.loads(line) for line in (out / "train.jsonl").read_text().splitlines()]


def losses(out):
    return [line["loss"] for line in logged(out) if "loss" in line]


def same_sums(expected):
    """Losses in FP32 but for the order in which some 2,000 tokens are added up, in each of a few steps."""
    return approx(expected, 8 * 2000)


def write_lines(path, examples):
    path.write_text("".join(json.dumps(example) + "\n" for example in examples), encoding="utf-8")
    return path


def save_model(folder):
    """Two layers with random weights, byte pairs, and the template of ChatML."""
    return tiny_llama.write(folder, "<|im_end|>", ("<|im_start|>", "<|im_end|>"), TEMPLATES["chatml"], initializer_range=0.1)


def chats(count):
    """Conversations of one to three replies, of words that stand in files of the standard library."""
    rng = random.Random(3)
    words = "\n".join(tokenizer_texts.standard_library()[:2]).split()
    for _ in range(count):
        turns = ["system"] * rng.randrange(2) + ["user", "assistant"] * rng.randrange(1, 4) + ["user"] * rng.randrange(2)
        yield {"messages": [{"role": role, "content": " ".join(rng.choices(words, k=rng.randrange(1, 9)))} for role in turns]}


def save_chats(folder):
    return write_lines(folder / "chats.jsonl", chats(90))


def tokens_and_counts(tokenizer, example):
    """Tokens of the whole conversation; one counts if its characters lie in a reply, its end among them."""
    text = tokenizer.apply_chat_template(example["messages"], tokenize=False)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    counts, place = [0] * len(encoded["input_ids"]), 0
    for message in example["messages"]:
        begin = text.index(f"<|im_start|>{message['role']}\n", place) + len(f"<|im_start|>{message['role']}\n")
        place = begin + len(message["content"]) + len("<|im_end|>")
        if message["role"] == "assistant":
            for i, (first, last) in enumerate(encoded["offset_mapping"]):
                counts[i] |= begin <= first and last <= place
    return encoded["input_ids"], counts


def rate(step, steps, peak, warmup):
    """Up to the peak, and along a cosine down to a tenth of it."""
    if step < warmup:
        return peak * (step + 1) / warmup
    share = (step - warmup) / (steps - warmup)
    return 0.1 * peak + 0.45 * peak * (1 + math.cos(math.pi * share))


def losses_of_transformers(model, steps, peak):
    """Losses of a model of transformers, whose parameters train that require gradients, each the mean over the tokens that count
    in a step. steps: lists of (tokens, counts)."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, betas=(0.9, 0.95), weight_decay=0)
    warmup, found = math.ceil(0.05 * len(steps)), []
    for number, examples in enumerate(steps):
        total = sum(sum(counts) for _, counts in examples)
        optimizer.zero_grad()
        loss = 0.0
        for tokens, counts in examples:
            ids = torch.tensor([tokens])
            labels = torch.where(torch.tensor([counts], dtype=torch.bool), ids, -100)
            logits = model(ids).logits
            part = torch.nn.functional.cross_entropy(logits[0, :-1], labels[0, 1:], ignore_index=-100, reduction="sum") / total
            part.backward()
            loss += part.item()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rate(number, len(steps), peak, warmup)
        optimizer.step()
        found.append(loss)
    return found


def shown(model, data, tmp_path, *more):
    done(*words_of(model, data, "--show-data", 1000, "--json", tmp_path / "shown.jsonl", *more))
    return [json.loads(line) for line in (tmp_path / "shown.jsonl").read_text().splitlines()]


def examples_of_20_steps(model, data, tmp_path):
    """Examples that the steps of a run with STEPS_OF_20 read, each step a list of (tokens, counts)."""
    order = [int(line["place"].rsplit(":", 1)[1]) - 1 for line in shown(model, data, tmp_path, *STEPS_OF_20)]
    tokenizer = AutoTokenizer.from_pretrained(model)
    examples = [tokens_and_counts(tokenizer, json.loads(line)) for line in data.read_text().splitlines()]
    return [[examples[i] for i in order[first : first + 4]] for first in range(0, 80, 4)]


def expect_losses(ours, theirs, learned=0.9):
    """Each of 20 steps, of which something was learned, within what docs/finetune.md promises."""
    assert theirs[-1] < learned * theirs[0]
    assert len(ours) == 20
    for got, expected in zip(ours, theirs, strict=True):
        assert abs(got / expected - 1) < 1e-4
