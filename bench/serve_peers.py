"""The servers that serve.py times: `plimsoll serve`, and others with OpenAI's POST /v1/completions, each a process of its own."""

import contextlib
import http.client
import json
import shlex
import socket
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

import generate_checkpoint
import serve_soak
import written

OUT = Path(__file__).resolve().parent.parent / "out"
GGUF = "gguf==0.19.0"


class Server:
    """A process that serves, from its start to its end. model: what its requests ask for; none: what it lists."""

    def __init__(self, words, port, model=None):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
            raise SystemExit(f"{words[0]}: expected port {port} to be free, found a server at it")
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  as long as the process
        self.process = subprocess.Popen([str(word) for word in words], stdout=subprocess.DEVNULL, stderr=self.errors)
        self.name, self.port, self.model = str(words[0]), port, model
        end = time.monotonic() + 120
        while not self.is_ready():
            if time.monotonic() > end:
                self.fail()
            self.expect_running()
            time.sleep(0.1)
        self.expect_running()

    def fail(self):
        self.close()
        self.errors.seek(0)
        said = self.errors.read().decode(errors="replace").strip().splitlines()[-3:]
        raise SystemExit("\n".join([f"{self.name}: expected a server at port {self.port}, found none", *said]))

    def expect_running(self):
        if self.process.poll() is not None:
            self.fail()

    def status(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        with contextlib.closing(connection):
            connection.request("GET", path)
            return connection.getresponse().status

    def is_ready(self):
        try:
            status = self.status("/health")
            return status == 200 or (status == 404 and self.status("/v1/models") == 200)
        except (OSError, http.client.HTTPException):
            return False

    def models(self):
        """Names that requests ask for in turn: of the model and its adapters."""
        if self.model:
            return [self.model]
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1/models", timeout=60) as response:
            return [model["id"] for model in json.load(response)["data"]]

    def peak_bytes(self):
        self.expect_running()
        return serve_soak.bytes_of(self.process.pid, "VmHWM")

    def close(self):
        self.process.terminate()
        self.process.wait()


def gguf_of(args):
    """The file with the model's weights that llama.cpp reads, written unless it is there."""
    file = Path(args.gguf or generate_checkpoint.gguf_folder(args.model, OUT) / "q8_0.gguf")
    try:
        return written.once(file, lambda partial: generate_checkpoint.write_gguf(Path(args.model), partial, "q8_0"))
    except ModuleNotFoundError as error:
        raise SystemExit(f"{file}: expected {error.name} to write it: .venv/bin/pip install {GGUF}") from None


def commands(args, clients):
    """The words that start each server but ours, by its name, all but the port, which is {port}."""
    known = {"threads": args.threads, "model": args.model, "clients": clients, "context": args.prompt + args.tokens + 64}
    given = dict(peer.partition("=")[::2] for peer in args.peer)
    if args.llama_server:
        words = "{llama_server} -m {gguf} --port {port} -np {clients} -c {all_context} -t {threads} -tb {threads}"
        known |= {"llama_server": shlex.quote(args.llama_server), "all_context": known["context"] * clients}
        given = {"llama.cpp": words} | given
    if any("{gguf}" in words for words in given.values()):
        known["gguf"] = gguf_of(args)
    return {name: shlex.split(words.format_map(known | {"port": "{port}"})) for name, words in given.items()}


def start(args, clients):
    """Servers by their names, ours first."""
    ours = [Path(args.build) / "bin" / "plimsoll", "serve", "--model", args.model, "--dtype", args.dtype]
    ours += ["--threads", args.threads, "--port", args.port]
    for adapter in args.adapter:
        ours += ["--adapter", adapter]
    servers = {"plimsoll": Server(ours, args.port)}
    try:
        for place, (name, words) in enumerate(commands(args, clients).items(), 1):
            port = args.port + place
            servers[name] = Server([word.replace("{port}", str(port)) for word in words], port, model=args.model)
    except BaseException:
        for server in servers.values():
            server.close()
        raise
    return servers
