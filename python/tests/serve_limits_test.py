"""`plimsoll serve` at the limits of its documentation: schemas of many ways, bodies, connections and numbers of choices."""

import contextlib
import json
import resource
import select
import socket
import time
from typing import Any

import pytest
from served import MESSAGES, serving, write_tiny

# Bytes of address space, which keep a fault from filling the machine. Sanitizers map terabytes.
ADDRESS_SPACE = 6_000_000 << 10
REQUEST_SECONDS = 30  # in which a request must have come whole if there is a thread for everybody


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def server(tiny):
    with serving(tiny, "--max-context", 2000) as served:
        _, hard = resource.prlimit(served.process.pid, resource.RLIMIT_AS)
        if not served.has_sanitizer:
            resource.prlimit(served.process.pid, resource.RLIMIT_AS, (ADDRESS_SPACE, hard))
        yield served
        assert served.stop() == 0


def ask_json(server, schema):
    """Status and answer of a chat whose reply has to be of the schema."""
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    body = {"messages": MESSAGES, "max_tokens": 100, "temperature": 0, "response_format": form}
    status, _, answer = server.ask("POST", "/v1/chat/completions", json.dumps(body))
    return status, json.loads(answer)


def test_a_body_is_json_whatever_its_content_type(server):
    """As of curl, which names a form where it is not told anything else."""
    body = json.dumps({"prompt": "a", "max_tokens": 1, "user": "u" * (4_000_000)})
    for kind in ("application/x-www-form-urlencoded", "application/x-www-form-urlencoded; charset=utf-8", "text/plain"):
        status, _, answer = server.ask("POST", "/v1/completions", body, [("Content-Type", kind)])
        assert status == 200, (kind, answer)


def test_halves_of_requests_leave_room_for_whole_ones(tiny):
    batch, queue = 2, 2
    threads = batch + queue + 16
    with serving(tiny, "--max-batch", batch, "--queue", queue) as served, contextlib.ExitStack() as stack:
        halves = [stack.enter_context(socket.create_connection(("127.0.0.1", served.port))) for _ in range(threads)]
        for half in halves:
            half.sendall(b"GET /health HTTP/1.1\r\nHost:")
        start = time.monotonic()
        assert served.ask("GET", "/health")[0] == 200
        assert time.monotonic() - start < REQUEST_SECONDS, (
            "as long as a thread waits for the other half where nobody waits for it"
        )
        assert select.select(halves, [], [], 0)[0], "none has been ended"
        assert served.stop() == 0


def test_a_half_of_a_request_does_not_hold_up_the_end(tiny):
    with serving(tiny) as served, socket.create_connection(("127.0.0.1", served.port)) as half:
        half.sendall(b"POST /v1/completions HTTP/1.1\r\n")
        time.sleep(0.5)  # in which a thread begins to read it
        start = time.monotonic()
        assert served.stop() == 0
        assert time.monotonic() - start < REQUEST_SECONDS / 2


def test_more_choices_than_there_are_places_are_refused_for_good(tiny):
    with serving(tiny, "--max-batch", 2, "--queue", 3) as served:
        body = {"prompt": "a", "max_tokens": 1}
        assert served.ask("POST", "/v1/completions", json.dumps({**body, "n": 5}))[0] == 200
        status, _, answer = served.ask("POST", "/v1/completions", json.dumps({**body, "n": 6}))
        error = json.loads(answer)["error"]
        assert status == 400 and error["param"] == "n", answer
        assert "expected at most 5" in error["message"] and "got 6" in error["message"]
        assert served.stop() == 0


def test_errors_say_what_is_wrong(server):
    huge = 99999999999999999999
    for path, fields, param, said in (
        ("/v1/completions", {"\0": 1}, "\0", "\\u0000: expected a field that is known here"),
        ("/v1/completions", {"model": "a\0b", "response_format": {"type": "\0"}}, "response_format.type", "got \\u0000"),
        ("/v1/completions", {"prompt": [-1]}, "prompt", "expected ids of tokens, 0 or more, got -1"),
        ("/v1/completions", {"prompt": ["a", 1]}, "prompt", "expected ids of tokens, 0 or more, got string"),
        ("/v1/completions", {"top_k": huge}, "top_k", f"expected 0 to {2**63 - 1}, got 1e+20"),
        ("/v1/completions", {"top_k": -huge}, "top_k", f"expected 0 to {2**63 - 1}, got -1e+20"),
        ("/v1/completions", {"top_k": 1.5}, "top_k", "expected an integer, got 1.5"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content.text",
            "expected a string, got none",
        ),
    ):
        base: dict[str, Any] = {"prompt": "a"} if path == "/v1/completions" else {}
        status, _, answer = server.ask("POST", path, json.dumps({**base, **fields}))
        error = json.loads(answer)["error"]
        assert status == 400 and error["param"] == param and said in error["message"], (fields, error)


def choices(levels, ways):
    """A schema in which `ways` ** `levels` paths lead to null."""
    definitions: dict[str, Any] = {"a0": {"type": "null"}}
    for level in range(1, levels + 1):
        definitions[f"a{level}"] = {"anyOf": [{"$ref": f"#/$defs/a{level - 1}"}] * ways}
    return {"$ref": f"#/$defs/a{levels}", "$defs": definitions}


@pytest.mark.parametrize("levels, ways", [(40, 2), (40, 64), (1000, 2)])
def test_choices_that_lead_to_one_by_many_paths_cost_as_much_as_one(server, levels, ways):
    status, answer = ask_json(server, choices(levels, ways))
    assert status == 200, answer
    assert answer["choices"][0]["message"]["content"] == "null"
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_more_ways_than_a_schema_may_have_are_one_error(server):
    groups = [{"anyOf": [{"maxLength": 100 * group + i} for i in range(64)]} for group in range(64)]
    status, answer = ask_json(server, {"anyOf": groups})
    assert status == 400 and answer["error"]["param"] == "response_format.json_schema.schema", answer
    assert "expected at most 256 schemas to choose among" in answer["error"]["message"]
    assert ask_json(server, {"anyOf": groups[:4]})[0] == 200
