"""Times `plimsoll serve` and llama.cpp's server under 1, 4, 16 and 64 clients, in turn.

    .venv/bin/python bench/serve.py [--clients 1,4,16,64] [--rounds 3] [--dtype fp8] [--response-format JSON]
        [--adapter DIR]... [--llama-server PATH --gguf FILE] [--json FILE]
    .venv/bin/python bench/serve.py --soak SECONDS [--clients 16] [--adapter DIR]... [--json FILE]

Each client sends requests one after another, `--requests` of them: a prompt of `--prompt` words, no two alike, and `--tokens` tokens
of a reply, the likeliest each time, as a stream. Prints, of each server and number of clients: tokens a second of all together, the
time to the first token and between two tokens (median and 99 %) in ms, and the most memory that the server has held. --llama-server
names llama.cpp's program, and --gguf its file of the same weights: .venv/bin/python bench/generate.py --directory out/gguf writes one.
With --adapter, LoRA adapters of the model, the clients ask for the model and for each adapter in turn.

--soak sends mixed traffic instead and prints, each minute, what `plimsoll serve` holds: resident memory and open files.
"""

import argparse
import http.client
import json
import os
import random
import re
import statistics
import subprocess
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import json_file
import serve_soak

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("PLIMSOLL_CACHE", "~/.cache/plimsoll")).expanduser()


class Server:
    """A process that serves, from its start to its end."""

    def __init__(self, words, port):
        self.process = subprocess.Popen([str(word) for word in words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.port = port
        end = time.monotonic() + 120
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"{words[0]}: expected a server at port {port}, found none")
            time.sleep(0.1)

    def is_ready(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def models(self):
        """Names of the model and its adapters."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1/models", timeout=60) as response:
            return [model["id"] for model in json.load(response)["data"]]

    def peak_bytes(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (kilobytes,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
        return 1024 * int(kilobytes)

    def close(self):
        self.process.terminate()
        self.process.wait()


def stream(port, body):
    """Times at which the pieces of a reply came, the first being that of the request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    times = [time.perf_counter()]
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(f"port {port}: expected a stream, got {response.status}: {response.read().decode()}")
    for line in response:
        if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["text"]:
            times.append(time.perf_counter())
    connection.close()
    return times


def measure(server, clients, args, seed):
    words = [f"word{number}" for number in range(1000)]
    models = server.models()

    def run(client, found):
        draw = random.Random(f"{seed} {client}")
        model = models[client % len(models)]
        for _ in range(args.requests):
            prompt = " ".join(draw.choices(words, k=args.prompt))
            body = {"model": model, "prompt": prompt, "max_tokens": args.tokens, "temperature": 0, "stream": True}
            if args.response_format:
                body["response_format"] = json.loads(args.response_format)
            found.append(stream(server.port, body))

    found: list[list[list[float]]] = [[] for _ in range(clients)]
    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(found)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    replies = [times for of_client in found for times in of_client]
    between = [later - earlier for times in replies for earlier, later in zip(times[1:], times[2:], strict=False)]
    return {
        "tokens_a_second": clients * args.requests * args.tokens / seconds,
        "first_token": [times[1] - times[0] for times in replies],
        "between_tokens": between,
    }


def percentile(values, share):
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--clients", default="1,4,16,64")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=2, help="of each client in a round")
    parser.add_argument("--prompt", type=int, default=20, help="words")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="fp8")
    parser.add_argument("--model", default=str(CACHE / "models" / "SmolLM2-135M-Instruct"))
    parser.add_argument("--adapter", action="append", default=[], help="of plimsoll serve; may be given several times")
    parser.add_argument("--response-format", help="of each request, as JSON")
    parser.add_argument("--build", default=str(ROOT / "build"))
    parser.add_argument("--port", type=int, default=18431)
    parser.add_argument("--llama-server")
    parser.add_argument("--gguf")
    parser.add_argument("--soak", type=float, help="seconds of mixed traffic to plimsoll serve alone, from the most clients")
    parser.add_argument("--json", help="write the figures to this file")
    args = parser.parse_args()
    counts = [int(count) for count in args.clients.split(",")]
    program = Path(args.build) / "bin" / "plimsoll"
    commands = {
        "plimsoll": [
            program,
            "serve",
            "--model",
            args.model,
            "--dtype",
            args.dtype,
            "--port",
            args.port,
            "--threads",
            args.threads,
        ]
    }
    for adapter in args.adapter:
        commands["plimsoll"] += ["--adapter", adapter]
    if args.soak:
        server = Server(commands["plimsoll"], args.port)
        try:
            minutes = serve_soak.soak(server, args.soak, max(counts))
        finally:
            server.close()
        if args.json:
            json_file.write(args.json, {"arguments": vars(args), "minutes": minutes})
        return
    if args.llama_server:
        most = max(counts)
        commands["llama.cpp"] = [args.llama_server, "-m", args.gguf, "--port", args.port + 1, "-np", most, "-c", 1024 * most]
        commands["llama.cpp"] += ["-t", args.threads, "-tb", args.threads]
    servers = {name: Server(words, args.port + place) for place, (name, words) in enumerate(commands.items())}
    rows: dict[tuple[str, int], list[dict[str, Any]]] = {}
    try:
        for server in servers.values():
            measure(server, 1, args, "warm-up")
        for number in range(args.rounds):
            for clients in counts:
                for name, server in servers.items():
                    rows.setdefault((name, clients), []).append(measure(server, clients, args, f"{number} {clients}"))
        peaks = {name: server.peak_bytes() for name, server in servers.items()}
    finally:
        for server in servers.values():
            server.close()
    print(f"{'server':12}{'clients':>8}{'tokens/s':>10}{'first ms':>10}{'99 %':>9}{'between ms':>12}{'99 %':>9}{'peak MB':>9}")
    for (name, clients), found in rows.items():
        speed = statistics.median(one["tokens_a_second"] for one in found)
        times = [[1e3 * value for one in found for value in one[key]] for key in ("first_token", "between_tokens")]
        cells = [f"{percentile(values, share):.1f}" for values in times for share in (0.5, 0.99)]
        print(f"{name:12}{clients:8}{speed:10.1f}{cells[0]:>10}{cells[1]:>9}{cells[2]:>12}{cells[3]:>9}{peaks[name] / 1e6:9.0f}")
    if args.json:
        table = [{"server": name, "clients": clients, "rounds": found} for (name, clients), found in rows.items()]
        json_file.write(args.json, {"arguments": vars(args), "rows": table, "peak_bytes": peaks})


if __name__ == "__main__":
    main()
