"""A model with random weights, and servers of it in processes of their own."""

import contextlib
import http.client
import re
import signal
import subprocess
import time

import pytest
import tiny_llama
from chat_template_test import TEMPLATES
from program import command_of

openai = pytest.importorskip("openai")

CONTEXT = 2000
MESSAGES = [{"role": "user", "content": "Hello, who are you?"}]


def write_tiny(folder):
    """A llama with random weights, ChatML and no token that ends a text."""
    return tiny_llama.write(
        folder, end=None, specials=("<|im_start|>", "<|im_end|>"), template=TEMPLATES["chatml"], max_position_embeddings=CONTEXT
    )


class Served:
    """A server of its own process."""

    def __init__(self, folder, *options, key="any"):
        words = command_of("serve", "--model", folder, "--port", 0, "--threads", 2, *options)
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout
        line = self.process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+);", line)
        assert found, line or self.process.communicate()[1]
        self.port = int(found[1])
        self.client = openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key=key, max_retries=0, timeout=60)

    def ask(self, method, path, body=None, headers=()):
        """Status, headers and body of one request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, body, dict(headers))
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()

    def metric(self, name):
        _, _, text = self.ask("GET", "/metrics")
        (value,) = re.findall(rf"^plimsoll_{name} (\d+)$", text.decode(), re.MULTILINE)
        return int(value)

    def wait_for(self, name, value):
        end = time.monotonic() + 30
        while self.metric(name) != value:
            assert time.monotonic() < end, f"{name} is {self.metric(name)}"
            time.sleep(0.01)

    def stop(self):
        """The exit code after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def ended(self):
        _, errors = self.process.communicate(timeout=60)
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
