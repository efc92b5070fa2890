"""plimsoll.serve.Engine: the replies of `plimsoll generate`, in loops and in event loops that end at any time."""

import asyncio
import copy
import os
import pickle
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import tiny_llama
import torch
from plimsoll.serve import Engine, QueueFull, Token
from program import generated

PAGE = Path(__file__).parents[2] / "docs" / "serve.md"
CONTEXT = 40_000  # as in served.py: a reply that a test ends is still being written


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A llama with random weights and no token that ends a text."""
    return tiny_llama.write(tmp_path_factory.mktemp("tiny"), end=None, max_position_embeddings=CONTEXT)


@pytest.fixture(scope="module")
def engine(tiny):
    with Engine(tiny, max_batch=8) as opened:
        yield opened


def test_a_reply_is_what_the_command_writes(engine, tiny, tmp_path):
    for words, options in (
        (("--temperature", 0), {"temperature": 0}),
        (("--temperature", 0.9, "--top-p", 0.8, "--seed", 5), {"temperature": 0.9, "top_p": 0.8, "seed": 5}),
    ):
        text, ids, log_probabilities = generated(tiny, tmp_path, "--prompt", "The sea", "--tokens", 40, *words)
        reply = engine.submit("The sea", max_tokens=40, logprobs=2, **options)
        tokens = list(reply)
        assert [token.id for token in tokens] == ids
        assert [token.logprob for token in tokens] == log_probabilities
        assert text.startswith("".join(token.text for token in tokens)) and tokens[5].text
        assert all(len(token.top) == 2 for token in tokens) and reply.finish_reason == "length"
        assert engine.submit(engine.tokenizer.encode("The sea"), max_tokens=3, **options).__next__() == Token(
            tokens[0].id, tokens[0].text, None, []
        )


def test_replies_of_an_event_loop_are_those_of_plain_loops(engine):
    options = [{"prompt": [1 + i, 2, 3], "max_tokens": 5 + i, "temperature": 1, "seed": i, "logprobs": 1} for i in range(20)]
    plain = [list(engine.submit(**each)) for each in options]

    async def read(each):
        return [token async for token in engine.submit(**each)]

    async def main():
        return await asyncio.gather(*map(read, options))

    assert asyncio.run(main()) == plain
    assert [len(tokens) for tokens in plain] == [each["max_tokens"] for each in options]


def test_an_end_token_ends_the_reply(engine):
    first, second = list(engine.submit([1, 2], max_tokens=2, temperature=0))
    reply = engine.submit([1, 2], temperature=0, end_ids=[second.id])
    ids = [token.id for token in reply]
    assert ids == ([first.id] if first.id == second.id else [first.id, second.id]) and reply.finish_reason == "stop"


def test_other_threads_go_on_while_one_waits(tiny):
    with Engine(tiny, max_batch=1) as engine:
        long = engine.submit([1, 2])
        waiting = engine.submit([1, 3], max_tokens=2)
        thread = threading.Thread(target=waiting._core.wait_for, args=(60_000,))
        start = time.monotonic()
        thread.start()
        long.cancel()
        thread.join()
        assert time.monotonic() - start < 30
        assert len(list(waiting)) == 2


def test_a_cancelled_reply_ends_without_an_error(engine):
    reply = engine.submit([1, 2])
    next(reply)
    reply.cancel()
    assert 1 + len(list(reply)) < CONTEXT - 2 and reply.finish_reason == "cancelled"

    async def cancelled():
        mine = engine.submit([1, 2])
        return [mine.cancel() async for _ in mine], mine.finish_reason

    tokens, reason = asyncio.run(cancelled())
    assert len(tokens) < CONTEXT - 2 and reason == "cancelled"


def test_a_reply_that_nobody_holds_frees_its_place(tiny):
    with Engine(tiny, max_batch=1, queue=1) as engine:
        running = engine.submit([1, 2])
        next(running)
        waiting = engine.submit([1, 3])
        with pytest.raises(QueueFull):
            engine.submit([1, 4])
        del waiting
        while True:
            try:
                engine.submit([1, 5], max_tokens=1)
                break
            except QueueFull:
                time.sleep(0.001)
        running.cancel()
        assert 1 + len(list(running)) < CONTEXT - 2, "the place was that of the reply that ran"


def test_an_error_of_the_engine_reaches_the_loop_that_reads(tmp_path):
    directory = tiny_llama.write(tmp_path, end=None)

    async def read(reply):
        return [token async for token in reply]

    with Engine(directory) as engine:
        assert len(list(engine.submit([1, 2], max_tokens=2))) == 2
        os.truncate(directory / "model.safetensors", 4096)
        with pytest.raises(RuntimeError, match="expected the bytes that it had when it was opened"):
            list(engine.submit([1, 2], max_tokens=2))
        with pytest.raises(RuntimeError, match="expected the bytes that it had when it was opened"):
            asyncio.run(read(engine.submit([1, 2], max_tokens=2)))


def test_logits_that_are_not_finite_are_an_error(tmp_path):
    directory = tiny_llama.write(tmp_path, end=None)
    from safetensors.torch import load_file, save_file

    weights = load_file(directory / "model.safetensors")
    weights["model.norm.weight"][:] = torch.nan
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    with Engine(directory) as engine, pytest.raises(RuntimeError, match="expected finite logits, got Inf or NaN"):
        list(engine.submit([1, 2]))


def test_the_end_of_the_engine_ends_its_replies(tiny):
    engine = Engine(tiny, max_batch=1)
    replies = [engine.submit([1, 2]) for _ in range(3)]
    engine.close()
    engine.close()
    for reply in replies:
        assert len(list(reply)) < CONTEXT - 2 and reply.finish_reason == "cancelled"
    with pytest.raises(RuntimeError, match="expected an engine that is open, got one that is closed"):
        engine.submit([1])


def test_a_stop_ends_the_text_and_is_not_shown(engine, tiny, tmp_path):
    options = {"max_tokens": 40, "temperature": 0}
    tokens = [token.text for token in engine.submit("The sea", **options)]
    text = "".join(tokens)
    for stop in (text[20:23], [text[20:23], "never to be found"], text[12:20]):
        first = stop if isinstance(stop, str) else stop[0]
        reply = engine.submit("The sea", stop=stop, **options)
        assert "".join(token.text for token in reply) == text[: text.index(first)] and reply.finish_reason == "stop"
        with pytest.raises(StopIteration):
            next(reply)
        words = ("--prompt", "The sea", "--tokens", 40, "--temperature", 0, "--stop", first)
        assert generated(tiny, tmp_path, *words)[0] == text[: text.index(first)]
    # Text that may begin a stop is held, and given with the last token.
    assert "".join(token.text for token in engine.submit("The sea", stop=text[-2:] + "never", **options)) == text


def test_the_tokens_have_all_of_the_text(engine, tiny, tmp_path):
    """Half a character at the end among it."""
    for seed in (*range(7), -7):
        text, _, _ = generated(tiny, tmp_path, "--prompt", "a", "--tokens", 9, "--temperature", 1, "--seed", seed)
        assert "".join(token.text for token in engine.submit("a", max_tokens=9, temperature=1, seed=seed)) == text


def test_an_empty_text_is_a_line_break(engine):
    ids = lambda prompt: [token.id for token in engine.submit(prompt, max_tokens=9, temperature=0)]
    assert ids("") == ids("\n")


def test_a_reply_is_as_long_as_the_context_lets_it(tiny):
    with Engine(tiny, max_context=20) as engine:
        for wanted in (None, 18, 19, 2**63 - 1):
            assert len(list(engine.submit([1, 2], max_tokens=wanted))) == 18


def test_any_seed_is_taken(engine):
    ids = lambda seed: [token.id for token in engine.submit([1, 2], max_tokens=20, temperature=1, seed=seed)]
    assert ids(-1) == ids(-1) != ids(1) and ids(-(2**63)) and ids(2**63 - 1)


FORKED = """
import os, signal, sys
from plimsoll.serve import Engine
engine = Engine({tiny!r}, max_batch=2)
replies = [engine.submit([1, 2]) for _ in range(3)]
next(replies[0])
def submit(): engine.submit([1, 2])
def read():
    global replies
    next(replies[1])
def close(): engine.close()
def drop():
    global engine, replies
    del engine, replies
def leave(): sys.exit(0)
for act in (submit, read, close, drop, leave):
    if (child := os.fork()) == 0:
        signal.alarm(60)
        try:
            act()
        except RuntimeError as error:
            print(act.__name__, error, flush=True)
        else:
            print(act.__name__, flush=True)
        os._exit(0)
    print(os.waitpid(child, 0)[1], flush=True)
for reply in replies:
    reply.cancel()
print(len(list(engine.submit([1, 2], max_tokens=3))))
"""


def test_a_forked_child_does_not_hang(tiny):
    script = FORKED.format(tiny=str(tiny))
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=400, check=False)
    refusal = "Engine: expected the process that made the engine, got a child of it"
    assert result.stdout.splitlines() == [
        f"submit {refusal}",
        "0",
        f"read {refusal}",
        "0",
        "close",
        "0",
        "drop",
        "0",
        "0",
        "3",
    ], result


def test_an_engine_lives_as_long_as_its_replies(tiny):
    assert len(list(Engine(tiny).submit([1, 2], max_tokens=3))) == 3


def test_a_second_loop_over_a_reply_is_an_error(tiny):
    async def main():
        with Engine(tiny, max_batch=1) as engine:
            running, waiting = engine.submit([1, 2]), engine.submit([1, 3])
            first = asyncio.ensure_future(anext(waiting))
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="expected one loop that reads it, got a second"):
                await anext(waiting)
            running.cancel()
            return await first

    assert isinstance(asyncio.run(main()), Token)


ENDS = {
    "the main task ends before its others": "asyncio.run(main())",
    "the event loop closes under a task": """
        loop = asyncio.new_event_loop()
        loop.run_until_complete(main())
        loop.close()
    """,
    "the main task fails": """
        try:
            asyncio.run(main(fails=True))
        except KeyError:
            pass
    """,
    "a thread still reads": "threading.Thread(target=list, args=(engine.submit([1, 2], max_tokens=200),)).start()",
    "a daemon still reads": "threading.Thread(target=list, args=(engine.submit([1, 2]),), daemon=True).start()",
}


@pytest.mark.parametrize("end", ENDS)
def test_nothing_hangs_when(end, tiny):
    script = f"""
import asyncio, threading
from plimsoll.serve import Engine
engine = Engine({str(tiny)!r}, max_batch=2)
async def read():
    async for token in engine.submit([1, 2]):
        pass
async def main(fails=False):
    global tasks
    tasks = [asyncio.ensure_future(read()) for _ in range(4)]
    await anext(engine.submit([1, 2]))
    if fails:
        raise KeyError
{re.sub(r"^        ", "", ENDS[end], flags=re.MULTILINE)}
print("ended")
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0 and result.stdout == "ended\n", result
    assert "Traceback" not in result.stderr, result.stderr


def test_what_is_wrong_is_named(tiny, engine, tmp_path):
    engines: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"dtype": "int8"}, ValueError, "Engine: expected dtype"),
        ({"kv": "int8"}, ValueError, "kv"),
        ({"kv": 3}, TypeError, "Engine: expected kv a string, got 3"),
        ({"max_batch": 0}, ValueError, "Engine: expected max_batch from 1 to 128, got 0$"),
        ({"max_batch": 129}, ValueError, "Engine: expected max_batch from 1 to 128, got 129$"),
        ({"queue": 0}, ValueError, "Engine: expected queue from 1 to 10000, got 0"),
        ({"queue": 10**30}, ValueError, "Engine: expected queue from 1 to 10000, got 10+$"),
        ({"max_batch": 10**30}, ValueError, "Engine: expected max_batch from 1 to 128"),
        ({"max_context": 10**30}, ValueError, "Engine: expected max_context from 2 to"),
        ({"max_context": CONTEXT + 1}, ValueError, f"expected a max_context of at most the {CONTEXT} tokens"),
        ({"adapters": ["a"]}, TypeError, r"Engine: expected adapters a mapping of names to directories, got \['a'\]"),
        ({"adapters": {"\ud800": "a"}}, ValueError, "Engine: expected an adapter's name of Unicode characters"),
        ({"adapters": {"a": 5}}, TypeError, r"Engine: expected adapters\['a'\] a path, got 5"),
        ({"max_context": 1}, ValueError, "Engine: expected max_context from 2 to 9223372036854775807, got 1"),
        ({"memory": 0}, ValueError, "Engine: expected memory in GiB, more than 0 and less than 1048576, got 0"),
        ({"memory": 1e9}, ValueError, "Engine: expected memory in GiB, more than 0 and less than 1048576, got 1000000000"),
        ({"memory": 1e-6}, ValueError, "serve: expected a memory of"),
        ({"memory": float("nan")}, ValueError, "Engine: expected memory in GiB"),
    ]
    for options, error, text in engines:
        with pytest.raises(error, match=text):
            Engine(tiny, **options)
    with pytest.raises(RuntimeError, match="config.json"):
        Engine(tmp_path)
    directories: list[Any] = [None, b"x", 5]
    for directory in directories:
        with pytest.raises(TypeError, match=f"Engine: expected model_dir a path, got {directory!r}"):
            Engine(directory)
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="Engine: expected an engine to stay in its process, got a pickle or a copy of it"):
            copied(engine)
    requests: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
        ([], {}, ValueError, "expected a prompt of one token or more, got none"),
        ([-1], {}, ValueError, "expected tokens from 0 to"),
        ([1.5], {}, TypeError, r"submit: expected prompt\[0\] an integer, got 1.5"),
        (5, {}, TypeError, "submit: expected prompt a list of integers, got 5"),
        ([2**63], {}, ValueError, r"submit: expected prompt\[0\] a token's id, got 9223372036854775808"),
        (
            [1] * CONTEXT,
            {},
            ValueError,
            f"submit: expected a prompt of less than the {CONTEXT} tokens that it and its reply may have",
        ),
        ("a\udc80", {}, ValueError, r"submit: expected a prompt of Unicode characters, got '\\udc80' at 1, which is none"),
        *(
            ([1], {"max_tokens": count}, ValueError, f"submit: expected max_tokens from 1 to {2**63 - 1}, got {count}$")
            for count in (0, -1, 10**30)
        ),
        *(
            ([1], {"temperature": value}, ValueError, f"submit: expected temperature from 0 to 100, got {value}")
            for value in (-1, 101, float("inf"), float("nan"))
        ),
        ([1], {"top_p": 1.5}, ValueError, "submit: expected top_p from 0 to 1, got 1.5"),
        ([1], {"min_p": -0.5}, ValueError, "submit: expected min_p from 0 to 1, got -0.5"),
        ([1], {"presence_penalty": 3}, ValueError, "submit: expected presence_penalty from -2 to 2, got 3"),
        ([1], {"frequency_penalty": -3}, ValueError, "submit: expected frequency_penalty from -2 to 2, got -3"),
        ([1], {"top_k": 2**63}, ValueError, "submit: expected top_k from 0 to 9223372036854775807"),
        ([1], {"logprobs": 21}, ValueError, "submit: expected logprobs from 0 to 20, got 21"),
        (
            [1],
            {"seed": 2**63},
            ValueError,
            "submit: expected seed from -9223372036854775808 to 9223372036854775807, got 9223372036854775808",
        ),
        ([1], {"end_ids": [2**70]}, ValueError, r"submit: expected end_ids\[0\] a token's id"),
        ([1], {"adapter": "\ud800"}, ValueError, "submit: expected adapter of Unicode characters"),
        ([1], {"response_format": {"type": "\ud800"}}, ValueError, "submit: expected a response_format of Unicode characters"),
        ([1], {"temperature": "1"}, TypeError, "submit: expected temperature a number, got '1'"),
        ([1], {"seed": -(2**63) - 1}, ValueError, "submit: expected seed from -9223372036854775808 to"),
        ([1], {"end_ids": [3, -1]}, ValueError, r"submit: expected end_ids\[1\] from 0 to \d+, got -1"),
        ([1], {"end_ids": [10**6]}, ValueError, r"submit: expected end_ids\[0\] from 0 to \d+, got 1000000"),
        ([1], {"stop": 5}, TypeError, "submit: expected stop a text or a list of texts, got 5"),
        ([1], {"stop": ["a", 5]}, TypeError, r"submit: expected stop\[1\] a string, got 5"),
        ([1], {"stop": ""}, ValueError, "submit: expected texts in stop that are not empty, got an empty one"),
        ([1], {"stop": ["a"] * 17}, ValueError, "submit: expected at most 16 texts in stop, got 17"),
        ([1], {"stop": "\ud800"}, ValueError, r"submit: expected stop\[0\] of Unicode characters"),
        ([1], {"repetition_penalty": 0}, ValueError, "submit: expected repetition_penalty from 0.001 to 1000, got 0"),
    ]
    for prompt, options, error, text in requests:
        with pytest.raises(error, match=text):
            engine.submit(prompt, **options)


def test_the_example_of_the_page_runs(tiny):
    example = next(block for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S) if "Engine" in block)
    example, places = re.subn(r'"~/[^"]*"', repr(str(tiny)), example)
    assert places == 1
    result = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0 and result.stdout, result
