"""Ranks of a run on this machine, as torchrun starts them, but without the seconds that it takes to import torch.

python launched_ranks.py RANKS COMMAND...    exit code: that of the first rank that fails, which ends the others
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time


def words(ranks):
    """Words before a command that start it on so many ranks."""
    return [sys.executable, __file__, str(ranks)]


def environment():
    """For the command: one thread a rank, and this machine's own network."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def rank_environment(rank, ranks, port):
    """The same for one rank, with what torchrun sets."""
    launch = {
        "RANK": rank,
        "WORLD_SIZE": ranks,
        "LOCAL_RANK": rank,
        "LOCAL_WORLD_SIZE": ranks,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    return {**environment(), **{name: str(value) for name, value in launch.items()}}


@contextlib.contextmanager
def reserved_port():
    """A port that nobody else is given meanwhile. Listening at it needs SO_REUSEADDR, as servers set it."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def start(ranks, command, port):
    return [subprocess.Popen(command, env=rank_environment(rank, ranks, port)) for rank in range(ranks)]


def wait(processes):
    """The first exit code that is not 0, or 0 when all have ended."""
    while True:
        codes = [process.poll() for process in processes]
        failed = [code for code in codes if code]
        if failed or None not in codes:
            return failed[0] if failed else 0
        time.sleep(0.01)


def main():
    with reserved_port() as port:
        return run(start(int(sys.argv[1]), sys.argv[2:], port))


def run(processes):
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: [process.send_signal(number) for process in processes])
    code = wait(processes)
    for process in processes:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
