"""Times training steps of a GPT of 10.9 M parameters by one process and by two, in turn: Plimsoll's and PyTorch's.

    .venv/bin/python bench/shard.py [--rounds 5] [--json FILE] [--contestants ours-bf16,ours-bf16-fsdp,...]

All have the same batch and two threads: one process with both, or two processes with one each and half of the batch.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import json_file
from contestant import Contestant
from gpt_step import PRESETS

HERE = Path(__file__).resolve().parent
RANKS = 2
CONTESTANTS = {
    "torch-bf16": ("torch", "none", "bf16"),
    "torch-bf16-ddp": ("torch", "ddp", "bf16"),
    "torch-bf16-fsdp2": ("torch", "fsdp2", "bf16"),
    "ours-bf16": ("plimsoll", "none", "bf16"),
    "ours-bf16-ddp": ("plimsoll", "ddp", "bf16"),
    "ours-bf16-fsdp": ("plimsoll", "fsdp", "bf16"),
    "ours-fp8": ("plimsoll", "none", "fp8"),
    "ours-fp8-fsdp": ("plimsoll", "fsdp", "fp8"),
}


def contestant(name, shape, folder):
    library, how, recipe = CONTESTANTS[name]
    ranks = 1 if how == "none" else RANKS
    sizes = [f"--{key}={shape[key]}" for key in ("layers", "dim", "heads", "context", "batch", "vocabulary")]
    command = [sys.executable, HERE / "shard_worker.py", *sizes, f"--ranks={ranks}", f"--threads={RANKS // ranks}"]
    command += [f"--library={library}", f"--how={how}", f"--recipe={recipe}", f"--store={folder}/{name}"]
    return Contestant(name, command, {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": str(RANKS // ranks)})


def row(name, answers, alone, info, tokens):
    """alone: answers of the one process, none where it did not run."""
    seconds = [answer["seconds"] for answer in answers]
    return {
        "contestant": name,
        "tokens_per_s": tokens / statistics.median(seconds),
        # Ratios within one turn: other work on the machine then slows both.
        "of_one_process": statistics.median(one["seconds"] / own for one, own in zip(alone, seconds, strict=True))
        if alone
        else None,
        "parameters_held": info["parameters_held"],
        "peak_rss_bytes": max(answer["peak_rss_bytes"] for answer in answers),
    }


def rows_of(answers, info_of, tokens):
    one_process = lambda name: answers.get("-".join(name.split("-")[:2]))
    return [row(name, own, one_process(name), info_of(name), tokens) for name, own in answers.items()]


def text(row):
    ratio = "-" if row["of_one_process"] is None else f"{row['of_one_process']:.2f}"
    return (
        f"{row['contestant']:18} {row['tokens_per_s']:8.0f} tokens/s  {ratio:>5} of one process  "
        f"{row['parameters_held'] / 1e6:6.2f} M parameters a rank  peak {row['peak_rss_bytes'] / 1e6:6.0f} MB a rank"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--contestants", type=lambda text: text.split(","), default=list(CONTESTANTS))
    parser.add_argument("--json")
    args = parser.parse_args()
    shape = PRESETS["small"]
    answers: dict[str, list[list[dict[str, float]]]] = {name: [] for name in args.contestants}
    with tempfile.TemporaryDirectory() as folder:
        teams = {name: contestant(name, shape, folder) for name in args.contestants}
        for _ in range(args.rounds):
            for name, team in teams.items():
                answers[name].append(team.ask("step"))
        for team in teams.values():
            team.close()
    rows = rows_of(answers, lambda name: teams[name].info, shape["batch"] * shape["context"])
    print("\n".join(map(text, rows)))
    if args.json:
        json_file.write(args.json, {"rows": rows})


if __name__ == "__main__":
    main()
