"""Fine-tunes a model on 1,000 chats for three epochs with LoRA, whole, by `plimsoll finetune` and by transformers with PEFT: minutes, and the
losses of chats that neither has seen.

    .venv/bin/python bench/finetune_chats.py --model DIR [--chats 1000] [--epochs 3] [--ours bf16,fp8] [--theirs bf16] [--json FILE]

Each chat asks for three functions of Python's standard library (examples/finetune/python_docs.py); those of the held-out chats are in no other.
Ours: rows of 512 tokens, several chats in each, four rows a step. Theirs: nine chats a step, as many as four rows hold in the mean, padded to
the longest. Adapters, rates, schedule, warmup, clipping and optimizer are the same; what differs are the steps' chats and A's first values.
All losses are transformers' in FP32, of each adapter's files, over the tokens of the replies.
"""

import argparse
import importlib
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import json_file
import peft
import torch
import transformers
from contestant import TUNED

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples" / "finetune"))
HELD_OUT, TURNS = 60, 3  # chats, and the questions of each
CONTEXT, BATCH = 512, 4
THEIR_BATCH = 9  # chats; 1,000 of them fill 110 times four rows of ours
RANK, ALPHA, DROPOUT, RATE, WARMUP, LAST = 16, 32, 0.05, 2e-4, 0.05, 0.1  # the defaults of plimsoll finetune
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def write_chats(count, directory):
    """FILE.jsonl of `count` chats, and one of HELD_OUT chats about other functions."""
    turns = [chat["messages"] for chat in importlib.import_module("python_docs").chats(1 << 20, 1)]
    rng, files = random.Random(2), []
    for name, pool, number in (("held_out", turns[: TURNS * HELD_OUT], HELD_OUT), ("train", turns[TURNS * HELD_OUT :], count)):
        chats = [[turn for pair in rng.sample(pool, TURNS) for turn in pair] for _ in range(number)]
        files.append(directory / f"{name}.jsonl")
        files[-1].write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats), encoding="utf-8")
    return files[1], files[0]


def tokens_of(tokenizer, file):
    """Lists (ids, labels), one a chat: -100 but for the replies and the token that ends each."""
    examples = []
    for line in file.read_text(encoding="utf-8").splitlines():
        messages = json.loads(line)["messages"]

        def ids_of(count, prompt, messages=messages):
            return tokenizer.apply_chat_template(messages[:count], add_generation_prompt=prompt, return_dict=False)

        ids = ids_of(len(messages), False)
        labels = [-100] * len(ids)
        for reply in range(1, len(messages), 2):
            begin, behind = len(ids_of(reply, True)), len(ids_of(reply + 1, False))
            assert ids[:behind] == ids_of(reply + 1, False) and ids[:begin] == ids_of(reply, True)
            end = begin + ids[begin:behind].index(tokenizer.eos_token_id) + 1
            labels[begin:end] = ids[begin:end]
        examples.append((ids, labels))
    return examples


def padded(examples):
    longest = max(len(ids) for ids, _ in examples)
    ids = torch.tensor([ids + [0] * (longest - len(ids)) for ids, _ in examples])
    labels = torch.tensor([labels + [-100] * (longest - len(labels)) for _, labels in examples])
    mask = torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids, _ in examples])
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def held_out_loss(model_directory, adapter, examples):
    """Mean over the tokens that count; without an adapter, the model's own."""
    model = transformers.AutoModelForCausalLM.from_pretrained(model_directory, dtype=torch.float32)
    if adapter is not None:
        model = peft.PeftModel.from_pretrained(model, adapter)
    model.eval()
    total, count = 0.0, 0
    with torch.no_grad():
        for example in examples:
            number = sum(label >= 0 for label in example[1])
            total += model(**padded([example])).loss.item() * number
            count += number
    return total / count


def train_ours(args, recipe, train, held_out, adapter):
    command = [Path(args.build) / "bin" / "plimsoll", "finetune", f"--model={args.model}", f"--data={train}", f"--out={adapter}"]
    command += [f"--eval-data={held_out}", f"--recipe={recipe}", f"--epochs={args.epochs}", f"--threads={args.threads}"]
    command += [f"--context={CONTEXT}", f"--batch={BATCH}", "--samples=0"]
    subprocess.run([str(word) for word in command], check=True, stdout=sys.stderr)


def rate_at(step, steps):
    warm = max(1, round(WARMUP * steps))
    if step < warm:
        return RATE * (step + 1) / warm
    return RATE * (LAST + (1 - LAST) * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm))))


def train_theirs(args, dtype, examples, adapter):
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=DTYPES[dtype], attn_implementation="sdpa")
    config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=DROPOUT, target_modules="all-linear", task_type="CAUSAL_LM")
    model = peft.get_peft_model(model, config)
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE, betas=(0.9, 0.95), weight_decay=0, fused=True)
    steps = math.ceil(args.epochs * len(examples) / THEIR_BATCH)
    order: list[int] = []
    for step in range(steps):
        while len(order) < THEIR_BATCH:
            order += torch.randperm(len(examples)).tolist()
        batch, order = order[:THEIR_BATCH], order[THEIR_BATCH:]
        optimizer.param_groups[0]["lr"] = rate_at(step, steps)
        loss = model(**padded([examples[index] for index in batch]), use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            print(f"theirs, {dtype}: step {step} of {steps}, loss {loss.item():.4f}", file=sys.stderr, flush=True)
    model.save_pretrained(adapter)


def one_of_theirs(args, dtype, train, adapter):
    """A process of its own: glibc reads what is tuned as it starts."""
    command = [sys.executable, __file__, f"--model={args.model}", f"--epochs={args.epochs}", f"--threads={args.threads}"]
    command += [f"--train-theirs={dtype}", f"--data={train}", f"--out={adapter}"]
    subprocess.run(["env", *(f"{name}={value}" for name, value in TUNED.items()), *command], check=True)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--model", required=True, help="a Hugging Face directory")
    parser.add_argument("--chats", type=int, default=1000)
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ours", default="bf16,fp8", help="recipes")
    parser.add_argument("--theirs", default="bf16", help="dtypes of their weights, bf16 or fp32")
    parser.add_argument("--build", default=str(ROOT / "build"))
    parser.add_argument("--json", help="write the table to this file")
    parser.add_argument("--train-theirs", choices=DTYPES, help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    args = parse_arguments()
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    if args.train_theirs:
        return train_theirs(args, args.train_theirs, tokens_of(tokenizer, args.data), args.out)
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        train, held_out = write_chats(args.chats, directory)
        examples = tokens_of(tokenizer, held_out)
        tokens = sum(len(ids) for ids, _ in tokens_of(tokenizer, train))
        print(f"{args.chats} chats of {tokens / args.chats:.0f} tokens, {args.epochs:g} epochs; {HELD_OUT} held out")
        rows = [{"name": "before", "minutes": 0.0, "loss": held_out_loss(args.model, None, examples)}]
        works = [("ours", recipe) for recipe in args.ours.split(",") if recipe]
        works += [("theirs", dtype) for dtype in args.theirs.split(",") if dtype]
        for whose, dtype in works:
            adapter = directory / f"{whose}-{dtype}"
            begin = time.monotonic()
            if whose == "ours":
                train_ours(args, dtype, train, held_out, adapter)
            else:
                one_of_theirs(args, dtype, train, adapter)
            minutes = (time.monotonic() - begin) / 60
            rows.append({"name": f"{whose}-{dtype}", "minutes": minutes, "loss": held_out_loss(args.model, adapter, examples)})
            print(f"{rows[-1]['name']}: {minutes:.1f} min, held-out loss {rows[-1]['loss']:.4f}", flush=True)
    print("\n| | minutes | held-out loss |\n|---|---|---|")
    for row in rows:
        print(f"| {row['name']} | {row['minutes']:.1f} | {row['loss']:.4f} |")
    if args.json:
        json_file.write(args.json, {"arguments": {**vars(args), "data": None, "out": None}, "tokens": tokens, "rows": rows})


if __name__ == "__main__":
    main()
