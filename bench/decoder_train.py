"""Times one training step of SmolLM2-135M by Plimsoll and by transformers, in turn: the same weights, batch, threads, optimizer and clipping.

    .venv/bin/python bench/decoder_train.py [--rounds 3] [--contestants hf-fp32,hf-bf16,fp32,bf16,fp8] [--model DIR] [--json FILE]

Weights are held in FP32, as generate.py finds or makes them. hf-bf16 is autocast; both of transformers run with huge pages and glibc's
large thresholds. Prints what gpt_step.py prints; the peer is the faster of the two.
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
HUGGING_FACE = {"hf-fp32": "fp32", "hf-bf16": "bf16"}
RECIPES = ("fp32", "bf16", "fp16", "fp8", "fp8-current", "fp8-row", "fp8-block", "mxfp8")


def runner(name, model, args):
    shape = [f"--context={args.context}", f"--batch={args.batch}", f"--threads={args.threads}", f"--model={model}"]
    if name in HUGGING_FACE:
        command = [sys.executable, ROOT / "bench" / "decoder_train_worker.py", f"--dtype={HUGGING_FACE[name]}", *shape]
        return gpt_step.Runner(name, command, TUNED, args.restart)
    vocabulary = generate_checkpoint.vocabulary_of(model)
    command = [Path(args.build) / "bin" / "gpt_step_worker", f"--recipe={name}", f"--vocabulary={vocabulary}", *shape]
    return gpt_step.Runner(name, command, {}, args.restart)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a Hugging Face directory")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--restart", action="store_true", help="a new process at each turn, where memory is short")
    parser.add_argument("--build", default=str(ROOT / "build"))
    parser.add_argument("--contestants", default=",".join((*HUGGING_FACE, "fp32", "bf16", "fp8")))
    parser.add_argument("--json", help="write the table to this file")
    args = parser.parse_args()
    args.contestants = args.contestants.split(",")
    unknown = sorted(set(args.contestants) - set(RECIPES) - set(HUGGING_FACE))
    if unknown:
        parser.error(f"--contestants: expected some of {', '.join((*HUGGING_FACE, *RECIPES))}, got {', '.join(unknown)}")
    return args


def main():
    args = parse_arguments()
    with tempfile.TemporaryDirectory() as temporary:
        model = generate.directory_of_model(args.model, Path(temporary))
        runners = [runner(name, model, args) for name in args.contestants]
        gpt_step.measure(runners, args.rounds, args.restart)
    peer, rows = gpt_step.rows_of(runners, [], args.batch * args.context, peers=tuple(HUGGING_FACE))
    print(gpt_step.table(peer, rows))
    if args.json:
        json_file.write(args.json, {"arguments": vars(args), "peer": peer, "rows": rows})


if __name__ == "__main__":
    main()
