"""Does `--recipe auto` keep a model with outliers where BF16 takes it? Trains a small Llama, grafts outliers onto it that neither plain FP8
nor NVFP4 bears, and trains it on under bf16, those two and ladders of auto, on other text.

    .venv/bin/python bench/auto_outliers.py --base DIR... --data DIR... [--seeds 1,2,3] [--recipes fp8,nvfp4,auto,...] [--out out/outliers]

An outlier is a hidden channel of the feed-forward layer: its row of the up-projection times 2^k, its column of the down-projection times
2^-k, which leaves each bit of the function in FP32 and BF16 as it was; that is checked. --base is what the model has learned before, --data
what it learns then. fp8 has one scale a tensor from the amaxes of earlier steps, as e4m3 of auto has; its gradients are E5M2.

Prints the held-out loss of bf16, the differences from it in percent, the share of each ladder's multiply-adds in its formats over the run, and
its changes. Exit code 1 if a recipe without a ladder loses less than 2 % in the mean (the outliers show nothing then), or if the mean of a
ladder is further off than 0.3 %, to either side, or a run of one has less than 80 % in codes.
"""

import argparse
import json
import math
import re
import shutil
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import generate_checkpoint
import torch
import transformers

ROOT = Path(__file__).resolve().parent.parent
LOSS_OF_CODES, LIMIT, NARROW = 2.0, 0.3, 0.8  # percent of bf16's loss, twice; share of the multiply-adds
SHAPE = generate_checkpoint.BYTE_LLAMA | {"num_hidden_layers": 6}
RECIPES = "fp8,nvfp4,auto"
SIZES = ["--context", 128, "--batch", 8, "--log-every", 1000, "--save-every", 0, "--eval-every", 0]


@torch.no_grad()
def graft(model, blocks, channels, bits):
    """Hidden channels of these blocks become 2^bits times as large; the model's function stays."""
    for block in blocks:
        mlp = model.model.layers[block].mlp
        mlp.up_proj.weight[channels] *= 2.0**bits
        mlp.down_proj.weight[:, channels] *= 2.0**-bits


@torch.no_grad()
def check_same_function(model, source):
    """In FP32, and in BF16, whose exponents are FP32's."""
    ids = torch.randint(model.config.vocab_size, (2, 64), generator=torch.Generator().manual_seed(0))
    for dtype in (torch.float32, torch.bfloat16):
        ours, theirs = (one.to(dtype)(ids).logits for one in (model, source))
        if not torch.equal(ours, theirs):
            sys.exit(f"auto_outliers: expected the same logits in {dtype} before and after grafting, got others")


def plimsoll(args, *words):
    command = [str(word) for word in (Path(args.build) / "bin" / "plimsoll", *words)]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    if done.returncode not in (0, 3):  # 3: a result that is not finite, which is one
        sys.exit(f"{' '.join(command)}: ended with status {done.returncode}")


def write_trained(args, directory):
    """A model that has learned args.base."""
    first, run = directory.with_name("first"), directory.with_name("base")
    first.mkdir(parents=True)
    generate_checkpoint.write_random(first, **SHAPE, max_position_embeddings=128, initializer_range=SHAPE["hidden_size"] ** -0.5)
    plan = ["--steps", args.base_steps, "--lr", 2e-3, "--recipe", "bf16", "--threads", args.threads, "--log-scales", 0]
    plimsoll(args, "train", "--config-of", first, "--data", *args.base, "--out", run, *SIZES, *plan)
    plimsoll(args, "convert", "--model", run, "--out", directory, "--dtype", "fp32")


def write_grafted(args, source, directory):
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    blocks = args.blocks or range(1, model.config.num_hidden_layers, 3)
    graft(model, blocks, args.channels, args.bits)
    model.save_pretrained(directory)
    shutil.copy(Path(source) / "tokenizer.json", directory)
    check_same_function(model, transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32))


def trained_on(args, model, recipe, seed):
    """Lines of the run's log."""
    out = Path(args.out) / f"{re.sub('[:>]', '-', recipe)}-{seed}"
    plan = ["--steps", args.steps, "--lr", args.lr, "--weight-decay", 0, "--seed", seed, "--threads", args.threads]
    plimsoll(args, "train", "--model", model, "--data", *args.data, "--out", out, "--recipe", recipe, *SIZES, *plan)
    return [json.loads(line) for line in (out / "train.jsonl").read_text().splitlines()]


def percent(loss, reference):
    """Infinity for a loss that is no number."""
    return math.inf if loss is None or not math.isfinite(loss) else 100 * (loss / reference - 1)


def changes_of(log):
    """(change, its error) of a run's formats; the text of a change is the same in each run that takes it."""
    for line in log:
        for change in line.get("precision", {}).get("changes", []):
            text = f"{change['layer']} {change['product']}: {change['from']} -> {change['to']} after step {line['step']}, {change['reason']}"
            yield f"{text} of {change['operand']}, bound {change['bound']:.3g}", change["error"]


def row(name, cells):
    return f"{name:22}" + "".join(f"{cell:>10}" for cell in cells)


def faults_of(recipe, mean, logs):
    """Lines that say why a recipe's runs do not show what they should."""
    if "precision" not in logs[0][-1]:
        shown = mean > LOSS_OF_CODES
        return (
            [] if shown else [f"{recipe} loses {mean:.2f} %, expected more than {LOSS_OF_CODES} %: these outliers show nothing"]
        )
    in_codes = min(1 - log[-1]["precision"]["share"][-1] for log in logs)
    faults = [] if abs(mean) <= LIMIT else [f"{recipe} is {mean:+.2f} % off, beyond the limit of {LIMIT} %"]
    if not in_codes >= NARROW:
        faults.append(f"{recipe} has {100 * in_codes:.1f} % of the multiply-adds in codes, expected {100 * NARROW:.0f} %")
    return faults


def table(logs):
    """(lines to print, whether the bars hold), of the logs of each recipe's seeds, bf16's first."""
    losses = {recipe: [log[-1]["final_val_loss"] for log in runs] for recipe, runs in logs.items()}
    lines, faults = [row("bf16", [f"{loss:.4f}" for loss in losses.pop("bf16")])], []
    reference = [log[-1]["final_val_loss"] for log in logs["bf16"]]
    for recipe, found in losses.items():
        percents = [percent(*both) for both in zip(found, reference, strict=True)]
        mean = statistics.mean(percents)
        lines.append(row(recipe, [f"{value:+.2f}%" for value in (*percents, mean)]))
        for number, form in enumerate(logs[recipe][0][-1].get("precision", {}).get("formats", [])):
            shares = [log[-1]["precision"]["share"][number] for log in logs[recipe]]
            lines.append(row(f"  in {form}", [f"{100 * share:.1f}%" for share in shares]))
        faults += faults_of(recipe, mean, logs[recipe])
    return lines + faults, not faults


def counted_changes(logs):
    """Changes of all runs, each with the number of runs that took it and their largest error."""
    errors = defaultdict(list)
    for change, error in (one for log in logs for one in changes_of(log)):
        errors[change].append(error)
    return [f"  {change}, measured {max(found):.3g}, in {len(found)} of {len(logs)} runs" for change, found in errors.items()]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--base", nargs="+", help="text that the model learns first")
    parser.add_argument("--model", help="a Llama in a Hugging Face directory, instead of one that learns --base")
    parser.add_argument("--data", nargs="+", required=True, help="text that it learns with outliers")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--recipes", default=RECIPES, help=f"beside bf16 (default: {RECIPES})")
    parser.add_argument("--base-steps", type=int, default=400)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--bits", type=int, default=18, help="k of the outliers' factor 2^k")
    parser.add_argument("--blocks", type=int, nargs="+", help="with outliers (default: each third, from the second)")
    parser.add_argument("--channels", type=int, nargs="+", default=[3, 17])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", default=str(ROOT / "out" / "outliers"))
    parser.add_argument("--build", default=str(ROOT / "build"))
    args = parser.parse_args()
    if (args.base is None) == (args.model is None):
        parser.error("expected one of --base and --model")
    if Path(args.out).exists():
        parser.error(f"--out {args.out}: expected a new directory")
    return args


def main():
    args = parse_arguments()
    source = Path(args.model or Path(args.out) / "trained")
    if not args.model:
        write_trained(args, source)
    model = Path(args.out) / "grafted"
    write_grafted(args, source, model)
    seeds = args.seeds.split(",")
    logs: dict[str, list[Any]] = {recipe: [] for recipe in ("bf16", *args.recipes.split(","))}
    for seed in seeds:
        for recipe, runs in logs.items():
            runs.append(trained_on(args, model, recipe, seed))
    print(row("", [*(f"seed {seed}" for seed in seeds), "mean"]))
    lines, good = table(logs)
    print("\n".join(lines))
    for recipe, runs in logs.items():
        if changes := counted_changes(runs):
            print("\n".join([f"changes of {recipe}:", *changes]))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
