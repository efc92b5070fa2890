"""Times a T5 of flan-t5-base's shape, random weights: encoding and decoding by Plimsoll, Hugging Face and CTranslate2, in turn.

    .venv/bin/python bench/t5.py [--rounds 5] [--contestants hf-bf16,ctranslate2-fp32,fp8,...] [--works encode-128,greedy-1,...] [--json FILE]

Peers run with PyTorch's tuned allocator settings. Prints medians in ms, of one encoding or one step (the difference between two lengths, so
without the encoder), each over the fastest peer named for that work, and, for greedy decoding of one text, the share of a plain pass
over the bytes of the weights (build/bin/read_worker, timed in turn). Then, from a process each: from loading the checkpoint, which lies in
the page cache, to the first token, and the most memory that `plimsoll t5 generate` held. CTranslate2 is a contestant where it is installed:
.venv/bin/pip install --no-deps ctranslate2==4.8.5
"""

import argparse
import concurrent.futures
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import json_file
import t5_checkpoint
from contestant import TUNED, Contestant
from t5_worker import SOURCE_TOKENS, ids

ROOT = Path(__file__).resolve().parent.parent
STEPS = 32  # of decoding

OURS = {"fp32": 4, "bf16": 2, "fp16": 4, "fp8": 1}  # bytes of a weight as it is read: fp16 is multiplied from fp32
HUGGING_FACE = ("hf-fp32", "hf-bf16", "hf-fp16")
CTRANSLATE2 = "ctranslate2-fp32"
LIMITS = {f"read-{name}": size for name, size in OURS.items() if name != "fp16"}
CONTESTANTS = (*HUGGING_FACE, CTRANSLATE2, *OURS, *LIMITS)

# work: (what is asked, the contestants that do it beside ours, the one that ours is compared with: None: the fastest)
WORKS = {
    "encode-128": ({"work": "encode", "tokens": 128}, HUGGING_FACE, None),
    "encode-512": ({"work": "encode", "tokens": 512}, HUGGING_FACE, None),
    "greedy-1": ({"work": "decode", "rows": 1, "beams": 1, "steps": STEPS}, ("hf-bf16", CTRANSLATE2, *LIMITS), CTRANSLATE2),
    "greedy-8": ({"work": "decode", "rows": 8, "beams": 1, "steps": STEPS}, ("hf-bf16", CTRANSLATE2), CTRANSLATE2),
    "beam-4": ({"work": "decode", "rows": 1, "beams": 4, "steps": STEPS}, (CTRANSLATE2,), CTRANSLATE2),
}


def does(name, work):
    return name in OURS or name in WORKS[work][1]


def contestant(name, directory, args):
    if name in LIMITS:
        size = t5_checkpoint.WEIGHTS_OF_A_STEP * LIMITS[name]
        return Contestant(name, [Path(args.build) / "bin" / "read_worker", f"--bytes={size}", f"--threads={args.threads}"])
    library, dtype = name.rsplit("-", 1) if "-" in name else ("plimsoll", name)
    model = directory / ("ctranslate2" if library == "ctranslate2" else "hf")
    command = [
        sys.executable,
        ROOT / "bench" / "t5_worker.py",
        f"--library={library}",
        f"--dtype={dtype}",
        f"--directory={model}",
    ]
    environment = {"PLIMSOLL_BUILD": str(args.build), "PYTHONPATH": str(ROOT / "python")} if name in OURS else TUNED
    return Contestant(name, [*command, f"--threads={args.threads}"], environment)


def measure(running, args):
    """{work: {name: seconds of each round}}; a round is each work by each contestant."""
    seconds: dict[str, dict[str, list[float]]] = {work: {name: [] for name in running if does(name, work)} for work in args.works}
    for number in range(args.rounds if seconds else 0):
        for work, names in seconds.items():
            for name, times in names.items():
                times.append(running[name].ask(json.dumps(WORKS[work][0]))["seconds"])
        print(f"round {number + 1} of {args.rounds}", file=sys.stderr)
    return seconds


def rows_of(seconds):
    rows = []
    for work, names in seconds.items():
        medians = {name: statistics.median(times) for name, times in names.items()}
        peers = [name for name in medians if name not in OURS and name not in LIMITS and WORKS[work][2] in (None, name)]
        peer = min(peers, key=lambda name: medians[name], default=None)
        for name, median in medians.items():
            limit = f"read-{name}" if name in OURS else None
            rows.append(
                {
                    "work": work,
                    "name": name,
                    "median_seconds": median,
                    "seconds": names[name],
                    "peer": peer,
                    "speed_over_peer": medians[peer] / median if peer else None,
                    "share_of_reading": medians[limit] / median if limit in medians else None,
                }
            )
    return rows


def run_command(name, directory, args):
    """`plimsoll t5 generate` for one token: seconds on the wall, and the most memory that it held."""
    command = [
        Path(args.build) / "bin" / "plimsoll",
        "t5",
        "generate",
        "--model",
        directory / "hf",
        "--input",
        directory / "ids.jsonl",
    ]
    command += ["--dtype", name, "--max-new-tokens", "1", "--threads", str(args.threads)]
    start = time.perf_counter()
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: ended with status {status}")
    return {"seconds": time.perf_counter() - start, "peak_rss_bytes": usage.ru_maxrss * 1024}


def starts_of(names, directory, parameters, args):
    rows = []
    for name in names:
        first, command = [], []
        for _ in range(args.rounds):
            started = contestant(name, directory, args)
            first.append(started.info["first_token_seconds"])
            started.close()
            if name in OURS:
                command.append(run_command(name, directory, args))
        row = {"name": name, "first_token_seconds": statistics.median(first)}
        if command:
            row["command_seconds"] = statistics.median(one["seconds"] for one in command)
            row["peak_rss_bytes"] = max(one["peak_rss_bytes"] for one in command)
            row["bytes_a_parameter"] = (row["peak_rss_bytes"] - 200e6) / parameters
        rows.append(row)
    return rows


def table(rows, starts):
    def cell(value, form):
        return form.format(value) if value is not None else "-"

    lines = [f"{'work':12}{'contestant':18}{'ms':>9}{'x peer':>8}{'% of reading':>14}   peer"]
    for row in rows:
        share = None if row["share_of_reading"] is None else 100 * row["share_of_reading"]
        lines.append(
            f"{row['work']:12}{row['name']:18}{1e3 * row['median_seconds']:9.2f}{cell(row['speed_over_peer'], '{:.2f}'):>8}"
            f"{cell(share, '{:.0f}'):>14}   {row['peer'] or '-'}"
        )
    if starts:
        lines.append(f"{'start':30}{'first token s':>14}{'command s':>11}{'peak MB':>9}{'bytes a parameter beyond 200 MB':>33}")
    for row in starts:
        lines.append(
            f"{row['name']:30}{row['first_token_seconds']:14.3f}{cell(row.get('command_seconds'), '{:.2f}'):>11}"
            f"{cell(row.get('peak_rss_bytes', 0) / 1e6 or None, '{:.0f}'):>9}{cell(row.get('bytes_a_parameter'), '{:.2f}'):>33}"
        )
    return "\n".join(lines)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--contestants", default=",".join(CONTESTANTS))
    parser.add_argument("--works", default=",".join(WORKS), help=f"some of {', '.join(WORKS)}; nothing: the starts alone")
    parser.add_argument("--no-starts", action="store_true", help="without loading and memory")
    parser.add_argument("--directory", help="keep the checkpoints here, and use those that are there")
    parser.add_argument("--build", default=str(ROOT / "build"))
    parser.add_argument("--json", help="write the table to this file")
    args = parser.parse_args()
    for option, known in (("contestants", CONTESTANTS), ("works", WORKS)):
        given = [name for name in getattr(args, option).split(",") if name]
        unknown = sorted(set(given) - set(known))
        if unknown:
            parser.error(f"--{option}: expected some of {', '.join(known)}, got {', '.join(unknown)}")
        setattr(args, option, given)
    if CTRANSLATE2 in args.contestants and importlib.util.find_spec("ctranslate2") is None:
        print(f"without {CTRANSLATE2}: .venv/bin/pip install --no-deps ctranslate2==4.8.5 adds it", file=sys.stderr)
        args.contestants.remove(CTRANSLATE2)
    return args


def write_checkpoints(directory, args):
    """The number of parameters."""
    count = directory / "parameters.json"
    if not count.exists():
        count.write_text(json.dumps(t5_checkpoint.write_hugging_face(directory / "hf")))
    if CTRANSLATE2 in args.contestants and not (directory / "ctranslate2").exists():
        t5_checkpoint.write_ctranslate2(directory / "hf", directory / "ctranslate2")
    t5_checkpoint.write_inputs(directory / "ids.jsonl", ids(1, SOURCE_TOKENS))
    return json.loads(count.read_text())


def main():
    args = parse_arguments()
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(args.directory or temporary)
        directory.mkdir(parents=True, exist_ok=True)
        # In a process of its own: Linux counts what a parent held as the peak of the children that it starts.
        with concurrent.futures.ProcessPoolExecutor(1) as pool:
            parameters = pool.submit(write_checkpoints, directory, args).result()
        running = {}
        try:
            for name in args.contestants if args.works else []:
                running[name] = contestant(name, directory, args)
                print(f"{name}: ready", file=sys.stderr)
            rows = rows_of(measure(running, args))
        finally:
            for one in running.values():
                one.close()
        starters = [name for name in args.contestants if name not in LIMITS and not args.no_starts]
        starts = starts_of(starters, directory, parameters, args)
    print(table(rows, starts))
    if args.json:
        json_file.write(args.json, {"arguments": vars(args), "parameters": parameters, "rows": rows, "starts": starts})


if __name__ == "__main__":
    main()
