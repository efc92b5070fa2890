"""Does fine-tuning in BF16 and FP8 end where FP32 does? Trains all weights or adapters of a model on text: of a small Llama with random
weights, on bytes, or of the model in a Hugging Face directory.

    .venv/bin/python bench/finetune_quality.py --data DIR... [--model DIR] [--works full,lora] [--recipes bf16,fp8] [--seeds 1,2,3]
        [--steps 200] [--context 128] [--batch 8] [--evaluate same|fp32] [--losses FILE]

Weights are held in FP32; bf16 and fp8 are what the products run in, those of the held-out loss too: --evaluate fp32 takes that of what was
learned, without the rounding of the pass that measures it. Prints for each work and recipe the difference of the held-out loss from
fp32's, for each seed and its mean, in percent; exit code 1 if a mean is further off than 0.5, to either side. --losses FILE keeps the loss of
each run as it ends; runs that are in it are not run again, so that a seed may be run at a time.
"""

import argparse
import contextlib
import functools
import json
import os
import random
import statistics
import sys
import tempfile
from pathlib import Path

import generate_checkpoint
import json_file
import torch
import transformers
from seeded_runs import print_heading, print_losses, print_percents

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))
os.environ.setdefault("PLIMSOLL_BUILD", str(ROOT / "build"))
from plimsoll.common.recipe import DelayedScaling, Float8BlockScaling, Float8CurrentScaling, MXFP8BlockScaling  # noqa: E402
from plimsoll.models import AutoModelForCausalLM, LoraConfig, PeftModel, get_peft_model  # noqa: E402
from plimsoll.models.causal_lm import CausalLM  # noqa: E402
from plimsoll.optim import AdamW  # noqa: E402

WIDTH = 14  # of the names of works and recipes
LIMIT = 0.5  # percent of the loss in fp32
SHAPE = generate_checkpoint.BYTE_LLAMA | {"num_hidden_layers": 4}
FIRST_BYTE, HELD_OUT = 3, 64
RECIPES = {  # the first is what the others are compared with
    "fp32": None,
    "bf16": None,
    "fp8": DelayedScaling,
    "fp8-current": Float8CurrentScaling,
    "fp8-block": Float8BlockScaling,
    "mxfp8": MXFP8BlockScaling,
}
# Learning rates: for random weights, and for those of a model.
RATES = {"random": {"full": 1e-3, "lora": 3e-3}, "trained": {"full": 2e-5, "lora": 2e-4}}


def rows_of_tokens(data, model, context):
    """int64 [rows, context], in an order that depends on nothing: bytes, or the tokens of the model."""
    files = sorted(file for directory in data for file in Path(directory).rglob("*.py"))
    random.Random(0).shuffle(files)
    text = b"".join(file.read_bytes() for file in files[:400])
    if model:
        tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        tokens = torch.tensor(tokenizer(text.decode(errors="ignore"), verbose=False)["input_ids"])
    else:
        tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long() + FIRST_BYTE
    count = len(tokens) // context
    return tokens[: count * context].view(count, context)


def scope(recipe):
    return contextlib.nullcontext() if recipe == "fp32" else torch.autocast("cpu", torch.bfloat16)


def made_model(directory, work, recipe):
    scaling = RECIPES[recipe]
    model: CausalLM | PeftModel = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, recipe=scaling() if scaling else None
    )
    if isinstance(model, CausalLM) and work == "lora":
        model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"))
    return model


def held_out_loss(directory, rows, work, recipe, seed, rate, args):
    torch.manual_seed(seed)
    model = made_model(directory, work, recipe)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = AdamW(trained, lr=rate, betas=(0.9, 0.95))
    held, order = rows[:HELD_OUT], HELD_OUT + torch.randperm(len(rows) - HELD_OUT)
    model.train()
    for step in range(args.steps):
        optimizer.param_groups[0]["lr"] = rate * min(1, (step + 1) / 20) * (1 - 0.9 * step / args.steps)
        batch = rows[order[step * args.batch : (step + 1) * args.batch]]
        with scope(recipe):
            loss = model(batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    if args.evaluate == "fp32":
        recipe, source = "fp32", model
        model = made_model(directory, work, recipe)
        with torch.no_grad():
            for ours, theirs in zip(model.parameters(), source.parameters(), strict=True):
                ours.copy_(theirs)
    model.eval()
    with torch.no_grad(), scope(recipe):
        return statistics.mean(model(batch, labels=batch).loss.item() for batch in held.split(args.batch))


class Losses:
    """Held-out losses by (work, recipe, seed), kept in a file if there is one."""

    def __init__(self, file, setting):
        self._file, self._kept = file, {"setting": setting, "losses": {}}
        if file and Path(file).is_file():
            kept = json.loads(Path(file).read_text())
            if kept["setting"] != setting:
                sys.exit(f"--losses {file}: expected the setting {setting}, got {kept['setting']}")
            self._kept = kept

    def get(self, name, run):
        losses = self._kept["losses"]
        if name not in losses:
            losses[name] = run()
            if self._file:
                json_file.write(self._file, self._kept)
        return losses[name]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--data", nargs="+", required=True, help="directories with Python sources")
    parser.add_argument("--model", help="a Hugging Face directory")
    parser.add_argument("--works", default="full,lora")
    parser.add_argument("--recipes", default="bf16,fp8", help=f"some of {', '.join(list(RECIPES)[1:])}")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--evaluate", choices=("same", "fp32"), default="same", help="in the recipe of the run, or in fp32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--losses", help="JSON file of losses")
    return parser.parse_args()


def main():
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    rows, seeds, good = rows_of_tokens(args.data, args.model, args.context), args.seeds.split(","), True
    if len(rows) < HELD_OUT + args.steps * args.batch:
        sys.exit(f"--data: expected {HELD_OUT + args.steps * args.batch} rows of {args.context} tokens, got {len(rows)}")
    rates = RATES["trained" if args.model else "random"]
    settings = ("data", "model", "steps", "context", "batch", "evaluate", "threads")
    kept = Losses(args.losses, {name: getattr(args, name) for name in settings})
    with tempfile.TemporaryDirectory() as temporary:
        if not args.model:
            generate_checkpoint.write_random(temporary, **SHAPE, max_position_embeddings=args.context)
        directory = args.model or temporary
        print_heading("", WIDTH, seeds)
        for work in args.works.split(","):
            losses = {}
            for recipe in ("fp32", *args.recipes.split(",")):
                run = functools.partial(held_out_loss, directory, rows, work, recipe, rate=rates[work], args=args)
                given = [kept.get(f"{work} {recipe} {seed}", functools.partial(run, int(seed))) for seed in seeds]
                losses[recipe] = given
                if recipe == "fp32":
                    print_losses(f"{work} fp32", WIDTH, given)
                    continue
                percents = [100 * (loss / fp32 - 1) for loss, fp32 in zip(given, losses["fp32"], strict=True)]
                mean = statistics.mean(percents)
                within = abs(mean) <= LIMIT  # NaN is not
                good = good and within
                print_percents(f"{work} {recipe}", WIDTH, percents, mean, within)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
