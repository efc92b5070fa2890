"""Requests for completions that are wrong in one place, drawn from a schema of the server's API."""

import json
from typing import Any

from served import CONTEXT, MESSAGES


class Number:
    """A field with a number, or an integer, in a range. `wrong(draw)`: a value that it may not have."""

    def __init__(self, low, high, whole=False):
        self.low, self.high, self.whole = low, high, whole

    def wrong(self, draw):
        beyond = [self.low - draw.choice([1, 2, 1e6, 1e300]), self.high + draw.choice([1 << 11, 2**64, 1e300])]
        if self.whole:
            between = min(self.high, max(self.low, 0)) + 0.5
            beyond = [self.low - draw.choice([1, 2, 1 << 40]), between, self.high + 1, 2**64, -(2**80), 1e300]
        return draw.choice([*beyond, *other_types(draw, (int, float))])


class Flag:
    def wrong(self, draw):
        return draw.choice(other_types(draw, (bool,)))


class Text:
    def wrong(self, draw):
        return draw.choice(other_types(draw, (str,)))


class Stops:
    def wrong(self, draw):
        return draw.choice(
            [["a"] * 17, [""], "", [["a"]], ["a", draw.choice(other_types(draw, (str,)))], *other_types(draw, (str, list))]
        )


class Messages:
    def wrong(self, draw):
        message = {"role": "user", "content": "a"}
        message[draw.choice(["role", "content", "tool_calls"])] = draw.choice([5, True, [None], {"a": []}])
        missing = {draw.choice(["role", "content"]): "user"}
        several = [{"role": "user", "content": "a"}] * draw.randrange(3)
        part = [{"type": draw.choice(["image_url", 5, None]), "text": "a"}]
        wrong = [[*several, message], [*several, missing], [*several, {"role": "user", "content": part}], []]
        return draw.choice([*wrong, *other_types(draw, (list,))])


class Prompt:
    def wrong(self, draw):
        return draw.choice(
            [[], [-1], [1, 10**6], [1.5], [1, "a"], ["a", "b"], [[1], [2]], [1] * CONTEXT, *other_types(draw, (str, list))]
        )


class Format:
    def wrong(self, draw):
        schema: Any = draw.choice(
            [5, {"type": "void"}, {"type": "string", "pattern": "a"}, {"properties": 5}, {"$ref": "#/a"}, {"enum": []}]
        )
        for _ in range(draw.randrange(4)):
            schema = draw.choice([{"type": "array", "items": schema}, {"properties": {"a": schema}}, {"anyOf": [{}, schema]}])
        named = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
        part = {
            "type": "json_schema",
            "json_schema": draw.choice([None, {}, {"name": "a"}, {"schema": {}}, {"name": 5, "schema": {}}]),
        }
        return draw.choice(
            [named, named, named, part, {}, {"type": "xml"}, {"type": "text", "x": 1}, *other_types(draw, (dict,))]
        )


class StreamOptions:
    def wrong(self, draw):
        inside = draw.choice([{"include_usage": value} for value in other_types(draw, (bool,))] + [{"x": 1}])
        return draw.choice([inside, *other_types(draw, (dict,))])


def other_types(draw, types):
    """Values of JSON's types but these, and but null, which is as if the field were not there."""
    values: list[Any] = [
        draw.random() < 0.5,
        draw.randrange(-5, 5),
        0.5,
        "",
        draw.choice(["a", "\0", "\U0001f600", "1"]),
        [],
        [[]],
        {},
        {"a": {}},
    ]
    return [value for value in values if type(value) not in types]


LEAST, LARGEST = -(2**63), 2**63 - 1
SCHEMA: dict[str, Any] = {
    "temperature": Number(0, 100), "top_p": Number(0, 1), "min_p": Number(0, 1), "top_k": Number(0, LARGEST, whole=True),
    "frequency_penalty": Number(-2, 2), "presence_penalty": Number(-2, 2),
    "stream": Flag(), "stream_options": StreamOptions(), "stop": Stops(), "user": Text(), "model": Text(), "response_format": Format(),
}  # fmt: skip
OF_OPENAI = {
    "repetition_penalty": Number(1e-3, 1000), "seed": Number(LEAST, LARGEST, whole=True), "n": Number(1, 16, whole=True),
    "max_tokens": Number(1, LARGEST, whole=True),
}  # fmt: skip
OF_CHATS = {
    "messages": Messages(),
    "logprobs": Flag(),
    "top_logprobs": Number(0, 20, whole=True),
    "max_completion_tokens": OF_OPENAI["max_tokens"],
}
OF_COMPLETIONS = {"prompt": Prompt(), "logprobs": Number(0, 20, whole=True), "echo": Flag()}
OF_LLAMA_CPP = {
    "prompt": Prompt(), "repeat_penalty": Number(1e-3, 1000), "seed": Number(-1, LARGEST, whole=True),
    "n_predict": Number(-1, LARGEST, whole=True), "n_keep": Number(-1, LARGEST, whole=True),
    "id_slot": Number(-1, LARGEST, whole=True), "cache_prompt": Flag(), "grammar": Text(),
}  # fmt: skip
# By path: the fields, and a request that is right.
PATHS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "/v1/chat/completions": (SCHEMA | OF_OPENAI | OF_CHATS, {"messages": MESSAGES, "max_tokens": 1, "temperature": 0}),
    "/v1/completions": (SCHEMA | OF_OPENAI | OF_COMPLETIONS, {"prompt": "a", "max_tokens": 1, "temperature": 0}),
    "/completion": (SCHEMA | OF_LLAMA_CPP, {"prompt": "a", "n_predict": 1, "temperature": 0}),
}
NEEDED = ("messages", "prompt")


def wrong_request(draw):
    """A path, a body that is wrong in one place, and the field that the error has to name."""
    path = draw.choice(list(PATHS))
    schema, good = PATHS[path]
    body: dict[str, Any] = dict(good)
    field = draw.choice([*schema, "unknown"])
    if field in NEEDED and draw.random() < 0.1:
        del body[field]
    else:
        body[field] = schema[field].wrong(draw) if field in schema else draw.choice([5, [], "a"])
    order = list(body)
    draw.shuffle(order)
    return path, {key: body[key] for key in order}, field


def damaged(body, draw):
    """The bytes of a body with a few of them others, gone or twice there."""
    data = bytearray(json.dumps(body).encode())
    for _ in range(draw.randrange(1, 4)):
        at = draw.randrange(len(data))
        data[at : at + draw.randrange(4)] = bytes(draw.randrange(256) for _ in range(draw.randrange(4))) or data[at:][:20]
    return bytes(data)


# Requests that are no HTTP, or say something untrue of their body.
