"""A hundred thousand damaged files, read in process: configs, safetensors, indices, tokenizers, checkpoints, texts, questions and logs
by the library (attack_files), logs and results by Python's report. A crash, a case of more than a minute, and an error that is none of
ours or not one line are failures."""

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from common import BUILD, Attack, use_library
from damage import damage_bytes, damage_json

MINUTES = 2.5
COUNT = 100_000  # by the library
WORKERS = 2
BATCH = 5_000
GRACE = 90.0  # seconds beyond a batch's time, in which the program ends itself where it hangs
REPORTS = 4_000  # by Python's report, besides
PAGE_EVERY = 50  # one of so many is drawn, too

LOG = [
    {"step": 1, "loss": 3.5, "slots": {"a.input": {"format": "e4m3", "amax": 1.0, "scale": 0.5, "headroom_bits": 3.0}}},
    {"step": 2, "loss": 3.25, "val_loss": 3.0, "tokens_per_second": 100.0, "loss_scale": 1024.0},
    {"recipe": "fp8", "final_val_loss": 3.0, "steps": 2, "parameters": 10},
]
PARITY = {
    "dtypes": {
        "fp32": {"logits_kl": 0.0, "headroom_fp16": {"encoder": 3.5}},
        "fp16": {"first_non_finite": None, "headroom": {"encoder": 1.0}},
    }
}
CERTIFICATE = {
    "values": [{"name": "x", "headroom_bits_before": 1.0, "headroom_bits": 4.0}],
    "exponents": {"residual": -2},
    "fp32": {"bit_identical": True},
    "fp16": {"encoder_relative_l2": 0.01},
}


class Library(threading.Thread):
    """Runs attack_files, batch after batch, in a folder of its own; goes on behind a case that ended it."""

    def __init__(self, attack, worker, count):
        super().__init__()
        self.attack, self.count = attack, count
        self.seed = attack.seed * WORKERS + worker
        self.done = 0
        self.failures = []

    def run(self):
        memory = Path("/dev/shm")
        try:
            with tempfile.TemporaryDirectory(prefix="plimsoll-attack-", dir=memory if memory.is_dir() else None) as folder:
                while self.done < self.count and self.attack.seconds_left() > 0:
                    self.run_batch(folder, min(BATCH, self.count - self.done))
        except Exception as error:  # which would end the thread alone
            self.failures.append(f"behind case {self.done}: {type(error).__name__}: {error}")
        if self.done == 0 and not self.failures:
            self.failures.append("expected one file or more to be read within the time, got none")

    def run_batch(self, folder, count):
        seconds = self.attack.seconds_left()
        words = [BUILD / "bin" / "attack_files", folder, self.seed, self.done, count, f"{seconds:.1f}"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        try:
            ended = subprocess.run(
                [str(word) for word in words],
                capture_output=True,
                text=True,
                errors="replace",
                env=environment,
                check=False,
                timeout=seconds + GRACE,
            )
            output, how = ended.stdout, f"ended with {ended.returncode}: {ended.stderr[-300:]}"
        except subprocess.TimeoutExpired as late:
            output, how = (late.stdout or b"").decode(errors="replace"), "did not end"
        self.failures += re.findall(r"^failed: (.*)", output, re.MULTILINE)
        if found := re.search(r"^done: (\d+)$", output, re.MULTILINE):
            self.done = int(found[1])
            return
        case = Path(folder) / "case"
        number, _, kind = (case.read_text() if case.exists() else f"{self.done} before the first").partition(" ")
        self.failures.append(f"{number} {kind}: the process {how} (attack_files FOLDER {self.seed} {number} 1 60)")
        self.done = int(number) + 1


def strike_report(attack, folder):
    """One damaged log or result, read as `python -m plimsoll report` reads it. Returns what is wrong, or None."""
    import plimsoll
    from plimsoll.report.checkpoints import read_checkpoint
    from plimsoll.report.runs import read_runs

    kind = attack.random.randrange(4)
    file = Path(folder) / ("train.jsonl" if kind < 2 else "parity.json" if kind == 2 else "plimsoll_gauge.json")
    document = LOG if kind < 2 else PARITY if kind == 2 else CERTIFICATE
    if attack.random.randrange(3) > 0:
        document = damage_json(attack.random, document)
    lines = document if kind < 2 and isinstance(document, list) else [document]
    text = "\n".join(json.dumps(line) for line in lines).encode("utf-8", "replace")
    file.write_bytes(damage_bytes(attack.random, text) if attack.random.randrange(3) == 0 else text)
    try:
        if attack.random.randrange(PAGE_EVERY) == 0:
            plimsoll.report(file, Path(folder) / "page.html")
        elif kind < 2:
            read_runs(file)
        elif found := read_checkpoint(file):
            found.html()
    except (ValueError, FileNotFoundError) as error:
        return None if "expected" in str(error) and "\n" not in str(error) else f"report: {error!r} from {file.read_bytes()!r}"
    except Exception as error:
        return f"report: {error!r} from {file.read_bytes()!r}"
    return None


def main():
    attack = Attack("hostile files in process")
    use_library()
    workers = [Library(attack, worker, COUNT // WORKERS) for worker in range(WORKERS)]
    for worker in workers:
        worker.start()
    with tempfile.TemporaryDirectory(prefix="plimsoll-attack-") as folder:
        while attack.goes_on(REPORTS):
            attack.count += 1
            if wrong := strike_report(attack, folder):
                attack.fail(wrong)
    for worker in workers:
        worker.join()
        attack.count += worker.done
        for failure in worker.failures:
            attack.fail(failure)
    return attack.finish()


if __name__ == "__main__":
    sys.exit(main())
