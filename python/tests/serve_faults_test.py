"""`plimsoll serve` and what goes wrong around it: clients that drip, send too much or make no sense, a kill, too little memory, and
a model whose directory goes."""

import contextlib
import http.client
import importlib.util
import json
import os
import random
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import threading
import time
from typing import Any

import pytest
from launched_ranks import reserved_port
from program import command_of
from served import CONTEXT, MESSAGES, SECONDS, openai, serving, write_tiny
from wrong_requests import damaged, wrong_request

# Sanitizers keep what has been freed, and map terabytes.
WITHOUT_SANITIZER = pytest.mark.skipif(
    "asan" in os.environ.get("LD_PRELOAD", ""), reason="a program with a sanitizer takes other memory"
)
REQUEST_SECONDS = 30  # in which a request must have come whole


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def server(tiny):
    # So little for keys and values that all of it is soon written.
    with serving(tiny, "--max-batch", 4, "--queue", 200, "--max-context", 2000, "--memory", 0.004) as served:
        yield served
        assert served.stop() == 0


class Drip(threading.Thread):
    """A client that sends `start` at once and then `byte` once a second. `seconds`: until the server has ended the connection."""

    def __init__(self, port, start, byte):
        super().__init__(daemon=True)
        self.port, self.begin, self.byte, self.seconds, self.answer = port, start, byte, None, b""

    def run(self):
        start = time.monotonic()
        with socket.create_connection(("127.0.0.1", self.port)) as client, contextlib.suppress(ConnectionError):
            client.sendall(self.begin)
            while time.monotonic() < start + 4 * REQUEST_SECONDS:
                if select.select([client], [], [], 1)[0]:
                    piece = client.recv(1 << 16)
                    self.answer += piece
                    if not piece:
                        break
                else:
                    client.sendall(self.byte)
        self.seconds = time.monotonic() - start


START = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n"
POST = START + b"Content-Length: 1000\r\n\r\n"


@pytest.fixture(scope="module", autouse=True)
def dripping(tiny):
    """A server and its slow clients, which are begun before all tests, so that their time passes meanwhile."""
    with serving(tiny) as served:
        files = served.open_files()
        drips = [Drip(served.port, *pair) for pair in ((b"", b"P"), (b"GET / HTTP/1.1\r\nX: ", b"a"), (POST, b" "), (POST, b"{"))]
        for drip in drips:
            drip.start()
        yield served, files, drips


NO_HTTP = [
    b"\r\n", b"\0" * 100, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"get / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00",
    START + b": a\r\n\r\n", b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", b"GET /%zz%00 HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nRange: bytes=-9-,x\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 10_000 + b"\r\n",
    *(START + b"Content-Length: " + length + b"\r\n\r\n{}" for length in (b"-1", b"x", b"2, 2", b"99999999999999999999")),
    *(START + b"Transfer-Encoding: chunked\r\n\r\n" + body for body in (b"zz\r\n{}", b"-2\r\n{}\r\n0\r\n\r\n", b"FFFFFFFFFFFFFFFFF\r\n{}")),
    START + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
    START + b"Content-Type: multipart/form-data; boundary=\r\nContent-Length: 2\r\n\r\n{}",
]  # fmt: skip


@WITHOUT_SANITIZER
def test_ten_thousand_wrong_requests_leave_the_server_as_it_was(server):
    draw = random.Random(7)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)

    def ask(path, body):
        connection.request("POST", path, body)
        response = connection.getresponse()
        return response.status, response.read()

    refused, held, files = 0, 0, server.open_files()
    while refused < 10_000:
        path, body, field = wrong_request(draw)
        if draw.random() < 0.2:
            data = damaged(body, draw)
            status, answer = ask(path, data)
            assert status in (200, 400), (data, answer)
        else:
            status, answer = ask(path, json.dumps(body))
            error = json.loads(answer).get("error", {})
            assert status == 400, (path, body, answer)
            assert (error["param"] or "").startswith(field), (path, body, answer)
        refused += status == 400
        if refused % 100 == 0:
            with socket.create_connection(("127.0.0.1", server.port)) as plain, contextlib.suppress(OSError):  # cut off
                plain.sendall(draw.choice(NO_HTTP))
                plain.shutdown(socket.SHUT_WR)
                plain.recv(1 << 16)
        if refused == 2000:  # after which all threads have run
            held = server.bytes_of("VmRSS")
    connection.close()
    assert server.bytes_of("VmRSS") - held < 8 << 20, "a KiB a request"
    expect_files_closed(server, files)
    assert server.client.chat.completions.create(model="any", messages=MESSAGES, max_tokens=2).usage.completion_tokens == 2


NEXT = b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


def answers_to(port, sent):
    """All that a server answers until it closes the connection."""
    answer = b""
    # A connection that is closed before all has been read is reset behind what has been answered.
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as client, contextlib.suppress(ConnectionError):
        client.sendall(sent)
        while piece := client.recv(1 << 16):
            answer += piece
    return answer


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_only_ends_its_sending_gets_its_reply(server, stream):
    body = json.dumps({"prompt": "a", "max_tokens": 1000, "temperature": 0, "stream": stream}).encode()
    head = START + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    expected = server.client.completions.create(model="any", prompt="a", max_tokens=1000, temperature=0).choices[0].text
    server.wait_until_idle()
    with socket.create_connection(("127.0.0.1", server.port), timeout=SECONDS) as client:
        client.sendall(head + body)
        client.shutdown(socket.SHUT_WR)
        response = http.client.HTTPResponse(client)  # which passes over 100 Continue
        response.begin()
        answer = response.read().decode()
    assert response.status == 200, answer
    if not stream:
        assert json.loads(answer)["choices"][0]["text"] == expected
        return
    *events, last, end = [event for event in answer.split("\n\n") if event != ":"]
    assert last == "data: [DONE]" and end == ""
    assert "".join(json.loads(event.removeprefix("data: "))["choices"][0]["text"] for event in events) == expected


def test_a_client_that_ends_its_sending_and_then_goes_frees_its_place(dripping):
    served, _, _ = dripping
    body = json.dumps({"prompt": "a", "max_tokens": CONTEXT - 100, "temperature": 0}).encode()
    before = served.metric("written_tokens_total")
    with socket.create_connection(("127.0.0.1", served.port), timeout=SECONDS) as client:
        client.sendall(START + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1 << 10).startswith(b"HTTP/1.1 100 ")
        served.wait_for("requests_running", 1)
    served.wait_until_idle()
    assert served.metric("written_tokens_total") - before < CONTEXT - 100


def test_a_request_whose_end_nobody_can_tell_is_refused_with_what_follows_it(server):
    """RFC 9112, 6.3: two programs that read another end of it take other requests for the next one."""
    number = b"expected a number of bytes as Content-Length"
    for lines, said in (
        (b"Content-Length: 2\r\nContent-Length: 3", b"expected one Content-Length, got several that differ"),
        (b"Content-Length: 3\r\nX: y\r\ncontent-length: 2", b"expected one Content-Length, got several that differ"),
        *((b"Content-Length: " + text, number) for text in (b"+2", b"-2", b"2x", b"0x2", b"2, 3", b"9" * 20)),
        (b"Content-Length: 2\r\nContent-Length: x", number),
        (b"Content-Length: 2\r\nTransfer-Encoding: chunked", b"expected Content-Length or Transfer-Encoding, got both"),
        (b"Transfer-Encoding: gzip, chunked", b"expected the Transfer-Encoding chunked and no other"),
        (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", b"expected the Transfer-Encoding chunked and no other"),
    ):
        for start in (START, b"GET /health HTTP/1.1\r\nHost: a\r\n"):
            answer = answers_to(server.port, start + lines + b"\r\n\r\n{}" + NEXT)
            assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1 ") == 1 and said in answer, (lines, answer)
    without = answers_to(server.port, START + b"\r\n" + NEXT)  # at once: httplib would wait for the connection's end
    assert without.startswith(b"HTTP/1.1 411 ") and without.count(b"HTTP/1.1 ") == 1, without
    twice = START + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}" + NEXT
    assert re.findall(rb"HTTP/1.1 (\d+)", answers_to(server.port, twice)) == [b"400", b"200"], "two that are alike are one"
    for method in (b"GET", b"HEAD", b"OPTIONS"):
        body = method + b" /health HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(NEXT)
        assert answers_to(server.port, body + NEXT).count(b"HTTP/1.1 ") == 1, "a body is no request"


def test_a_request_that_is_none_is_answered_once_and_ends_its_connection(server):
    body = b"Content-Length: %d\r\n\r\n" % len(NEXT)
    for sent in (
        b"PROPFIND / HTTP/1.1\r\nHost: a\r\n" + body,
        *(line + b"\r\nHost: a\r\n" + body for line in (b"FOO /", b"get / HTTP/1.1", b"GET / HTTP/9.9", b"\0")),
        b"POST /v1/completions HTTP/1.1\n" + body,
        START + b"X: y\n" + body,
        START + b"Content-Length: %d\n\r\n" % len(NEXT),
        START + b"Content-Length : %d\r\n\r\n" % len(NEXT),
        b"GET /health HTTP/1.1\r\nHost: a\r\nX: y\r\n Content-Length: %d\r\n\r\n" % len(NEXT),
        b"GET /health HTTP/1.1\r\nRange: bytes=-9-,x\r\n" + body,
        b"POST /" + b"a" * 10_000 + b" HTTP/1.1\r\n" + body,
    ):
        answer = answers_to(server.port, sent + NEXT)
        assert re.match(rb"HTTP/1.1 4\d\d ", answer) and answer.count(b"HTTP/1.1 ") == 1, (sent, answer)
        assert b"Connection: close" in answer and b"expected" in answer, (sent, answer)


def expect_files_closed(server, before):
    server.wait_until_idle()
    end = time.monotonic() + SECONDS  # connections that are kept close after five seconds
    while server.open_files() > before and time.monotonic() < end:
        time.sleep(0.1)
    assert server.open_files() <= before


def send_much(port, head, megabytes):
    """Sends the head and so much of a body, or as much as the server takes. What it answers."""
    with socket.create_connection(("127.0.0.1", port), timeout=300) as client:
        answer = b""
        with contextlib.suppress(ConnectionError):
            client.sendall(head)
            for _ in range(megabytes):
                client.sendall(b"a" * (1 << 20))
        with contextlib.suppress(ConnectionError):
            while piece := client.recv(1 << 16):
                answer += piece
        return answer


@WITHOUT_SANITIZER
def test_a_body_of_100_megabytes_is_refused_and_not_held(server):
    server.ask("GET", "/health")
    files, held = server.open_files(), server.bytes_of("VmRSS")
    with open(f"/proc/{server.process.pid}/clear_refs", "w") as file:
        file.write("5")  # VmHWM begins anew
    answer = send_much(server.port, START + b"Content-Length: 104857600\r\n\r\n", 100)
    assert answer.startswith(b"HTTP/1.1 413 ") and b"expected a smaller body" in answer, answer
    with pytest.raises(openai.APIStatusError) as caught:
        server.client.completions.create(model="any", prompt="a" * (100 << 20), max_tokens=1)
    assert caught.value.status_code == 413
    send_much(server.port, b"GET / HTTP/1.1\r\nX: ", 100)  # a header without an end
    send_much(server.port, b"G", 100)
    send_much(server.port, START + b"Transfer-Encoding: chunked\r\n\r\n6400000\r\n", 100)
    assert server.bytes_of("VmHWM") - held < 50 << 20, "half of one body"
    assert server.client.completions.create(model="any", prompt="a", max_tokens=1).choices
    expect_files_closed(server, files)


@WITHOUT_SANITIZER
def test_what_large_bodies_take_is_given_back(server):
    size, names = 4 << 20, ",".join(f'"{name}":1' for name in range(300_000))
    bodies = {
        "deep": b'{"prompt":' + b"[" * (size - 100),
        "objects": b'{"prompt":[' + b"{}," * (size // 3 - 20) + b"1]}",
        "ids": b'{"prompt":[' + b"1," * (size // 2 - 20) + b"1]}",
        "text": b'{"prompt":"' + b"a " * (size // 2 - 20) + b'"}',
        "names": b"{" + names.encode() + b"}",
    }
    # The heaps of a few threads may keep 64 MB each; a dozen texts take 2 GB.
    for body in 4 * list(bodies.values()):
        server.ask("POST", "/v1/completions", body)
    held = server.bytes_of("VmRSS")
    for kind, body in bodies.items():
        for _ in range(12):
            assert server.ask("POST", "/v1/completions", body)[0] == 400, kind
        # A thread gives memory back behind its answer.
        end = time.monotonic() + SECONDS
        while (more := server.bytes_of("VmRSS") - held) >= 200 << 20:
            assert time.monotonic() < end, (kind, more)
            time.sleep(0.05)


@pytest.fixture
def port():
    with reserved_port() as port:
        yield port


def test_a_server_that_was_killed_starts_again_at_the_same_port(tiny, port):
    options: dict[str, Any] = {"model": "any", "prompt": "The sea", "max_tokens": 20, "temperature": 0}
    texts = []
    for _ in range(3):
        with serving(tiny, port=port) as served:
            texts.append(served.client.completions.create(**options).choices[0].text)
            stream = served.client.completions.create(**{**options, "max_tokens": CONTEXT - 100}, stream=True)
            next(iter(stream))
            served.process.send_signal(signal.SIGKILL)
            served.process.communicate(timeout=300)
            assert served.process.returncode == -signal.SIGKILL
            with pytest.raises((openai.APIError, *ERRORS_OF_A_CUT_STREAM)):
                list(stream)
    assert texts[0] == texts[1] == texts[2]


def cut_stream_errors():
    """Errors of the client's HTTP library, whose name depends on its version."""
    names = ("httpx2", "httpx")
    return tuple(importlib.import_module(name).HTTPError for name in names if importlib.util.find_spec(name))


ERRORS_OF_A_CUT_STREAM = cut_stream_errors()


def test_a_second_server_at_the_same_port_is_one_error(server, tiny):
    words = command_of("serve", "--model", tiny, "--port", server.port)
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    line = process.stdout.readline()
    process.terminate()
    _, errors = process.communicate(timeout=300)
    assert line == "" and process.returncode == 1 and errors.count("\n") == 1, (line, errors)
    assert "expected an address that is free" in errors


def started_within(mebibytes, *words):
    """Exit code, output and errors of `plimsoll serve` with an address space of so much. One that serves is ended by SIGTERM."""
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (mebibytes << 20, mebibytes << 20))
    command = command_of("serve", "--port", 0, "--threads", 2, *words)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=limit)
    assert process.stdout
    if line := process.stdout.readline():
        process.terminate()
    rest, errors = process.communicate(timeout=300)
    return process.returncode, line + rest, errors


@WITHOUT_SANITIZER
def test_a_memory_limit_below_the_model_is_one_error_at_the_start(tmp_path):
    folder = write_tiny(tmp_path, intermediate_size=100_000)  # 115 MB of weights
    options = ("--memory", 0.01, "--max-context", 2000, "--max-batch", 1, "--queue", 1)
    with serving(folder, *options) as served:
        whole = served.bytes_of("VmPeak") >> 20
        assert served.stop() == 0
    codes = {}

    def start(mebibytes):
        code, output, errors = started_within(mebibytes, "--model", folder, *options)
        codes[mebibytes] = code
        if code == 0:
            assert "Ctrl-C ends it" in output and errors == ""
        else:
            assert code == 1 and output == "" and errors.count("\n") == 1, (mebibytes, code, errors)

    for mebibytes in range(whole - 500, whole + 101, 60):
        start(mebibytes)
    assert codes[whole - 500] == 1 and codes[whole + 100] == 0, codes
    serves = min(mebibytes for mebibytes, code in codes.items() if code == 0)
    for mebibytes in range(serves - 56, serves, 8):  # a thread's stack is 8 MiB
        start(mebibytes)


@pytest.mark.parametrize("dtype", ["stored", "fp8"])
def test_a_model_whose_directory_goes_is_served_on(tmp_path, dtype):
    folder = tmp_path / "model"
    folder.mkdir()
    write_tiny(folder)
    options: dict[str, Any] = {"model": "any", "messages": MESSAGES, "max_tokens": 40, "temperature": 0}
    with serving(folder, "--dtype", dtype) as served:
        expected = served.client.chat.completions.create(**options).choices[0].message.content
        shutil.rmtree(folder)
        assert served.client.chat.completions.create(**options).choices[0].message.content == expected
        json_options = {**options, "response_format": {"type": "json_object"}}
        assert served.client.chat.completions.create(**json_options).choices[0].message.content.startswith("{")
        assert served.ask("GET", "/")[0] == 200 and len(served.client.models.list().data) == 1
        assert served.stop() == 0


def test_clients_that_drip_are_cut_off_and_hold_up_nobody(dripping):
    served, files, drips = dripping
    assert served.client.completions.create(model="any", prompt="a", max_tokens=2).usage.completion_tokens == 2
    for drip in drips:
        drip.join(6 * REQUEST_SECONDS)
        assert drip.seconds is not None, "still connected"
        # A server that waited for each byte would never cut it off.
        assert REQUEST_SECONDS - 1 < drip.seconds < 3 * REQUEST_SECONDS, drip.seconds
        assert drip.answer == b"" or drip.answer.startswith(b"HTTP/1.1 400 "), drip.answer
    expect_files_closed(served, files)
    assert served.client.completions.create(model="any", prompt="a", max_tokens=2).usage.completion_tokens == 2
    assert served.stop() == 0
