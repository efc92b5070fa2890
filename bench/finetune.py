"""Times one step of fine-tuning SmolLM2-135M by Plimsoll and by transformers with PEFT, in turn: the same weights, tokens, batch, threads,
optimizer and clipping.

    .venv/bin/python bench/finetune.py [--rounds 3] [--contestants full-bf16,full-hf-bf16-sdpa,...] [--model DIR] [--json FILE]

full: all weights train. lora: adapters of all linear layers, of rank 16, on a frozen base. Ours: full-RECIPE with FP32 weights; full-small
with BF16 weights alone, 8-bit states and gradients released in backward (without clipping), full-smallest with checkpointed activations, too;
lora-bf16 and lora-fp8, on a base in BF16 and as FP8 codes. Theirs: weights in FP32 or BF16, either attention of transformers, huge pages
and glibc's large thresholds. Each turn is a new process: one step that is not timed, then one that is. Prints for each work what
gpt_step.py prints; the peer is the fastest of theirs.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import generate
import generate_checkpoint
import gpt_step
import json_file
from contestant import TUNED

ROOT = Path(__file__).resolve().parent.parent
RANK = 16
WORKS = ("full", "lora")
SMALL = ["--recipe=bf16", "--weights=bf16", "--optimizer-state=8bit", "--masters=none", "--release-gradients"]
OURS = {
    "full-fp32": ["--recipe=fp32"],
    "full-bf16": ["--recipe=bf16"],
    "full-fp8": ["--recipe=fp8"],
    "full-small": SMALL,
    "full-smallest": [*SMALL, "--checkpoint-activations"],
    "lora-bf16": ["--recipe=bf16", "--weights=bf16", f"--lora-rank={RANK}"],
    "lora-fp8": ["--recipe=fp8", "--weights=fp8", f"--lora-rank={RANK}"],
}
THEIRS = {
    f"{work}-hf-{dtype}-{attention}": [
        f"--dtype={dtype}",
        f"--attention={attention}",
        f"--lora-rank={RANK if work == 'lora' else 0}",
    ]
    for work in WORKS
    for dtype in ("fp32", "bf16")
    for attention in ("sdpa", "eager")
}


def runner(name, model, args):
    shape = [f"--context={args.context}", f"--batch={args.batch}", f"--threads={args.threads}", f"--model={model}"]
    if name in THEIRS:
        command = [sys.executable, ROOT / "bench" / "finetune_worker.py", *THEIRS[name], *shape]
        return gpt_step.Runner(name, command, TUNED, restart=True)
    vocabulary = generate_checkpoint.vocabulary_of(model)
    command = [Path(args.build) / "bin" / "gpt_step_worker", *OURS[name], f"--vocabulary={vocabulary}", *shape]
    return gpt_step.Runner(name, command, {}, restart=True)


def works_of(runners, tokens):
    """{work: (its peer, a row for each of its contestants)}."""
    by_work = {work: [one for one in runners if one.name.startswith(f"{work}-")] for work in WORKS}
    return {work: gpt_step.rows_of(ones, [], tokens, peers=tuple(THEIRS)) for work, ones in by_work.items() if ones}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a Hugging Face directory")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--build", default=str(ROOT / "build"))
    parser.add_argument("--contestants", default=",".join((*THEIRS, *OURS)))
    parser.add_argument("--json", help="write the tables to this file")
    args = parser.parse_args()
    args.contestants = args.contestants.split(",")
    unknown = sorted(set(args.contestants) - set(OURS) - set(THEIRS))
    if unknown:
        parser.error(f"--contestants: expected some of {', '.join((*THEIRS, *OURS))}, got {', '.join(unknown)}")
    return args


def main():
    args = parse_arguments()
    with tempfile.TemporaryDirectory() as temporary:
        model = generate.directory_of_model(args.model, Path(temporary))
        runners = [runner(name, model, args) for name in args.contestants]
        gpt_step.measure(runners, args.rounds, restart=True)
    works = works_of(runners, args.batch * args.context)
    for peer, rows in works.values():
        print(gpt_step.table(peer, rows))
    if args.json:
        tables = {work: {"peer": peer, "rows": rows} for work, (peer, rows) in works.items()}
        json_file.write(args.json, {"arguments": vars(args), "works": tables})


if __name__ == "__main__":
    main()
