"""Does fine-tuning in BF16 and FP8 end where FP32 does? Trains a small Llama with random weights on bytes of text, all weights or adapters.

    .venv/bin/python bench/finetune_quality.py --data DIR... [--seeds 1,2,3] [--steps 200]

Weights are held in FP32; bf16 and fp8 are what the products run in. Prints for each work and recipe the difference of the held-out loss from
fp32's, for each seed and its mean, in percent; exit code 1 if a mean is further off than 0.5, to either side.
"""

import argparse
import contextlib
import os
import random
import statistics
import sys
import tempfile
from pathlib import Path

import generate_checkpoint
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))
os.environ.setdefault("PLIMSOLL_BUILD", str(ROOT / "build"))
from plimsoll.common.recipe import DelayedScaling  # noqa: E402
from plimsoll.models import AutoModelForCausalLM, LoraConfig, PeftModel, get_peft_model  # noqa: E402
from plimsoll.models.causal_lm import CausalLM  # noqa: E402
from plimsoll.optim import AdamW  # noqa: E402

LIMIT = 0.5  # percent of the loss in fp32
SHAPE = {
    "vocab_size": 259,  # bytes behind three special tokens
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
FIRST_BYTE, CONTEXT, BATCH, HELD_OUT = 3, 128, 8, 64
WORKS = {"full": 1e-3, "lora": 3e-3}  # learning rates
RECIPES = ("fp32", "bf16", "fp8")


def rows_of_bytes(data):
    """int64 [rows, CONTEXT], in an order that depends on nothing."""
    files = sorted(file for directory in data for file in Path(directory).rglob("*.py"))
    random.Random(0).shuffle(files)
    text = b"".join(file.read_bytes() for file in files[:400])
    count = len(text) // CONTEXT
    return torch.frombuffer(bytearray(text[: count * CONTEXT]), dtype=torch.uint8).long().view(count, CONTEXT) + FIRST_BYTE


def scope(recipe):
    return contextlib.nullcontext() if recipe == "fp32" else torch.autocast("cpu", torch.bfloat16)


def held_out_loss(directory, rows, work, recipe, seed, steps):
    torch.manual_seed(seed)
    model: CausalLM | PeftModel = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, recipe=DelayedScaling() if recipe == "fp8" else None
    )
    if isinstance(model, CausalLM) and work == "lora":
        model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = AdamW(trained, lr=WORKS[work], betas=(0.9, 0.95))
    held, order = rows[:HELD_OUT], HELD_OUT + torch.randperm(len(rows) - HELD_OUT)
    model.train()
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = WORKS[work] * min(1, (step + 1) / 20) * (1 - 0.9 * step / steps)
        batch = rows[order[step * BATCH : (step + 1) * BATCH]]
        with scope(recipe):
            loss = model(batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad(), scope(recipe):
        return statistics.mean(model(batch, labels=batch).loss.item() for batch in held.split(BATCH))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", required=True, help="directories with Python sources")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows, seeds, good = rows_of_bytes(args.data), args.seeds.split(","), True
    with tempfile.TemporaryDirectory() as directory:
        generate_checkpoint.write_random(directory, **SHAPE)
        print(f"{'':14}" + "".join(f"{'seed ' + seed:>10}" for seed in seeds) + f"{'mean':>10}")
        for work in WORKS:
            losses = {}
            for recipe in RECIPES:
                given = [held_out_loss(directory, rows, work, recipe, int(seed), args.steps) for seed in seeds]
                losses[recipe] = given
                if recipe == "fp32":
                    print(f"{work + ' fp32':14}" + "".join(f"{loss:10.4f}" for loss in given), flush=True)
                    continue
                percents = [100 * (loss / fp32 - 1) for loss, fp32 in zip(given, losses["fp32"], strict=True)]
                mean = statistics.mean(percents)
                within = abs(mean) <= LIMIT  # NaN is not
                good = good and within
                cells = "".join(f"{p:+9.2f}%" for p in percents)
                print(f"{work + ' ' + recipe:14}{cells}{mean:+9.2f}%{'' if within else '  beyond the limit'}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
