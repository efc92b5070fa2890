"""`plimsoll serve`: the replies that `plimsoll generate` gives, through OpenAI's own client; wrong requests, clients that go away."""

import contextlib
import http.client
import json
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from program import generated
from served import CONTEXT, MESSAGES, openai, serving, streaming, write_tiny


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def server(tiny):
    with serving(tiny, "--max-batch", 4, "--queue", 200) as served:
        yield served
        assert served.stop() == 0


def test_a_chat_says_what_the_command_says(server, tiny, tmp_path):
    for words, options in (
        (("--temperature", 0), {"temperature": 0}),
        (("--temperature", 0.9, "--top-p", 0.8, "--seed", 5), {"temperature": 0.9, "top_p": 0.8, "seed": 5}),
    ):
        text, _, expected = generated(
            tiny, tmp_path, "--chat", "--system", "Be short.", "--prompt", MESSAGES[0]["content"], "--tokens", 40, *words
        )
        messages = [{"role": "system", "content": "Be short."}, *MESSAGES]
        reply = server.client.chat.completions.create(
            model="any", messages=messages, max_tokens=40, logprobs=True, top_logprobs=2, **options
        )
        choice = reply.choices[0]
        assert choice.message.content == text and choice.message.role == "assistant"
        assert [token.logprob for token in choice.logprobs.content] == expected
        assert all(len(token.top_logprobs) == 2 for token in choice.logprobs.content)
        assert choice.finish_reason == "length" and reply.usage.completion_tokens == 40
        assert reply.usage.total_tokens == reply.usage.prompt_tokens + 40


def test_a_stream_is_the_reply_in_pieces(server):
    options = {"model": "any", "messages": MESSAGES, "max_tokens": 30, "temperature": 1, "seed": 3, "n": 2}
    whole = server.client.chat.completions.create(**options)
    pieces = list(server.client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    for index in (0, 1):
        mine = [piece.choices[0] for piece in pieces if piece.choices and piece.choices[0].index == index]
        assert mine[0].delta.role == "assistant" and mine[-1].finish_reason == "length"
        assert "".join(choice.delta.content or "" for choice in mine) == whole.choices[index].message.content
    assert whole.choices[0].message.content != whole.choices[1].message.content
    assert pieces[-1].choices == [] and pieces[-1].usage == whole.usage


def test_a_completion_says_what_the_command_says(server, tiny, tmp_path):
    text, ids, expected = generated(tiny, tmp_path, "--prompt", "The sea", "--tokens", 20, "--temperature", 0)
    reply = server.client.completions.create(model="any", prompt="The sea", max_tokens=20, temperature=0, logprobs=1)
    assert reply.choices[0].text == text
    assert reply.choices[0].logprobs.token_logprobs == expected
    assert len(reply.choices[0].logprobs.tokens) == len(ids) == reply.usage.completion_tokens
    echo = server.client.completions.create(
        model="any", prompt="The sea", max_tokens=20, temperature=0, extra_body={"echo": True}
    )
    assert echo.choices[0].text == "The sea" + text
    assert server.client.completions.create(model="any", prompt="The sea").usage.completion_tokens == 16
    by_ids = server.client.completions.create(model="any", prompt=ids[:5], max_tokens=3, temperature=0)
    assert by_ids.usage.prompt_tokens == 5


def test_requests_together_have_the_replies_that_each_has_alone(server):
    def ask(seed):
        reply = server.client.completions.create(
            model="any", prompt="word " * (1 + seed % 7), max_tokens=10 + seed, temperature=1, seed=seed,
            frequency_penalty=0.5, presence_penalty=0.1, extra_body={"min_p": 0.01, "repetition_penalty": 1.1},
        )  # fmt: skip
        return reply.choices[0].text

    alone = [ask(seed) for seed in range(24)]
    together = [None] * len(alone)

    def fill(seed):
        together[seed] = ask(seed)

    threads = [threading.Thread(target=fill, args=(seed,)) for seed in range(len(alone))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone


def test_a_stop_ends_the_text_and_is_not_shown(server):
    options = {"model": "any", "messages": MESSAGES, "max_tokens": 60, "temperature": 0}
    text = server.client.chat.completions.create(**options).choices[0].message.content
    stop = text[20:23]
    for stops in (stop, [stop, "never to be found"]):
        choice = server.client.chat.completions.create(**options, stop=stops).choices[0]
        assert choice.message.content == text[: text.index(stop)] and choice.finish_reason == "stop"


def test_an_end_token_stops_the_reply(tiny, tmp_path):
    for file in tiny.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tiny / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"eos_token_id": list(range(0, config["vocab_size"], 4))}))
    with serving(tmp_path) as served:
        choice = served.client.chat.completions.create(model="any", messages=MESSAGES).choices[0]
        assert choice.finish_reason == "stop"
        assert served.stop() == 0


def test_models_health_metrics_and_the_page_are_there(server, tiny):
    (model,) = server.client.models.list()
    assert model.id == tiny.name and server.client.models.retrieve(tiny.name) == model
    with pytest.raises(openai.NotFoundError, match="expected a model that is served, got other") as caught:
        server.client.models.retrieve("other")
    assert caught.value.code == "model_not_found"
    assert server.ask("GET", "/health")[::2] == (200, b'{"status":"ok"}')
    assert server.metric("requests_total") >= 0
    status, headers, page = server.ask("GET", "/")
    assert status == 200 and headers["Content-Type"].startswith("text/html")
    assert not re.search(rb"""(?:src|href)=(?!"data:,")|https?:""", page), "a resource from outside"


WRONG: dict[str, list[Any]] = {
    "temperature": [-1, "1", [], 1e9],
    "top_p": [-0.1, 1.1, "all"],
    "top_k": [-1, 1.5],
    "min_p": [2, {}],
    "repetition_penalty": [0, "x"],
    "frequency_penalty": [3, True],
    "presence_penalty": [-3, []],
    "seed": [1.5, 2**63, -(2**63) - 1, 1e30],
    "n": [0, 17, "2"],
    "max_tokens": [0, -5, 1.5],
    "stop": ["", [""], 5, ["a"] * 17],
    "response_format": [5, "json_object", []],
    "stream": [1, "true"],
    "stream_options": [5, []],
    "user": [5],
    "model": [5],
    "logit_bias": [{"5": 1}, 5],
    "tools": [[{"type": "function"}], True],
    "messages": [[], 5, "text"],
    "top_logprobs": [3],
}


def test_a_wrong_field_is_named(server):
    for field, values in WRONG.items():
        for value in values:
            with pytest.raises(openai.BadRequestError) as caught:
                server.client.chat.completions.create(**{"model": "any", "messages": MESSAGES, "extra_body": {field: value}})
            assert caught.value.param == field, (field, value, caught.value)
            assert field in caught.value.message
    for message, name in (
        ({"role": "user"}, "messages[1].content"),
        ({"content": "a"}, "messages[1].role"),
        ({"role": "user", "content": "a", "tool": 1}, "messages[1].tool"),
        ({"role": "assistant", "content": "a", "tool_calls": [{}]}, "messages[1].tool_calls"),
        (5, "messages[1]"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            server.client.chat.completions.create(model="any", messages=[*MESSAGES, message])
        assert caught.value.param == name
    prompts: list[Any] = [[], [-1], [10**6], 5, ["text", "text"], [[1], [2]], [1.5], [[]], ["text", 1]]
    for prompt in prompts:
        with pytest.raises(openai.BadRequestError) as caught:
            server.client.completions.create(model="any", prompt=prompt)
        assert caught.value.param == "prompt"
    refusals: list[tuple[Any, str]] = [
        (["a", "b"], "prompt: expected one, a string or ids, got 2: each needs a request of its own"),
        ([], "prompt: expected a string or ids, got an empty array"),
    ]
    for prompt, text in refusals:
        with pytest.raises(openai.BadRequestError, match=text):
            server.client.completions.create(model="any", prompt=prompt)
    for path, text in (
        ("/v1/completions", "prompt: expected a string or ids, got none"),
        ("/v1/chat/completions", "messages: expected one message or more, got none"),
    ):
        assert json.loads(server.ask("POST", path, "{}")[2])["error"]["message"] == text
    with pytest.raises(openai.BadRequestError) as caught:
        server.client.completions.create(model="any", prompt=[1] * CONTEXT)
    assert caught.value.code == "context_length_exceeded"


def test_what_asks_for_nothing_is_taken(server):
    """OpenAI's own objects as dicts have all of their fields."""
    options = {"model": "any", "max_tokens": 8, "temperature": 0}
    reply = server.client.chat.completions.create(messages=MESSAGES, **options).choices[0].message
    dumped = reply.model_dump()
    assert {"refusal", "annotations", "audio", "function_call", "tool_calls"} <= {key for key in dumped if dumped[key] is None}
    said = lambda *messages, **body: server.client.chat.completions.create(
        messages=list(messages), **options, extra_body=body
    ).choices[0]
    plain = {"role": "assistant", "content": reply.content}
    expected = said(*MESSAGES, plain, *MESSAGES).message
    for message in (reply, dumped, dumped | {"annotations": [], "tool_calls": [], "name": "a", "parsed": {"b": 1}}):
        assert said(*MESSAGES, message, *MESSAGES).message == expected
    nothing: dict[str, Any] = {
        "logit_bias": None,
        "best_of": None,
        "tool_choice": None,
        "tools": [],
        "functions": [],
        "metadata": {},
    }
    assert said(*MESSAGES, plain, *MESSAGES, **nothing).message == expected
    brief = {"role": "system", "content": "Be short."}
    assert said({**brief, "role": "developer"}, *MESSAGES).message == said(brief, *MESSAGES).message


def test_numbers_that_are_integers_and_any_seed_are_taken(server):
    ask = lambda **body: server.client.completions.create(model="any", prompt="a", extra_body={"temperature": 1, **body})
    text = ask(seed=3, max_tokens=9).choices[0].text
    assert ask(seed=3.0, max_tokens=9.0, n=1.0).choices[0].text == text
    assert ask(seed=3, max_tokens=9, prompt=["a"]).choices[0].text == text
    ids = lambda prompt: ask(seed=3, max_tokens=9, prompt=prompt).choices[0].text
    assert ids([5, 6]) == ids([5.0, 6.0]) == ids([[5, 6]])
    negative = [ask(seed=seed, max_tokens=20).choices[0].text for seed in (-1, -1, 1, -(2**63))]
    assert negative[0] == negative[1] != negative[2] and negative[3]
    schema = {"type": "string", "minLength": 2.0, "maxLength": 2.0}
    body = {"response_format": {"type": "json_schema", "schema": schema}}
    assert len(json.loads(ask(max_tokens=99, seed=1, **body).choices[0].text)) == 2


def test_what_is_no_request_is_refused(server):
    post = lambda body, **headers: server.ask("POST", "/v1/completions", body, headers)[0]
    assert post(b"") == post(b"{") == post(b"[]") == post(b"null") == post(b'{"prompt": "\xff"}') == 400
    assert post(b"[" * 100_000) == 400
    assert post(b'{"prompt": "' + b"a" * (5 << 20) + b'"}') == 413
    with contextlib.suppress(OSError):  # closed before all chunks are sent
        assert server.ask("POST", "/v1/completions", iter([b"a" * (1 << 20)] * 40))[0] == 400
    assert server.ask("GET", "/nowhere")[0] == server.ask("POST", "/nowhere", b"{}")[0] == 404
    for method, path, allowed in (
        ("GET", "/v1/completions", "POST"), ("DELETE", "/v1/chat/completions", "POST"), ("HEAD", "/completion", "POST"),
        ("POST", "/health", "GET, HEAD"), ("PUT", "/", "GET, HEAD"), ("POST", "/v1/models", "GET, HEAD"),
    ):  # fmt: skip
        status, headers, _ = server.ask(method, path, b"{}" if method in ("POST", "PUT", "DELETE") else None)
        assert status == 405 and headers["Allow"] == allowed, (method, path)
    status, _, body = server.ask("GET", "/nowhere")
    assert "/nowhere" in json.loads(body)["error"]["message"] and status == 404


def test_a_client_that_goes_away_frees_its_place(server):
    server.wait_until_idle()
    before = server.metric("written_tokens_total")
    connection, response = streaming(server, CONTEXT - 100)
    response.close()
    connection.close()
    server.wait_until_idle()
    assert server.metric("written_tokens_total") - before < CONTEXT - 100
    # One that waits for a whole reply.
    body = json.dumps({"prompt": "a", "max_tokens": CONTEXT - 100, "temperature": 0}).encode()
    before = server.metric("written_tokens_total")
    with socket.create_connection(("127.0.0.1", server.port)) as plain:
        plain.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        server.wait_for("requests_running", 1)
    server.wait_until_idle()
    assert server.metric("written_tokens_total") - before < CONTEXT - 100


def test_a_full_queue_is_answered_429(tiny):
    with serving(tiny, "--max-batch", 1, "--queue", 1) as served:
        first, response = streaming(served, CONTEXT - 100)
        served.wait_for("requests_running", 1)  # its first token may come before it counts as one that runs
        second = http.client.HTTPConnection("127.0.0.1", served.port, timeout=300)
        second.request("POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": CONTEXT - 100}))
        served.wait_for("requests_waiting", 1)
        with pytest.raises(openai.RateLimitError) as caught:  # one more is too many
            served.client.completions.create(model="any", prompt="a", max_tokens=1)
        assert caught.value.response.headers["Retry-After"] == "1"
        for each in (response, first, second):
            each.close()
        assert served.stop() == 0


def test_the_key_lets_in(tiny):
    with serving(tiny, "--api-key", "sesame", key="sesame") as served:
        assert served.client.completions.create(model="any", prompt="a").choices
        for scheme in ("Bearer", "bearer", "BEARER"):
            assert served.ask("GET", "/v1/models", headers={"Authorization": f"{scheme} sesame"}.items())[0] == 200
        keys = ("Basic sesame", "Bearer sesam", "Bearer sesame2", "sesame")
        for headers in ({}, *({"Authorization": key} for key in keys)):
            for path in ("/v1/models", "/metrics"):
                assert served.ask("GET", path, headers=headers.items())[0] == 401
        assert served.ask("GET", "/")[0] == served.ask("GET", "/health")[0] == 200
        assert served.stop() == 0


def test_the_body_of_a_request_that_is_not_let_in_is_no_request(tiny):
    with serving(tiny, "--api-key", "sesame", key="sesame") as served:
        hidden = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
        for more in (0, 1 << 20):  # bytes beyond it, which the server does not wait for
            head = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(hidden) + more}\r\n\r\n"
            with socket.create_connection(("127.0.0.1", served.port)) as client:
                client.sendall(head.encode() + hidden + more * b"a")
                answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
            assert answer.startswith(b"HTTP/1.1 401 ") and answer.count(b"HTTP/1.1") == 1, answer
        assert served.stop() == 0


def test_a_reply_that_takes_too_long_is_ended(server, tiny):
    """Replies of minutes, all at once, of which one is written and the others wait. A short one has seconds for milliseconds."""
    short: dict[str, Any] = {"model": "any", "prompt": "a", "max_tokens": 2, "temperature": 0}
    expected = server.client.completions.create(**short).choices[0].text
    long = {**short, "max_tokens": CONTEXT - 100, "n": 4}
    with serving(tiny, "--request-timeout", 4, "--max-batch", 1) as served:

        def whole():
            with pytest.raises(openai.APIStatusError) as caught:
                served.client.completions.create(**long)
            assert caught.value.status_code == 408 and caught.value.code == "timeout"
            assert "expected a reply within 4 seconds" in caught.value.message

        def stream():
            with pytest.raises(openai.APIError) as failed:
                list(served.client.completions.create(**long, stream=True))
            assert failed.value.code == "timeout"

        with ThreadPoolExecutor(4) as pool:
            for ended in [pool.submit(ask) for ask in (whole, stream, whole, stream)]:
                ended.result()
        served.wait_until_idle()
        assert served.client.completions.create(**short).choices[0].text == expected
        assert served.stop() == 0
