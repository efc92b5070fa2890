"""Works that contestants do in turn: medians, each held against a peer and a plain read of the weights; what starting takes.

t5.py and generate.py describe theirs as a Comparison; worker.py has what their contestants share.
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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import json_file
from contestant import TUNED, Contestant

ROOT = Path(__file__).resolve().parent.parent
READS = {"read-fp32": 4, "read-bf16": 2, "read-fp8": 1}  # bytes of a weight


class Work(NamedTuple):
    request: dict[str, Any]  # a line for the worker
    peers: tuple[str, ...]  # contestants that do it beside ours
    peer: str | None  # the one that ours is compared with; None: the fastest


class Packages(NamedTuple):
    """Modules that a peer needs beyond those of .venv."""

    modules: tuple[str, ...]
    install: str  # arguments of `pip install`


class Checkpoints(NamedTuple):
    """A model's files."""

    directories: dict[str, Path]  # of each library
    parameters: int
    weights_of_a_step: int  # that writing a token reads
    first_token: list[Any]  # arguments of `plimsoll` for writing one token, without --dtype and --threads
    bf16_beside_codes: int = 0  # weights of a step that are BF16 where the others are codes


@dataclass(frozen=True)
class Comparison:
    worker: str  # a script beside this one
    ours: dict[str, str | None]  # our dtypes, each with the read of as many bytes as it reads of weights
    peers: tuple[str, ...]  # library-dtype
    works: dict[str, Work]
    packages: dict[str, Packages]  # of peers
    write_checkpoints: Callable[[Path, argparse.Namespace], Checkpoints]

    @property
    def contestants(self):
        return (*self.peers, *self.ours, *READS)

    def does(self, name, work):
        return name in self.ours or name in self.works[work].peers

    def parser(self, description):
        parser = argparse.ArgumentParser(description=description)
        parser.add_argument("--rounds", type=int, default=5)
        parser.add_argument("--threads", type=int, default=2)
        parser.add_argument("--contestants", default=",".join(self.contestants))
        parser.add_argument(
            "--works", default=",".join(self.works), help=f"some of {', '.join(self.works)}; nothing: the starts alone"
        )
        parser.add_argument("--no-starts", action="store_true", help="without loading and memory")
        parser.add_argument("--directory", help="keep the checkpoints here, and use those that are there")
        parser.add_argument("--build", default=str(ROOT / "build"))
        parser.add_argument("--json", help="write the table to this file")
        return parser

    def parse(self, parser):
        args = parser.parse_args()
        for option, known in (("contestants", self.contestants), ("works", self.works)):
            given = [name for name in getattr(args, option).split(",") if name]
            unknown = sorted(set(given) - set(known))
            if unknown:
                parser.error(f"--{option}: expected some of {', '.join(known)}, got {', '.join(unknown)}")
            setattr(args, option, given)
        for name, packages in self.packages.items():
            missing = [module for module in packages.modules if importlib.util.find_spec(module) is None]
            if name in args.contestants and missing:
                print(f"without {name}: .venv/bin/pip install {packages.install} adds it", file=sys.stderr)
                args.contestants.remove(name)
        return args

    def contestant(self, name, checkpoints, args):
        if name in READS:
            size = checkpoints.weights_of_a_step * READS[name]
            if READS[name] == 1:
                size += checkpoints.bf16_beside_codes
            return Contestant(name, [Path(args.build) / "bin" / "read_worker", f"--bytes={size}", f"--threads={args.threads}"])
        library, dtype = ("plimsoll", name) if name in self.ours else name.rsplit("-", 1)
        command = [sys.executable, ROOT / "bench" / self.worker, f"--library={library}", f"--dtype={dtype}"]
        command += [f"--directory={checkpoints.directories[library]}", f"--threads={args.threads}"]
        ours = {"PLIMSOLL_BUILD": str(args.build), "PYTHONPATH": str(ROOT / "python")}
        return Contestant(name, command, ours if name in self.ours else TUNED)

    def measure(self, running, args):
        """{work: {name: seconds of each round}}; a round is each work by each contestant."""
        seconds: dict[str, dict[str, list[float]]] = {
            work: {name: [] for name in running if self.does(name, work)} for work in args.works
        }
        for number in range(args.rounds if seconds else 0):
            for work, names in seconds.items():
                for name, times in names.items():
                    times.append(running[name].ask(json.dumps(self.works[work].request))["seconds"])
            print(f"round {number + 1} of {args.rounds}", file=sys.stderr)
        return seconds

    def rows_of(self, seconds):
        rows = []
        for work, names in seconds.items():
            medians = {name: statistics.median(times) for name, times in names.items()}
            peers = [name for name in medians if name in self.peers and self.works[work].peer in (None, name)]
            peer = min(peers, key=lambda name: medians[name], default=None)
            for name, median in medians.items():
                limit = self.ours.get(name)
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

    def starts_of(self, names, checkpoints, args):
        rows = []
        for name in names:
            first, command = [], []
            for _ in range(args.rounds):
                started = self.contestant(name, checkpoints, args)
                first.append(started.info["first_token_seconds"])
                started.close()
                if name in self.ours:
                    command.append(run_command(name, checkpoints, args))
            row = {"name": name, "first_token_seconds": statistics.median(first)}
            if command:
                row["command_seconds"] = statistics.median(one["seconds"] for one in command)
                row["peak_rss_bytes"] = max(one["peak_rss_bytes"] for one in command)
                row["bytes_a_parameter"] = (row["peak_rss_bytes"] - 200e6) / checkpoints.parameters
            rows.append(row)
        return rows

    def run(self, args):
        with tempfile.TemporaryDirectory() as temporary:
            directory = Path(args.directory or temporary)
            directory.mkdir(parents=True, exist_ok=True)
            # In a process of its own: Linux counts what a parent held as the peak of the children that it starts.
            with concurrent.futures.ProcessPoolExecutor(1) as pool:
                checkpoints = pool.submit(self.write_checkpoints, directory, args).result()
            running = {}
            try:
                for name in args.contestants if args.works else []:
                    running[name] = self.contestant(name, checkpoints, args)
                    print(f"{name}: ready", file=sys.stderr)
                rows = self.rows_of(self.measure(running, args))
            finally:
                for one in running.values():
                    one.close()
            starters = [name for name in args.contestants if name not in READS and not args.no_starts]
            starts = self.starts_of(starters, checkpoints, args)
        print(table(rows, starts))
        if args.json:
            parameters = checkpoints.parameters
            json_file.write(args.json, {"arguments": vars(args), "parameters": parameters, "rows": rows, "starts": starts})


def run_command(name, checkpoints, args):
    """`plimsoll` for one token: seconds on the wall, and the most memory that it held."""
    command = [Path(args.build) / "bin" / "plimsoll", *checkpoints.first_token, "--dtype", name, "--threads", args.threads]
    start = time.perf_counter()
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: ended with status {status}")
    return {"seconds": time.perf_counter() - start, "peak_rss_bytes": usage.ru_maxrss * 1024}


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
