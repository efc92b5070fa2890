"""A process under test: it waits on its standard input, so that only one runs at a time and each has its own memory settings."""

import json
import os
import subprocess

# glibc keeps large blocks instead of returning them to the system after each operator; torch backs them with huge pages.
TUNED = {
    "THP_MEM_ALLOC_ENABLE": "1",
    "GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=8589934592:glibc.malloc.top_pad=268435456",
}


class Contestant:
    """Prints one JSON object when it is ready (`info`), and one for each line that it is asked.

    wait=False: the first object is receive()d by the caller."""

    def __init__(self, name, command, environment=None, wait=True):
        self.name = name
        environment = {**os.environ, **(environment or {})}
        self.process = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.input, self.output = self.process.stdin, self.process.stdout
        if wait:
            self.info = self.receive()

    def ask(self, line):
        self.send(line)
        return self.receive()

    def send(self, line):
        self.input.write(line + "\n")
        self.input.flush()

    def close(self):
        self.input.close()
        self.process.wait()

    def receive(self):
        line = self.output.readline()
        if not line:
            raise SystemExit(f"'{self.name}' ended with exit code {self.process.wait()}")
        return json.loads(line)
