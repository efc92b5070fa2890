"""`response_format` of `plimsoll serve`, Python's Engine and `plimsoll generate`: any JSON object, or one of a schema."""

import contextlib
import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
import tiny_llama
from plimsoll.serve import Engine
from program import done, plimsoll
from served import MESSAGES, openai, serving, write_tiny

PAGE = Path(__file__).parents[2] / "docs" / "serve.md"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def server(tiny):
    with serving(tiny, "--max-batch", 4, "--queue", 200) as served:
        yield served
        assert served.stop() == 0


FORMAT: dict[str, Any] = {
    "type": "json_schema",
    "json_schema": {
        "name": "animal",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {
                "zoo": {"type": "string", "maxLength": 6},
                "count": {"type": "integer"},
                "kinds": {"type": "array", "items": {"enum": ["cat", "dog", "caf\u00e9"]}, "minItems": 1, "maxItems": 3},
                "alive": {"type": ["boolean", "null"]},
            },
            "required": ["zoo", "count", "kinds", "alive"],
            "additionalProperties": False,
        },
    },
}


def test_a_response_format_makes_json_of_its_schema(server):
    ended = 0
    for seed in range(20):
        options = {"model": "any", "messages": MESSAGES, "max_tokens": 400, "temperature": 1, "seed": seed}
        reply = server.client.chat.completions.create(**options, response_format=FORMAT, logprobs=True)
        choice = reply.choices[0]
        pieces = server.client.chat.completions.create(**options, response_format=FORMAT, stream=True)
        assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == choice.message.content
        if choice.finish_reason == "length":
            assert reply.usage.completion_tokens == 400
            continue
        ended += 1
        assert choice.finish_reason == "stop" and reply.usage.completion_tokens == len(choice.logprobs.content)
        value = json.loads(choice.message.content)
        assert list(value) == ["zoo", "count", "kinds", "alive"], value
        assert len(value["zoo"]) <= 6 and isinstance(value["count"], int) and value["alive"] in (True, False, None)
        assert 1 <= len(value["kinds"]) <= 3 and set(value["kinds"]) <= {"cat", "dog", "caf\u00e9"}
    assert ended >= 15


def test_a_format_is_kept_to_beside_other_requests_and_by_each_choice(server):
    options = {"model": "any", "prompt": "word", "max_tokens": 300, "temperature": 1, "extra_body": {"response_format": FORMAT}}

    def ask(seed):
        return [choice.text for choice in server.client.completions.create(**options, seed=seed, n=2).choices]

    alone = [ask(seed) for seed in range(6)]
    together: list[Any] = [None] * 6
    threads = [threading.Thread(target=lambda seed: together.__setitem__(seed, ask(seed)), args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    plain = server.client.completions.create(model="any", prompt="word", max_tokens=50, temperature=0).choices[0].text
    for thread in threads:
        thread.join()
    assert together == alone and all(first != second and first.startswith("{") for first, second in alone)
    assert not plain.startswith("{")


def test_python_and_the_command_write_what_the_server_writes(server, tiny, tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps(FORMAT["json_schema"]["schema"]))
    options: dict[str, Any] = {"max_tokens": 200, "temperature": 1}
    with Engine(tiny) as engine:
        for seed in range(6):
            for response_format, words in ((FORMAT, ("--json-schema", schema)), ({"type": "json_object"}, ("--json-object",))):
                served = server.client.completions.create(
                    model="any", prompt="word", seed=seed, logprobs=0, extra_body={"response_format": response_format}, **options
                ).choices[0]
                reply = engine.submit("word", seed=seed, logprobs=0, response_format=response_format, **options)
                tokens = list(reply)
                assert "".join(token.text for token in tokens) == served.text
                assert [token.logprob for token in tokens] == served.logprobs.token_logprobs
                assert reply.finish_reason == served.finish_reason
                log = tmp_path / "log"
                done("generate", "--model", tiny, "--prompt", "word", "--tokens", 200, "--temperature", 1, "--seed", seed,
                     "--json", log, *words)  # fmt: skip
                *lines, last = map(json.loads, log.read_text().splitlines())
                assert last["text"] == served.text
                assert last["end"] == served.finish_reason
                assert [line["log_probability"] for line in lines] == served.logprobs.token_logprobs


def test_a_chat_of_the_command_begins_each_reply_anew(tiny):
    words = ("--chat", "--prompt", "Hello", "--temperature", 1, "--seed", 3, "--tokens", 60, "--json-object")
    assert done("generate", "--model", tiny, *words).startswith("{")


def test_what_is_wrong_with_a_format_of_python_or_the_command_is_one_error(tiny, tmp_path):
    wrong: Any
    with Engine(tiny) as engine:
        for wrong, error, text in (
            (5, TypeError, "submit: expected response_format a mapping, got 5"),
            ({}, ValueError, "submit: response_format.type: expected text, json_object or json_schema, got none"),
            ({"type": {1, 2}}, ValueError, "submit: expected a response_format that JSON can say"),
            ({"type": "json_object", "x": 1}, ValueError, "submit: response_format.x: expected a field that is known"),
        ):
            with pytest.raises(error, match=text):
                engine.submit([1], response_format=wrong)
        assert list(engine.submit([1], max_tokens=2)), "the engine goes on"
    schema = tmp_path / "schema.json"
    for text, words, code, message in (
        ("{", (), 1, "expected a schema in JSON"),
        ('{"type": "string", "pattern": "a"}', (), 1, "schema.pattern"),
        ("{}", ("--json-object",), 2, "expected no --json-object beside it"),
    ):
        schema.write_text(text)
        result = plimsoll("generate", "--model", tiny, "--json-schema", schema, *words)
        assert result.returncode == code and message in result.stderr and result.stderr.count("\n") == 1, result
    assert plimsoll("generate", "--model", tiny, "--json-schema", tmp_path / "none").returncode == 2


def test_an_end_beyond_the_models_vocabulary_is_none(tmp_path):
    """Tokens of the tokenizer's alone, of which the last ends a text: the masks have no place for it."""
    specials = tuple(f"<|{number}|>" for number in range(1000))
    folder = tiny_llama.write(tmp_path, end=specials[-1], specials=specials, spare_tokens=-len(specials))
    boolean = {"type": "json_schema", "json_schema": {"name": "no", "schema": {"type": "boolean"}}}
    with Engine(folder) as engine:
        assert engine.tokenizer and engine.tokenizer.eos_token_id and engine.tokenizer.eos_token_id >= engine._vocabulary
        assert engine._ends == []
        replies = [engine.submit("a", max_tokens=20, response_format=boolean, seed=seed) for seed in range(20)]
        assert {"".join(token.text for token in reply) for reply in replies} <= {"true", "false"}
    (schema := tmp_path / "schema.json").write_text('{"type": "boolean"}')
    assert done("generate", "--model", folder, "--prompt", "a", "--json-schema", schema).strip().endswith(("true", "false"))


def test_an_object_without_a_schema_begins_as_one_and_text_is_any(server):
    options = {"model": "any", "messages": MESSAGES, "max_tokens": 30, "temperature": 1, "seed": 2}
    text = lambda **more: server.client.chat.completions.create(**options, **more).choices[0].message.content
    assert text(response_format={"type": "json_object"}).startswith("{")
    assert text(response_format={"type": "text"}) == text() != text(response_format={"type": "json_object"})


def test_what_is_wrong_with_a_format_is_named(server):
    schema = lambda value: {"type": "json_schema", "json_schema": {"name": "x", "schema": value}}
    for wrong, name in (
        (5, "response_format"),
        ({}, "response_format.type"),
        ({"type": "xml"}, "response_format.type"),
        ({"type": "json_object", "schema": 5}, "response_format.schema"),
        ({"type": "text", "schema": {}}, "response_format.schema"),
        ({"type": "json_schema", "schema": {"type": "string", "pattern": "a"}}, "response_format.schema.pattern"),
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {"schema": {}}}, "response_format.json_schema.name"),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": {}, "y": 1}}, "response_format.json_schema.y"),
        (schema({"type": "string", "pattern": "a"}), "response_format.json_schema.schema.pattern"),
        (schema({"properties": {"a": {"minimum": 1}}}), "response_format.json_schema.schema.properties.a.minimum"),
        (schema({"enum": list(range(50_000))}), "response_format.json_schema.schema"),
        (schema({"properties": {f"p{i}": {} for i in range(6000)}}), "response_format.json_schema.schema"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            server.client.chat.completions.create(model="any", messages=MESSAGES, extra_body={"response_format": wrong})
        assert caught.value.param == name, (wrong, caught.value)
        assert name in caught.value.message


def test_the_example_of_a_schema_runs(server):
    (example,) = [block for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S) if "BaseModel" in block]
    example, ports = re.subn("127.0.0.1:8000", f"127.0.0.1:{server.port}", example)
    example, calls = re.subn("response_format=City", "response_format=City, temperature=1, seed=SEED, max_tokens=1500", example)
    assert ports == calls == 1
    cities: list[Any] = []
    for seed in range(5):
        code = example.replace("SEED", str(seed)).replace("print", "cities.append")
        with contextlib.suppress(openai.LengthFinishReasonError):  # random weights seldom end a string
            exec(code, {"cities": cities})
    assert all(isinstance(city.name, str) for city in cities)
