"""Requests that the documentation of llama.cpp's server and of `transformers serve` shows, sent to `plimsoll serve` by the clients that
it names: OpenAI's, huggingface_hub's and plain HTTP. Only the port is another."""

import asyncio
import json
from typing import Any

import pytest
from served import CONTEXT, openai, serving, write_tiny

hub = pytest.importorskip("huggingface_hub")
MAX_CONTEXT = 400


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(write_tiny(tmp_path_factory.mktemp("tiny")), "--max-context", MAX_CONTEXT) as served:
        yield served
        assert served.stop() == 0


@pytest.fixture(scope="module")
def client(server):
    """As both pages make it: with a key that is none."""
    return openai.OpenAI(base_url=f"http://localhost:{server.port}/v1", api_key="sk-no-key-required", max_retries=0, timeout=300)


def post(server, path, body):
    """The answer to a request as curl sends it."""
    headers = {"Content-Type": "application/json", "Authorization": "Bearer no-key"}
    status, headers, answer = server.ask("POST", path, json.dumps(body), headers.items())
    assert status == 200, answer
    return headers["Content-Type"], answer


TALK = [
    {"role": "system", "content": "You are an assistant that answers in verse."},
    {"role": "user", "content": "Say something about errors in Python."},
]
QUESTION = [{"role": "user", "content": "Why do people use Transformers?"}]


# llama.cpp's server ---------------------------------------------------------------------------------------------------------------


def test_a_chat_by_openais_client(client):
    completion = client.chat.completions.create(model="gpt-3.5-turbo", messages=TALK)
    message = completion.choices[0].message
    assert message.role == "assistant" and message.content
    assert completion.usage.total_tokens == MAX_CONTEXT, "without max_tokens a reply may be as long as the context"


def test_a_chat_by_plain_http(server):
    kind, answer = post(server, "/v1/chat/completions", {"model": "gpt-3.5-turbo", "messages": TALK})
    reply = json.loads(answer)
    assert kind == "application/json" and reply["object"] == "chat.completion"
    assert reply["choices"][0]["message"]["content"] and reply["choices"][0]["finish_reason"] == "length"
    assert set(reply["usage"]) >= {"completion_tokens", "prompt_tokens", "total_tokens"}


def test_a_completion_by_openais_client(client):
    completion = client.completions.create(model="davinci-002", prompt="I believe that life", max_tokens=8)
    assert completion.choices[0].text and completion.usage.completion_tokens == 8


def test_the_list_of_models(client, server):
    (model,) = client.models.list().data
    assert model.object == "model" and model.id
    assert json.loads(server.ask("GET", "/v1/models")[2])["object"] == "list"


PEOPLE: dict[str, Any] = {
    "properties": {
        "name": {"title": "Name", "type": "string", "maxLength": 5},
        "date": {"title": "Date", "type": "string", "maxLength": 5},
        "people": {"title": "People", "type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 2},
    }
}


@pytest.mark.parametrize(
    "form",
    [
        lambda schema: {"type": "json_object", "schema": schema},
        lambda schema: {"type": "json_schema", "schema": schema},
        lambda schema: {"type": "json_schema", "json_schema": {"name": "people", "schema": schema}},
    ],
    ids=["json_object", "json_schema", "OpenAI's"],
)
def test_json_of_a_schema(client, form):
    options: dict[str, Any] = {"model": "any", "messages": TALK, "temperature": 1, "max_tokens": 250}

    def ask(schema, seed):
        reply = client.chat.completions.create(**options, seed=seed, extra_body={"response_format": form(schema)})
        return json.loads(reply.choices[0].message.content) if reply.choices[0].finish_reason == "stop" else None

    texts = [ask({"type": "string", "minLength": 10, "maxLength": 100}, seed) for seed in range(4)]
    assert any(texts) and all(text is None or 10 <= len(text) <= 100 for text in texts)
    values = [ask(PEOPLE, seed) for seed in range(4)]
    assert any(value is not None for value in values)
    for value in values:
        assert value is None or [key for key in PEOPLE["properties"] if key in value] == list(value)


WEBSITE: dict[str, Any] = {"prompt": "Building a website can be done in 10 simple steps:", "n_predict": 12}


def test_its_own_completion(client, server):
    kind, answer = post(server, "/completion", WEBSITE)
    reply = json.loads(answer)
    assert kind == "application/json"
    ours = client.completions.create(model="any", prompt=WEBSITE["prompt"], max_tokens=12, temperature=0)
    assert reply == {
        "content": ours.choices[0].text,
        "stop": True,
        "stop_type": "limit",
        "model": ours.model,
        "tokens_evaluated": ours.usage.prompt_tokens,
        "tokens_predicted": 12,
        "truncated": False,
    }
    first = ours.choices[0].text[0]
    stopped = json.loads(post(server, "/completion", {**WEBSITE, "stop": [first]})[1])
    assert (stopped["content"], stopped["stop_type"]) == ("", "word")
    schema = {"type": "json_schema", "json_schema": {"name": "no", "schema": {"type": "boolean"}}}
    formatted = json.loads(post(server, "/completion", {**WEBSITE, "response_format": schema})[1])
    assert (formatted["content"], formatted["stop_type"]) in (("true", "eos"), ("false", "eos"))
    both = json.loads(post(server, "/completion", {**WEBSITE, "response_format": schema, "stop": ["never"]})[1])
    assert both == formatted


def test_its_own_completion_as_events(server):
    # The fields of its example of a chat in JavaScript, which reads `content` until `stop`.
    body = {**WEBSITE, "temperature": 0.2, "top_k": 40, "top_p": 0.9, "n_keep": 4, "cache_prompt": True, "slot_id": -1, "seed": 3}
    body |= {"stop": ["\n### Human:"], "grammar": "", "stream": True}
    kind, answer = post(server, "/completion", body)
    assert kind == "text/event-stream"
    events = [json.loads(line.removeprefix(b"data: ")) for line in answer.splitlines() if line]
    whole = json.loads(post(server, "/completion", {**body, "stream": False})[1])
    assert "".join(event["content"] for event in events) == whole["content"]
    assert [event["stop"] for event in events] == [False] * (len(events) - 1) + [True]
    assert {**events[-1], "content": whole["content"]} == whole


@pytest.mark.parametrize(
    "fields, named",
    [({"n_predict": 0}, "n_predict"), ({"n": 2}, "n"), ({"grammar": "root ::= x"}, "grammar"), ({"seed": -2}, "seed")],
)
def test_wrong_fields_of_its_own_completion(server, fields, named):
    status, _, answer = server.ask("POST", "/completion", json.dumps({**WEBSITE, **fields}))
    assert status == 400 and json.loads(answer)["error"]["param"] == named


def test_any_json_object(client):
    reply = client.chat.completions.create(
        model="any", messages=TALK, temperature=1, seed=1, max_tokens=20, response_format={"type": "json_object"}
    )
    assert reply.choices[0].message.content.startswith("{")


# transformers serve ---------------------------------------------------------------------------------------------------------------


def test_a_chat_by_hugging_faces_client(server):
    inference = hub.InferenceClient(f"http://localhost:{server.port}")
    options = {"model": "Qwen/Qwen2.5-0.5B-Instruct", "max_tokens": 20, "temperature": 0}
    text = inference.chat_completion(QUESTION, **options).choices[0].message.content
    assert text
    pieces = [chunk.choices[0].delta.content or "" for chunk in inference.chat_completion(QUESTION, stream=True, **options)]
    assert "".join(pieces) == text and len(pieces) > 2


def test_a_chat_by_openais_client_as_a_stream(client):
    options = {"model": "Qwen/Qwen2.5-0.5B-Instruct", "messages": QUESTION, "temperature": 0}
    whole = client.chat.completions.create(**options).choices[0].message.content
    assert whole == "".join(
        chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**options, stream=True)
    )


def test_a_chat_by_plain_http_as_a_stream(server):
    body = {"model": "Qwen/Qwen2.5-0.5B-Instruct", "messages": QUESTION, "temperature": 0.9, "max_tokens": 25}
    assert json.loads(post(server, "/v1/chat/completions", body)[1])["usage"]["completion_tokens"] == 25
    kind, answer = post(server, "/v1/chat/completions", {**body, "stream": True})
    assert kind.startswith("text/event-stream")
    *events, last, end = answer.decode().split("\n\n")
    assert last == "data: [DONE]" and end == ""
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"} and len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant" and chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_a_chat_of_several_turns(client):
    turns = [
        {"role": "user", "content": "Which city is the capital of France?"},
        {"role": "assistant", "content": "Paris."},
        {"role": "user", "content": "And how large is it?"},
    ]
    longer = client.chat.completions.create(model="any", messages=turns, max_tokens=5).usage.prompt_tokens
    assert longer > client.chat.completions.create(model="any", messages=turns[:1], max_tokens=5).usage.prompt_tokens


def test_a_completion_whole_and_as_a_stream(client, server):
    body = {"model": "Qwen/Qwen2.5-0.5B", "prompt": "The capital of France", "max_tokens": 20}
    reply = json.loads(post(server, "/v1/completions", body)[1])
    assert reply["object"] == "text_completion" and reply["choices"][0]["logprobs"] is None
    text = client.completions.create(**body, temperature=0).choices[0].text
    assert text == "".join(chunk.choices[0].text for chunk in client.completions.create(**body, temperature=0, stream=True))


def test_what_of_these_pages_is_not_served_is_one_clear_error(client, server):
    image = {"type": "image_url", "image_url": {"url": "http://localhost/a.png"}}
    for body, name in (
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, image]}]}, "messages[0].content"),
        ({"messages": TALK, "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"messages": TALK, "chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(**{"model": "any", "messages": [], "extra_body": body})
        assert caught.value.param == name and name in caught.value.message
    with pytest.raises(openai.NotFoundError, match="/v1/responses"):
        client.responses.create(model="any", input="Tell me a story.")


# Clients that end a reply -----------------------------------------------------------------------------------------------------------


def expect_all_given_back(server, written):
    """No request, none of its pages, and far from all the tokens that it had asked for."""
    server.wait_until_idle()
    assert server.metric("cache_used_bytes") == server.metric("cache_kept_bytes"), "pages that a text still holds"
    assert server.metric("written_tokens_total") - written < LONG["n"] * LONG["max_tokens"]


LONG: dict[str, Any] = {
    "model": "any",
    "messages": QUESTION,
    "max_tokens": CONTEXT - 200,
    "temperature": 1,
    "seed": 1,
    "n": 8,
    "stream": True,
}


@pytest.fixture
def roomy(tmp_path):
    with serving(write_tiny(tmp_path)) as server:
        yield server
        assert server.stop() == 0


def test_a_stream_that_the_client_closes_is_cancelled(roomy):
    written = roomy.metric("written_tokens_total")
    stream = roomy.client.chat.completions.create(**LONG)
    for chunk in stream:
        if chunk.choices[0].delta.content and not chunk.choices[0].delta.role:
            break
    roomy.wait_for("requests_running", LONG["n"])  # a first token may come before its request counts as one that runs
    assert roomy.metric("cache_used_bytes") > roomy.metric("cache_kept_bytes")
    stream.close()
    expect_all_given_back(roomy, written)


def test_tasks_of_the_asynchronous_client_are_cancelled(roomy):
    written = roomy.metric("written_tokens_total")

    async def read(client):
        return "".join([chunk.choices[0].delta.content or "" async for chunk in await client.chat.completions.create(**LONG)])

    async def main():
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{roomy.port}/v1", api_key="any", max_retries=0) as client:
            reply = await client.chat.completions.create(**{**LONG, "max_tokens": 5, "n": 1, "stream": False})
            assert reply.usage.completion_tokens == 5
            task = asyncio.create_task(read(client))
            while await asyncio.to_thread(roomy.metric, "requests_running") == 0:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with await client.chat.completions.create(**LONG) as stream:
                async for _ in stream:
                    break
            await asyncio.to_thread(expect_all_given_back, roomy, written)
            whole = asyncio.create_task(client.chat.completions.create(**{**LONG, "stream": False}))
            while await asyncio.to_thread(roomy.metric, "requests_running") == 0:
                await asyncio.sleep(0.01)
            whole.cancel()
            with pytest.raises(asyncio.CancelledError):
                await whole

    asyncio.run(main())
    roomy.wait_until_idle()
    assert roomy.metric("cache_used_bytes") == roomy.metric("cache_kept_bytes")
