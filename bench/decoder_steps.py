"""Options of decoder_train.py and finetune.py, and steps of ours and theirs in turn."""

import argparse
import sys
import tempfile
from pathlib import Path

import generate
import generate_checkpoint
import gpt_step
from contestant import TUNED

ROOT = Path(__file__).resolve().parent.parent


def parser_of(description, contestants):
    """Options that both have; contestants: those of a run that names none."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", help="a Hugging Face directory")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--build", default=str(ROOT / "build"))
    parser.add_argument("--contestants", default=",".join(contestants))
    parser.add_argument("--json", help="write what is printed to this file")
    return parser


def parse(parser, known):
    args = parser.parse_args()
    args.contestants = args.contestants.split(",")
    unknown = sorted(set(args.contestants) - set(known))
    if unknown:
        parser.error(f"--contestants: expected some of {', '.join(known)}, got {', '.join(unknown)}")
    return args


def runner(name, model, args, theirs, ours, restart):
    shape = [f"--context={args.context}", f"--batch={args.batch}", f"--threads={args.threads}", f"--model={model}"]
    if name in theirs:
        script, *options = theirs[name]
        return gpt_step.Runner(name, [sys.executable, ROOT / "bench" / script, *options, *shape], TUNED, restart)
    vocabulary = generate_checkpoint.vocabulary_of(model)
    command = [Path(args.build) / "bin" / "gpt_step_worker", *ours[name], f"--vocabulary={vocabulary}", *shape]
    return gpt_step.Runner(name, command, {}, restart)


def measured(args, theirs, ours, restart):
    """A runner of each of args.contestants, after its rounds. theirs: {name: a script of this folder and its options}; ours: {name:
    options of gpt_step_worker}."""
    with tempfile.TemporaryDirectory() as temporary:
        model = generate.directory_of_model(args.model, Path(temporary))
        runners = [runner(name, model, args, theirs, ours, restart) for name in args.contestants]
        gpt_step.measure(runners, args.rounds, restart)
    return runners
