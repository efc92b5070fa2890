"""Times every operator of Plimsoll against PyTorch's, in turn in one run.

    .venv/bin/python bench/vs_torch.py [--filter mm/bf16] [--rounds 7] [--threads 2] [--json FILE]

Forward and backward together where there is a gradient. Three memory settings, a process each: PyTorch as installed (stock), with glibc told
to keep large blocks (tuned), and with Plimsoll's caching allocator (caching) under both. Prints medians in ms and how many times faster
Plimsoll is under the same setting; the last column is Plimsoll caching against PyTorch tuned.
"""

import argparse
import statistics
import sys
from pathlib import Path

import json_file
import torch
from contestant import TUNED, Contestant

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = {"stock": ({}, []), "tuned": (TUNED, []), "caching": ({}, ["--caching"])}


def row_of(name, answers):
    row = {"name": name}
    for setting, answer in answers.items():
        if "error" in answer:
            return {"name": name, "error": answer["error"]}
        row[setting] = {who: statistics.median(answer[who]) for who in ("torch", "plimsoll")}
        row[setting]["ratio"] = row[setting]["torch"] / row[setting]["plimsoll"]
    row["ratio"] = row["tuned"]["torch"] / row["caching"]["plimsoll"]
    return row


HEADER = (
    f"{'operator':26}" + "".join(f"{setting + ' torch':>15}{'plimsoll':>10}{'x':>7}" for setting in SETTINGS) + f"{'x tuned':>9}"
)


def text_of(row):
    if "error" in row:
        return f"{row['name']:26}  {row['error']}"
    cells = "".join(f"{1e3 * row[s]['torch']:15.2f}{1e3 * row[s]['plimsoll']:10.2f}{row[s]['ratio']:7.2f}" for s in SETTINGS)
    return f"{row['name']:26}{cells}{row['ratio']:9.2f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--filter", default="", help="only operators whose name contains this")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--build", default=str(ROOT / "build"))
    parser.add_argument("--json", help="write the table to this file")
    args = parser.parse_args()

    library = Path(args.build) / "lib" / "libplimsoll_python.so"
    torch.ops.load_library(library)
    from vs_torch_cases import all_cases

    names = [name for name in all_cases() if args.filter in name]
    if not names:
        parser.error(f"--filter: expected a part of an operator's name ({', '.join(all_cases())}), got {args.filter}")
    command = [
        sys.executable,
        ROOT / "bench" / "vs_torch_worker.py",
        f"--library={library}",
        f"--threads={args.threads}",
        f"--rounds={args.rounds}",
    ]
    workers = {setting: Contestant(setting, [*command, *more], environment) for setting, (environment, more) in SETTINGS.items()}
    rows = []
    print(HEADER)
    for name in names:
        rows.append(row_of(name, {setting: worker.ask(name) for setting, worker in workers.items()}))
        print(text_of(rows[-1]), flush=True)
    for worker in workers.values():
        worker.close()
    if args.json:
        json_file.write(args.json, {"arguments": vars(args), "rows": rows})


if __name__ == "__main__":
    main()
