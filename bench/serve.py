"""Times `plimsoll serve` and other servers under 1, 4, 16 and 64 clients, in turn.

    .venv/bin/python bench/serve.py [--clients 1,4,16,64] [--rounds 3] [--prompt 20] [--tokens 64] [--dtype fp8] [--response-format JSON]
        [--adapter DIR]... [--llama-server PROGRAM [--gguf FILE]] [--peer NAME=COMMAND]... [--json FILE]
    .venv/bin/python bench/serve.py --soak SECONDS [--clients 16] [--adapter DIR]... [--json FILE]

Each client sends requests one after another, `--requests` of them: a prompt of `--prompt` tokens, no two alike, and `--tokens` tokens
of a reply, the likeliest each time, as a stream. Prints, of each server and number of clients: tokens a second of all together, as the
servers count them, the time to the first token and between two tokens (median and 99 %) in ms, and the most memory that the server has
held. With --adapter, LoRA adapters of the model, the clients ask for the model and for each adapter in turn.

--llama-server names llama.cpp's program llama-server. It reads the same weights as Q8_0 from --gguf, by default a file in out/ for
this model's files, which is written when it is not there, with the model's tokenizer (.venv/bin/pip install gguf==0.19.0). --peer
starts any other server with POST /v1/completions; {model}, {gguf}, {port}, {threads}, {clients} and {context} stand for this run's:

    --peer 'transformers=VENV/bin/transformers serve {model} --port {port} --continuous-batching --device cpu'
    --peer 'llama-cpp-python=VENV/bin/python -m llama_cpp.server --model {gguf} --port {port} --n_threads {threads}'

--soak sends mixed traffic to `plimsoll serve` alone and prints, each minute, what it holds: resident memory and open files.
"""

import argparse
import contextlib
import http.client
import json
import os
import random
import statistics
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import json_file
import serve_peers
import serve_soak

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("PLIMSOLL_CACHE", "~/.cache/plimsoll")).expanduser()


class Reply(NamedTuple):
    times: list[float]  # at which its pieces came, the first being that of the request
    prompt_tokens: int  # as the server counts them
    tokens: int


class Prompts:
    """Texts of so many tokens."""

    def __init__(self, directory, tokens):
        import tokenizers

        self.tokenizer = tokenizers.Tokenizer.from_file(str(Path(directory) / "tokenizer.json"))
        vocabulary = sorted(self.tokenizer.get_vocab().items(), key=lambda pair: pair[1])
        texts = [self.tokenizer.decode([token]) for _, token in vocabulary]
        words = [text for text in texts if text[:1] == " " and text[1:].isascii() and text[1:].isalpha() and text.islower()]
        self.words = words[:1000] if len(words) >= 100 else [text for text in texts if text.isascii() and text.isalpha()]
        self.tokens = tokens

    def count(self, text):
        return len(self.tokenizer.encode(text).ids)

    def draw(self, random):
        text = "".join(random.choices(self.words, k=self.tokens - self.count("")))
        if (found := self.count(text)) != self.tokens:
            raise SystemExit(
                f"serve: expected words that are tokens in {len(text)} characters, got {found} tokens for {self.tokens}"
            )
        return text


def stream(port, body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    with contextlib.closing(connection):
        times, usage = [time.perf_counter()], None
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise SystemExit(f"port {port}: expected a stream, got {response.status}: {response.read().decode()}")
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "choices" not in event:
                raise SystemExit(f"port {port}: expected a piece of a reply, got {line.decode()}")
            if any(choice.get("text") for choice in event["choices"]):
                times.append(time.perf_counter())
            usage = event.get("usage") or usage
    if usage is None:
        raise SystemExit(f"port {port}: expected a reply with its usage, got {len(times) - 1} pieces")
    if len(times) == 1:  # of tokens without a text
        times.append(time.perf_counter())
    return Reply(times, usage["prompt_tokens"], usage["completion_tokens"])


def measure(server, clients, args, seed):
    prompts, models = args.prompts, server.models()
    failures: list[BaseException] = []

    def run(client, found):
        draw = random.Random(f"{seed} {client}")
        model = models[client % len(models)]
        try:
            for _ in range(args.requests):
                body = {"model": model, "prompt": prompts.draw(draw), "max_tokens": args.tokens, "temperature": 0, "stream": True}
                body["stream_options"] = {"include_usage": True}
                if args.response_format:
                    body["response_format"] = json.loads(args.response_format)
                found.append(stream(server.port, body))
        except BaseException as error:
            failures.append(error)

    found: list[list[Reply]] = [[] for _ in range(clients)]
    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(found)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    if failures:
        raise failures[0]
    replies = [reply for of_client in found for reply in of_client]
    if wrong := {reply.prompt_tokens for reply in replies} - {args.prompt}:
        raise SystemExit(f"port {server.port}: expected prompts of {args.prompt} tokens, got {wrong}: another tokenizer")
    between = [later - earlier for reply in replies for earlier, later in zip(reply.times[1:], reply.times[2:], strict=False)]
    return {
        "tokens_a_second": sum(reply.tokens for reply in replies) / seconds,
        "tokens": [reply.tokens for reply in replies],
        "first_token": [reply.times[1] - reply.times[0] for reply in replies],
        "between_tokens": between,
    }


def percentile(values, share):
    return sorted(values)[min(int(share * len(values)), len(values) - 1)] if values else float("nan")


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--clients", default="1,4,16,64")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=2, help="of each client in a round")
    parser.add_argument("--prompt", type=int, default=20, help="tokens")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="fp8")
    parser.add_argument("--model", default=str(CACHE / "models" / "SmolLM2-135M-Instruct"))
    parser.add_argument("--adapter", action="append", default=[], help="of plimsoll serve; may be given several times")
    parser.add_argument("--response-format", help="of each request, as JSON")
    parser.add_argument("--build", default=str(ROOT / "build"))
    parser.add_argument("--port", type=int, default=18431, help="of plimsoll serve; each peer has the next")
    parser.add_argument("--llama-server", help="llama.cpp's program")
    parser.add_argument("--gguf", help="the weights for llama.cpp; written if it is not there")
    parser.add_argument(
        "--peer", action="append", default=[], metavar="NAME=COMMAND", help="another server; may be given several times"
    )
    parser.add_argument("--soak", type=float, help="seconds of mixed traffic to plimsoll serve alone, from the most clients")
    parser.add_argument("--json", help="write the figures to this file")
    args = parser.parse_args()
    counts = [int(count) for count in args.clients.split(",")]
    arguments = dict(vars(args))
    if args.soak:
        args.peer, args.llama_server = [], None
        server = serve_peers.start(args, max(counts))["plimsoll"]
        try:
            minutes = serve_soak.soak(server, args.soak, max(counts))
        finally:
            server.close()
        if args.json:
            json_file.write(args.json, {"arguments": arguments, "minutes": minutes})
        return
    args.prompts = Prompts(args.model, args.prompt)
    servers = serve_peers.start(args, max(counts))
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
    print(f"{'server':18}{'clients':>8}{'tokens/s':>10}{'first ms':>10}{'99 %':>9}{'between ms':>12}{'99 %':>9}{'peak MB':>9}")
    for (name, clients), found in rows.items():
        speed = statistics.median(one["tokens_a_second"] for one in found)
        times = [[1e3 * value for one in found for value in one[key]] for key in ("first_token", "between_tokens")]
        cells = [f"{percentile(values, share):.1f}" for values in times for share in (0.5, 0.99)]
        print(f"{name:18}{clients:8}{speed:10.1f}{cells[0]:>10}{cells[1]:>9}{cells[2]:>12}{cells[3]:>9}{peaks[name] / 1e6:9.0f}")
    if args.json:
        table = [{"server": name, "clients": clients, "rounds": found} for (name, clients), found in rows.items()]
        json_file.write(args.json, {"arguments": arguments, "rows": table, "peak_bytes": peaks})


if __name__ == "__main__":
    main()
