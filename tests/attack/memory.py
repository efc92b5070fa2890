"""Training for as long as it is given (300 seconds and more at night): the memory of the process does not grow."""

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import Attack
from runs import LIMIT, train

MINUTES = 1.0

ALLOWED_SHARE, ALLOWED_BYTES = 0.02, 4 << 20  # growth from the second quarter to the last


def resident(process):
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * 4096


def main():
    attack = Attack("looks at the memory of a training run")
    with tempfile.TemporaryDirectory(prefix="plimsoll-memory-") as name:
        out = Path(name) / "run"
        command = train(out, "--steps=1000000000", "--save-every=200", "--keep=2", "--recipe=fp8", "--log-every=1000000")
        process = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        # From its second checkpoint on it does again what it has done before.
        limit = time.monotonic() + LIMIT
        while len(list(out.glob("step-*/manifest.json"))) < 2 and process.poll() is None and time.monotonic() < limit:
            time.sleep(0.05)
        attack.begin()
        sizes = []
        while attack.goes_on(10**9) and process.poll() is None:
            sizes.append(resident(process))
            attack.count += 1
            time.sleep(0.2)
        if process.poll() is not None:
            attack.fail(f"training ended by itself: {process.stderr.read()}")
        process.send_signal(signal.SIGINT)
        process.wait(LIMIT)
        process.stderr.close()
        quarter = len(sizes) // 4
        before, after = max(sizes[quarter : 2 * quarter], default=0), max(sizes[3 * quarter :], default=0)
        if after > before * (1 + ALLOWED_SHARE) + ALLOWED_BYTES:
            attack.fail(f"resident memory grew from {before / 1e6:.1f} to {after / 1e6:.1f} MB")
    return attack.finish()


if __name__ == "__main__":
    sys.exit(main())
