"""serve.py on a tiny model: servers in turn, what it reads of a stream, prompts of so many tokens, and the file for llama.cpp."""

import argparse
import contextlib
import http.server
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import generate_checkpoint
import pytest
import serve
import serve_peers
from generate_contestants_test import TINY as TINY_LLAMA

BENCH = Path(__file__).resolve().parent
TINY = TINY_LLAMA | {"vocab_size": 259}  # each token but three has a text
BUILD = Path(os.environ.get("PLIMSOLL_BUILD", BENCH.parent / "build"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tiny")
    generate_checkpoint.write_random(directory, **TINY)
    return directory


@pytest.fixture
def port():
    """The first of two ports in a row that nobody else is given meanwhile."""
    for first in range(18700, 32000, 2):
        with contextlib.ExitStack() as stack:
            held = [stack.enter_context(socket.socket()) for _ in range(2)]
            try:
                for more, each in enumerate(held):
                    each.bind(("127.0.0.1", first + more))
            except OSError:
                continue
            for each in held:  # for the servers, which set it before they listen there
                each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            yield first
            return


def test_servers_answer_in_turn(tiny, tmp_path, port):
    again = f"again={BUILD}/bin/plimsoll serve --model {{model}} --port {{port}} --threads {{threads}} --max-batch {{clients}}"
    command = [sys.executable, BENCH / "serve.py", "--model", tiny, "--build", BUILD, "--clients", "1,3", "--rounds", "1"]
    command += ["--prompt", "30", "--tokens", "8", "--threads", "1", "--port", port, "--peer", again]
    command += ["--json", tmp_path / "rows"]
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    document = json.loads((tmp_path / "rows").read_text())
    assert [(row["server"], row["clients"]) for row in document["rows"]] == [
        (name, clients) for clients in (1, 3) for name in ("plimsoll", "again")
    ]
    for row in document["rows"]:
        (found,) = row["rounds"]
        assert len(found["first_token"]) == len(found["tokens"]) == 2 * row["clients"]
        assert all(1 <= tokens <= 8 for tokens in found["tokens"]) and found["tokens_a_second"] > 0
    assert result.stdout.count("again") == 2 and set(document["peak_bytes"]) == {"plimsoll", "again"}


def test_a_peer_that_does_not_start_is_one_error(tiny, port):
    command = [
        sys.executable,
        BENCH / "serve.py",
        "--model",
        tiny,
        "--build",
        BUILD,
        "--port",
        port,
        "--peer",
        "none=false {port}",
    ]
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert result.returncode == 1 and f"false: expected a server at port {port + 1}, found none" in result.stderr


@contextlib.contextmanager
def healthy(port):
    """A server that some other run left at `port`."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", port), Handler) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        try:
            yield other.server_port
        finally:
            other.shutdown()
            thread.join()


def test_a_server_left_at_the_port_is_one_error():
    with healthy(0) as port, pytest.raises(SystemExit, match=f"sleep: expected port {port} to be free, found a server at it"):
        serve_peers.Server(["sleep", "60"], port).close()


def test_a_server_that_ended_has_no_peak(port):
    with healthy(port), tempfile.TemporaryFile() as errors:
        server = object.__new__(serve_peers.Server)
        server.name, server.port, server.errors = "true", port, errors
        server.process = subprocess.Popen(["true"])
        server.process.wait()
        with pytest.raises(SystemExit, match=f"true: expected a server at port {port}, found none"):
            server.peak_bytes()


def test_the_file_for_llama_cpp_is_of_this_model(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(serve_peers, "OUT", tmp_path / "out")
    monkeypatch.setattr(generate_checkpoint, "write_gguf", lambda model, file, kind: file.write_text(str(model)))
    other = tmp_path / tiny.name
    generate_checkpoint.write_random(other, **TINY)
    for model in (tiny, other, tiny):
        assert serve_peers.gguf_of(argparse.Namespace(gguf=None, model=str(model))).read_text() == str(model)


EVENTS: list[dict[str, Any]] = [
    {"choices": [{"text": ""}], "usage": None},
    {"choices": [{"text": "a"}]},
    {"choices": [{"text": "bc"}]},
    {"choices": [{"text": "", "finish_reason": "stop"}]},
    {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}},
]


def test_tokens_are_those_of_the_usage_and_pieces_those_with_text():
    told: list[list[dict[str, Any]]] = [EVENTS]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_response(200)
            self.end_headers()
            lines = [f"data: {json.dumps(event)}\n\n" for event in told[0]]
            self.wfile.write(("".join(lines) + ": a comment\n\ndata: [DONE]\n\n").encode())

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as peer:
        thread = threading.Thread(target=peer.serve_forever)
        thread.start()
        try:
            reply = serve.stream(peer.server_port, {})
            assert (reply.prompt_tokens, reply.tokens, len(reply.times)) == (7, 3, 3)
            told[0] = EVENTS[:-1]
            with pytest.raises(SystemExit, match="expected a reply with its usage"):
                serve.stream(peer.server_port, {})
            told[0] = [{"error": {"message": "no"}}]
            with pytest.raises(SystemExit, match="expected a piece of a reply"):
                serve.stream(peer.server_port, {})
        finally:
            peer.shutdown()
            thread.join()


def test_prompts_have_so_many_tokens(tiny):
    prompts = serve.Prompts(tiny, 50)
    texts = {prompts.draw(random.Random(seed)) for seed in range(20)}
    assert len(texts) == 20 and {prompts.count(text) for text in texts} == {50}


def test_the_file_for_llama_cpp_has_the_tokenizer(tiny, tmp_path):
    gguf = pytest.importorskip("gguf")
    generate_checkpoint.write_gguf(tiny, tmp_path / "model.gguf", "q8_0")
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    value = lambda name: reader.get_field(f"tokenizer.ggml.{name}").contents()
    vocabulary = json.loads((tiny / "tokenizer.json").read_text())["model"]["vocab"]
    tokens = value("tokens")
    assert len(tokens) == TINY["vocab_size"] and all(tokens[place] == token for token, place in vocabulary.items())
    assert value("model") == "gpt2" and value("pre") == "gpt-2" and value("eos_token_id") == 2 and value("add_bos_token") is False
    kinds = value("token_type")
    assert {kinds[place] for place in vocabulary.values()} == {gguf.TokenType.NORMAL} and kinds[0] == gguf.TokenType.UNUSED


def test_llama_cpps_names_of_tokenizers():
    byte_level = {"type": "ByteLevel", "use_regex": True}
    digits = {"type": "Digits", "individual_digits": True}
    sequence = lambda *steps: {"pre_tokenizer": {"type": "Sequence", "pretokenizers": list(steps)}}
    assert generate_checkpoint.pre_tokenizer_of(sequence(digits, byte_level)) == "smollm"
    assert generate_checkpoint.pre_tokenizer_of({"pre_tokenizer": byte_level}) == "gpt-2"
    for other in (
        {"pre_tokenizer": None},
        {},
        sequence({"type": "Split"}, byte_level | {"use_regex": False}),
        {"pre_tokenizer": digits},
    ):
        assert generate_checkpoint.pre_tokenizer_of(other) is None
