"""The start of `plimsoll serve`, where what cannot be served is told, and its end by a signal."""

import contextlib
import http.client
import json
import re
import signal
import socket

import pytest
import tiny_llama
from program import plimsoll
from served import CONTEXT, serving, streaming, write_tiny


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("tiny"))


def test_sigterm_lets_replies_end(tiny):
    with serving(tiny, "--drain", 600) as served:
        _, response = streaming(served, 1000)
        served.process.send_signal(signal.SIGTERM)
        assert response.read().endswith(b"data: [DONE]\n\n")
        assert served.ended() == 0


def error_in(log):
    (line,) = [line for line in map(json.loads, log.read_text().splitlines()) if line["path"] == "/v1/completions"]
    return line["error"]


def test_a_second_sigterm_ends_replies_at_once(tiny, tmp_path):
    log = tmp_path / "log"
    with serving(tiny, "--drain", 600, "--json", log) as served:
        _, response = streaming(served, CONTEXT - 100)
        served.process.send_signal(signal.SIGTERM)
        assert served.process.stdout.readline() == "stopping\n"
        served.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(http.client.IncompleteRead):
            assert not response.read().endswith(b"data: [DONE]\n\n")
        assert served.ended() == 0
    assert "before the drain ends" in error_in(log)


def test_replies_that_take_longer_than_the_drain_are_cut(tiny, tmp_path):
    with serving(tiny, "--drain", 0, "--json", tmp_path / "log") as served:
        _, response = streaming(served, CONTEXT - 100)
        served.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(http.client.IncompleteRead):
            assert not response.read().endswith(b"data: [DONE]\n\n")
        assert served.ended() == 0
    assert "before the drain ends" in error_in(tmp_path / "log") and "client" not in error_in(tmp_path / "log")


def test_what_cannot_be_served_is_one_line_at_the_start(tiny, tmp_path):
    bare = tmp_path / "without a chat template"
    bare.mkdir()
    tiny_llama.write(bare, end=None, max_position_embeddings=CONTEXT)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for code, options, text in (
            (1, ("--model", bare, "--memory", 1e-6), "expected a memory of"),
            (1, ("--model", bare, "--port", taken.getsockname()[1]), "expected an address that is free"),
            (1, ("--model", tiny, "--port", taken.getsockname()[1]), "expected an address that is free"),
            (1, ("--model", tiny, "--memory", 1e-6), "expected a memory of"),
            (1, ("--model", tiny, "--max-context", CONTEXT + 1), f"expected a max_context of at most the {CONTEXT} tokens that"),
            (1, ("--model", tmp_path), "expected a Hugging Face directory with its config.json, a checkpoint or"),
            (2, ("--model", tmp_path / "nowhere"), "nowhere"),
            (
                1,
                ("--model", tiny, "--host", "nope.invalid"),
                "expected a host, or an address, that this machine knows, got nope.inv",
            ),
            (2, ("--model", tiny, "--max-batch", 0), "--max-batch"),
            (2, ("--model", tiny, "--api-key", ""), "--api-key: expected a key of one character or more, got an empty one"),
            (
                2,
                ("--model", tiny, "--max-context", 1),
                "--max-context: expected 0, or at least 2 for a prompt and its reply, got 1",
            ),
        ):
            result = plimsoll("serve", *options)
            assert result.returncode == code and text in result.stderr and result.stderr.count("\n") == 1, result
    (least,) = re.findall(r"\(([\d.]+) GiB\)", plimsoll("serve", "--model", tiny, "--memory", 1e-6).stderr)
    with serving(tiny, "--memory", least) as served:
        assert served.stop() == 0
