"""Tokens of `plimsoll serve` with their log probabilities: bytes that join to the text, and places in it."""

import json
import re

import pytest
from served import MESSAGES, serving, write_tiny


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(write_tiny(tmp_path_factory.mktemp("tiny")), "--max-batch", 4) as served:
        yield served
        assert served.stop() == 0


# A text that is written whole whatever the model would say, whose characters are no tokens of the tiny tokenizer.
FORCED = "a\U0001f496\u65e5\u672c\u00e9z"
SPECIAL = re.compile(r"<\|.*\|>")  # tokens that are not in the text
FORCING = {"response_format": {"type": "json_schema", "schema": {"const": FORCED}}}


def spelled(text):
    """The bytes of a token as a completion has it."""
    if not text.startswith("bytes:"):
        return text.encode()
    return re.sub(rb"\\x(..)", lambda found: bytes.fromhex(found[1].decode()), text.removeprefix("bytes:").encode())


def test_bytes_of_a_chats_tokens_join_to_the_text(server):
    for body in (FORCING, {"temperature": 1, "seed": 4}):
        options = {
            "model": "any",
            "messages": MESSAGES,
            "max_tokens": 99,
            "logprobs": True,
            "top_logprobs": 5,
            "extra_body": body,
        }
        choice = server.client.chat.completions.create(**options).choices[0]
        tokens = choice.logprobs.content
        joined = b"".join(bytes(token.bytes) for token in tokens if not SPECIAL.fullmatch(token.token))
        assert joined.decode(errors="replace") == choice.message.content
        pieces = [token for token in tokens if token.token.startswith("\\x")]
        assert len(pieces) > 5, "the text has characters of several tokens"
        for each in [*tokens, *(other for token in tokens for other in token.top_logprobs)]:
            assert each.bytes and "\ufffd" not in each.token
            assert "\\x" in each.token or each.token.encode() == bytes(each.bytes)
        if body is FORCING:
            assert json.loads(choice.message.content) == FORCED and pieces[0].token == "\\xf0"


def test_offsets_of_a_completions_tokens_are_places_in_its_text(server):
    for body in (FORCING, {"temperature": 1, "seed": 4}):
        options = {"model": "any", "prompt": "a", "max_tokens": 99, "logprobs": 5, "extra_body": body}
        choice = server.client.completions.create(**options).choices[0]
        logprobs, before = choice.logprobs, b""
        for token, offset in zip(logprobs.tokens, logprobs.text_offset, strict=True):
            if body is FORCING:
                assert offset == len(before.decode(errors="ignore")), token
            before += b"" if SPECIAL.fullmatch(token) else spelled(token)
        assert before.decode(errors="replace") == choice.text
        assert logprobs.text_offset == sorted(logprobs.text_offset) and logprobs.text_offset[-1] < len(choice.text)
        assert body is not FORCING or {"bytes:\\xf0", "bytes:\\x9f"} <= set(logprobs.tokens)
        streamed = [piece.choices[0].logprobs for piece in server.client.completions.create(**options, stream=True)]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            joined = [value for each in streamed if each for value in getattr(each, name)]
            assert joined == getattr(logprobs, name), name
