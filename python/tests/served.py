"""A model with random weights, and servers of it in processes of their own."""

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
import tiny_llama
from chat_template_test import TEMPLATES
from program import command_of

openai = pytest.importorskip("openai")

# A reply of so many tokens takes a minute: one that a test ends still runs then, however rarely the test's process is scheduled.
CONTEXT = 40_000
SECONDS = 120  # of a server that hangs
MESSAGES = [{"role": "user", "content": "Hello, who are you?"}]


def write_tiny(folder, **config):
    """A llama with random weights, ChatML and no token that ends a text."""
    specials = ("<|im_start|>", "<|im_end|>")
    config = {"max_position_embeddings": CONTEXT, **config}
    return tiny_llama.write(folder, end=None, specials=specials, template=TEMPLATES["chatml"], **config)


class Served:
    """A server of its own process."""

    def __init__(self, folder, *options, key="any", port=0):
        words = command_of("serve", "--model", folder, "--port", port, "--threads", 2, *options)
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout
        line = self.process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+);", line)
        assert found, line or self.process.communicate()[1]
        self.port = int(found[1])
        self.client = openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key=key, max_retries=0, timeout=SECONDS)

    def ask(self, method, path, body=None, headers=()):
        """Status, headers and body of one request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        with contextlib.closing(connection):
            connection.request(method, path, body, dict(headers))
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()

    def metrics(self):
        return self.ask("GET", "/metrics")[2].decode()

    def metric(self, name):
        (value,) = re.findall(rf"^plimsoll_{name} (\d+)$", self.metrics(), re.MULTILINE)
        return int(value)

    def wait_until_idle(self):
        """No request runs and none is in the queue, both of one reply: a request that was just taken is in the queue first."""
        end = time.monotonic() + SECONDS
        while not re.search(r"^plimsoll_requests_running 0$(?s:.*)^plimsoll_requests_waiting 0$", self.metrics(), re.MULTILINE):
            assert time.monotonic() < end, self.metrics()
            time.sleep(0.01)

    def wait_for(self, name, value):
        end = time.monotonic() + SECONDS
        while self.metric(name) != value:
            assert time.monotonic() < end, f"{name} is {self.metric(name)}"
            time.sleep(0.01)

    @property
    def has_sanitizer(self):
        return "asan" in os.environ.get("LD_PRELOAD", "")

    def open_files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def bytes_of(self, name):
        """VmRSS, what the process holds in memory now, or VmHWM, the most that it has held."""
        (kilobytes,) = re.findall(rf"^{name}:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text(), re.MULTILINE)
        return 1024 * int(kilobytes)

    def stop(self):
        """The exit code after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def ended(self):
        _, errors = self.process.communicate(timeout=SECONDS)
        assert not errors, errors
        return self.process.returncode


@contextlib.contextmanager
def serving(*words, **options):
    served = Served(*words, **options)
    try:
        yield served
    finally:
        if served.process.poll() is None:
            served.process.kill()
            served.process.communicate()


def streaming(server, tokens):
    """A connection that has begun to read a stream."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    body = {"prompt": "a", "max_tokens": tokens, "stream": True, "temperature": 0}
    connection.request("POST", "/v1/completions", json.dumps(body))
    response = connection.getresponse()
    assert response.status == 200
    assert response.readline().startswith(b"data: ")
    return connection, response
