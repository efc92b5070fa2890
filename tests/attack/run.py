"""Runs every attack of this folder, each with its share of the time, two at a time: those that strike processes mostly wait.

    .venv/bin/python tests/attack/run.py [--seconds 1200] [--seed 1] [--out docs/results] [NAME...]

Prints each attack's summary line and writes attack.json and attack.md into --out; exit code 1 if an attack failed. With NAMEs it
runs these alone, and writes only where --out says so.
"""

import argparse
import datetime
import json
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from common import PROGRAM, ROOT, library_environment, run_program

FOLDER = Path(__file__).resolve().parent
LANES = 2  # attacks at a time
GRACE = 60.0  # seconds beyond its share after which an attack is ended


def attacks():
    """{name: minutes} of the programs beside this one."""
    found = {}
    for path in sorted(FOLDER.glob("*.py")):
        text = path.read_text()
        if path.name == Path(__file__).name or "\nif __name__ ==" not in text:
            continue
        minutes = re.search(r"^MINUTES = ([0-9.]+)", text, re.MULTILINE)
        found[path.stem] = float(minutes[1]) if minutes else 1.0
    return found


def shares(minutes, seconds):
    """{name: seconds}: what each asks for, or less where all together ask for more than there is."""
    lanes = min(LANES, len(minutes))
    factor = min(1.0, lanes * seconds / (60 * sum(minutes.values())), seconds / (60 * max(minutes.values())))
    return {name: 60 * asked * factor for name, asked in minutes.items()}


def run_attack(name, seconds, seed):
    """The attack's result; one that ends without any has failed."""
    with tempfile.TemporaryDirectory(prefix="plimsoll-attack-") as folder:
        file = Path(folder) / "result.json"
        command = [sys.executable, FOLDER / f"{name}.py", "--seconds", f"{seconds:.1f}", "--seed", seed, "--json", file]
        outcome = run_program(command, seconds + GRACE, cwd=folder, env=library_environment())
        try:
            result = json.loads(file.read_text())
        except (OSError, ValueError):
            how = f"ended after {outcome.seconds:.0f} s without a result, exit code {outcome.exit_code}\n{outcome.error[-1500:]}"
            print(f"{name}: {how}", flush=True)
            return {"attack": name, "what": "", "count": 0, "failures": [how], "seconds": round(outcome.seconds, 1)}
        print(outcome.output, end="", flush=True)
        if outcome.exit_code != 0 and not result["failures"]:
            result["failures"] = [f"exit code {outcome.exit_code}\n{outcome.error[-1500:]}"]
        result["failures"] = [without_root(failure) for failure in result["failures"]]
        return result


def without_root(text):
    """The text with paths inside of the project as they are there, cut off on the left or not."""
    return text.replace(f"{ROOT}/", "").replace(f"{str(ROOT)[1:]}/", "")


def first_line(command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def machine():
    """The processor and its instruction sets as the program sees them: those in force, and those there are."""
    rows = dict(line.split(maxsplit=1) for line in first_line([PROGRAM, "info"]).splitlines() if len(line.split()) > 1)
    return {"cpu": rows.get("CPU", "unknown"), "isa": rows.get("ISA", "unknown"), "threads": rows.get("threads", "unknown")}


def page(report):
    """The report as Markdown."""
    lines = [
        "# The last run of `make attack`",
        "",
        f"{report['date']}, commit {report['commit']}, {report['cpu']} ({report['isa']}, {report['threads']} threads), seed {report['seed']}.",
        "An attack counts what it tried and fails on crashes, hangs and whatever else its first lines forbid.",
        "",
        "| attack | what | count | failures | seconds |",
        "|---|---|---|---|---|",
    ]
    for result in report["attacks"]:
        lines.append(
            f"| {result['attack']} | {result['what']} | {result['count']} | {len(result['failures'])} | {result['seconds']} |"
        )
    for result in report["attacks"]:
        if result["failures"]:
            lines += ["", f"## What failed in {result['attack']}", ""]
            lines += ["    " + line for failure in result["failures"] for line in failure.splitlines()]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=1200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    minutes = attacks()
    unknown = [name for name in options.names if name not in minutes]
    if unknown:
        parser.error(f"expected names among {', '.join(minutes)}, got {', '.join(unknown)}")
    if not PROGRAM.is_file():
        parser.error(f"expected the program {PROGRAM}, found none (make attack builds it, or set PLIMSOLL_BUILD)")
    if not minutes:
        parser.error(f"expected an attack in {FOLDER}, found none")
    chosen = {name: minutes[name] for name in options.names or minutes}
    longest_first = sorted(shares(chosen, options.seconds).items(), key=lambda item: -item[1])
    with ThreadPoolExecutor(LANES) as lanes:
        results = list(lanes.map(lambda item: run_attack(item[0], item[1], options.seed), longest_first))
    report = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "commit": first_line(["git", "describe", "--always", "--dirty", "--abbrev=12"]),
        **machine(),
        "seed": options.seed,
        "attacks": results,
    }
    out = options.out or (None if options.names else ROOT / "docs" / "results")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "attack.json").write_text(json.dumps(report, indent=1) + "\n")
        (out / "attack.md").write_text(page(report))
    failed = [result["attack"] for result in results if result["failures"]]
    print(f"{len(results)} attacks, {sum(result['count'] for result in results)} cases; failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
