"""plimsoll finetune on a small random Llama: transformers' tokens, masks and losses; data that are refused; runs that are stopped and go on."""

import json
import os
import pathlib
import re
import signal
import subprocess

import finetune_runs
import pytest
import tokenizer_texts
import torch
from finetune_runs import (
    CHAT,
    PLAN,
    QUICK,
    STEPS_OF_20,
    STOPS,
    done_by_two,
    examples_of_20_steps,
    expect_losses,
    logged,
    losses,
    losses_of_transformers,
    refusal,
    same_sums,
    save_chats,
    save_model,
    shown,
    stop_at_step_4,
    tokens_and_counts,
    write_lines,
)
from program import PROGRAM, done, plimsoll
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

pytestmark = pytest.mark.skipif(not PROGRAM.is_file(), reason="bin/plimsoll is not built")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return save_chats(tmp_path_factory.mktemp("data"))


def words_of(model, data, *more):
    return finetune_runs.words_of(model, data, "--full", *more)


def until_last_counted(tokens, counts):
    size = max(i for i, count in enumerate(counts) if count) + 1
    return tokens[:size], counts[:size]


def test_tokens_and_those_that_count_are_those_of_transformers(model, data, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(model)
    examples = [json.loads(line) for line in data.read_text().splitlines()]
    lines = shown(model, data, tmp_path, "--eval-share=0", "--context=256")
    assert len(lines) == len(examples)
    for line in lines:
        example = examples[int(line["place"].rsplit(":", 1)[1]) - 1]
        tokens, counts = until_last_counted(*tokens_and_counts(tokenizer, example))
        assert (line["tokens"], line["counts"]) == (tokens, [int(count) for count in counts])


def test_all_tokens_but_the_first_count_where_they_are_to(model, data, tmp_path):
    for line in shown(model, data, tmp_path, "--eval-share=0", "--train-on=all", "--context=256"):
        assert line["counts"] == [0] + [1] * (len(line["tokens"]) - 1)


def test_pairs_and_texts_end_with_the_token_that_ends_a_text(model, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(model)
    path = write_lines(tmp_path / "x.jsonl", [{"prompt": "1 + 1 =", "completion": " two"}, {"text": "abc def"}])
    by_place = {line["place"][-1]: line for line in shown(model, path, tmp_path, "--eval-share=0")}
    prompt, completion = (tokenizer(text)["input_ids"] for text in ("1 + 1 =", " two"))
    text, end = tokenizer("abc def")["input_ids"], [tokenizer.eos_token_id]
    assert by_place["1"]["tokens"] == prompt + completion + end
    assert by_place["1"]["counts"] == [0] * len(prompt) + [1] * (len(completion) + 1)
    assert by_place["2"]["tokens"] == text + end and by_place["2"]["counts"] == [0] + [1] * len(text)


def test_a_text_file_is_learned_without_a_gap(model, tmp_path):
    text = tokenizer_texts.python_source(3000)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.txt").write_text(text)
    whole = AutoTokenizer.from_pretrained(model)(text)["input_ids"]
    lines = shown(model, tmp_path / "folder", tmp_path, "--eval-share=0", "--context=64", "--pack=no")
    pieces = {tuple(line["tokens"]) for line in lines}
    whole.append(AutoTokenizer.from_pretrained(model).eos_token_id)
    assert pieces == {tuple(whole[begin : begin + 64]) for begin in range(0, len(whole) - 1, 63)}
    assert sum(sum(line["counts"]) for line in lines) == len(whole) - 1


def test_what_counts_stands_between_marks(model, tmp_path):
    path = write_lines(tmp_path / "x.jsonl", [{"messages": CHAT}])
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokens, counts = until_last_counted(*tokens_and_counts(tokenizer, {"messages": CHAT}))
    before = counts.index(True)
    expected = f"{tokenizer.decode(tokens[:before])}[[{tokenizer.decode(tokens[before:])}]]\n"
    for environment in ({}, {"NO_COLOR": "1"}):
        said = plimsoll(*words_of(model, path, "--show-data=1"), environment=environment).stdout
        counts_line = "examples: 1 to train on, 0 held out; 0 cut, 0 skipped\n"
        assert said == f"{path}:1: {len(tokens)} tokens, {len(tokens) - before} count\n{expected}{counts_line}"


def on_terminal(*words):
    """Output of the program on a terminal."""
    ours, its = os.openpty()
    with subprocess.Popen(
        [str(PROGRAM), *map(str, words)], stdout=its, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
    ) as process:
        os.close(its)
        said = b""
        while part := read_or_end(ours):
            said += part
        os.close(ours)
    assert process.returncode == 0
    return said


def read_or_end(terminal):
    try:
        return os.read(terminal, 4096)
    except OSError:  # the program has ended
        return b""


def test_control_characters_of_the_data_are_spelled_on_a_terminal(model, tmp_path):
    text = "clear \x1b[2J and \x07 ring \x9b31m\tred"
    path = write_lines(
        tmp_path / "x.jsonl", [{"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "é"}]}]
    )
    said = on_terminal(*words_of(model, path, "--show-data=1"))
    assert rb"clear \x1b[2J and \x07 ring \x9b31m" + b"\tred" in said
    assert b"\x1b[32m" in said  # the colour of what counts
    assert text.encode() in plimsoll(*words_of(model, path, "--show-data=1")).stdout.encode()


def test_losses_of_20_steps_are_those_of_transformers(model, data, tmp_path):
    done(*words_of(model, data, "--out", tmp_path / "out", "--lr=3e-3", *STEPS_OF_20, *QUICK))
    theirs = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    expect_losses(losses(tmp_path / "out"), losses_of_transformers(theirs, examples_of_20_steps(model, data, tmp_path), 3e-3))


def rows_of(said):
    found = re.search(r" of (\d+) rows", said)
    assert found is not None, said
    return int(found[1])


def test_packed_rows_have_the_losses_of_rows_alone(model, data, tmp_path):
    """Each step reads all examples once: only the rows in which they stand differ, and the order of sums over their tokens."""
    plan = ["--context=256", "--lr=3e-3", "--eval-share=0", *QUICK]
    found, rows = {}, {}
    for pack in ("no", "yes"):
        rows[pack] = rows_of(done(*words_of(model, data, "--out", tmp_path / f"{pack}-1", "--steps=1", f"--pack={pack}", *plan)))
        all_rows = [f"--batch={rows[pack]}", "--steps=4", f"--pack={pack}"]
        done(*words_of(model, data, "--out", tmp_path / pack, *all_rows, *plan))
        found[pack] = losses(tmp_path / pack)
    assert rows["yes"] < rows["no"] / 2
    assert found["yes"] == same_sums(found["no"])


def test_the_result_is_a_directory_that_transformers_loads(model, data, tmp_path):
    out = tmp_path / "out"
    said = done(*words_of(model, data, "--out", out, "--context=256", "--epochs=0.5", "--lr=3e-3", *QUICK))
    assert "examples   85 to train on, 5 held out; 0 cut, 0 skipped" in said
    trained = AutoModelForCausalLM.from_pretrained(out)
    assert trained.config.to_diff_dict() == AutoModelForCausalLM.from_pretrained(model).config.to_diff_dict()
    tokenizer = AutoTokenizer.from_pretrained(out)
    ids = tokenizer("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        theirs = trained.generate(ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1] :]
    log = tmp_path / "generated.jsonl"
    done("generate", "--model", out, "--chat", "--prompt=Hi", "--temperature=0", "--tokens=12", "--json", log)
    ours = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["id"] for line in ours if "id" in line] == theirs.tolist()


@pytest.fixture(scope="module")
def whole(model, data, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "out"
    done(*words_of(model, data, "--out", out, *PLAN))
    return out


@pytest.mark.parametrize("how", STOPS)
def test_a_run_that_is_stopped_goes_on_with_the_same_bits(model, data, whole, tmp_path, how):
    out = tmp_path / "out"
    words = words_of(model, data, "--out", out, *PLAN)
    stop_at_step_4(words, out, how)
    assert not (out / "model.safetensors").exists()
    done(*words, "--resume")
    assert losses(out) == losses(whole)
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (out, whole))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("masters", ["fp32", "split", "none"])
def test_a_run_with_narrow_states_that_is_killed_goes_on_with_the_same_bits(model, data, tmp_path, masters):
    whole, out = tmp_path / "whole", tmp_path / "out"
    words = words_of(model, data, *PLAN, "--recipe=bf16", "--optimizer-state=8bit", f"--masters={masters}")
    done(*words, "--out", whole)
    stop_at_step_4([*words, "--out", out], out, signal.SIGKILL)
    done(*words, "--out", out, "--resume")
    assert losses(out) == losses(whole)
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (out, whole))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("shard", ["ddp", "zero1", "fsdp"])
def test_two_processes_have_the_losses_of_one(model, data, whole, tmp_path, shard):
    done_by_two(*words_of(model, data, "--out", tmp_path / "out", f"--shard={shard}", *PLAN))
    assert losses(tmp_path / "out") == same_sums(losses(whole))
    assert (tmp_path / "out" / "model.safetensors").is_file()


MISTAKES = {
    "{": "expected valid JSON, got an error at byte 2",
    "[]": "expected an object, got an array",
    '{"question": "x"}': "expected messages, prompt and completion, or text, got none of them",
    '{"prompt": "x"}': "expected messages, prompt and completion, or text, got none of them",
    '{"prompt": "x", "completion": "y", "text": "z"}': "expected one of messages, prompt and completion, and text, got completion and text",
    '{"prompt": "x", "text": "z"}': "expected one of messages, prompt and completion, and text, got prompt and text",
    '{"messages": [], "completion": "y"}': "expected one of messages, prompt and completion, and text, got messages and completion",
    '{"completion": "x"}': "prompt: expected a string, got none",
    '{"prompt": "x", "completion": ""}': "completion: expected a text, got an empty one",
    '{"text": 7}': "text: expected a string, got 7",
    '{"messages": {}}': "messages: expected an array, got an object",
    '{"messages": []}': "expected at least one message, got none",
    '{"messages": ["Hi"]}': 'messages[0]: expected an object, got "Hi"',
    '{"messages": [{"role": "user", "content": ""}]}': "messages[0].content: expected a text, got an empty one",
    '{"messages": [{"role": "user", "content": ["Hi"]}]}': "messages[0].content: expected a string, got an array",
    '{"messages": [{"content": "Hi"}]}': "messages[0].role: expected a string, got none",
    '{"messages": [{"role": "tool", "content": "x"}]}': "expected the roles system, user and assistant, got 'tool'",
    '{"messages": [{"role": "user", "content": "x"}]}': "expected a token to learn, such as of an assistant's message, got none",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_line_that_is_no_example_is_named(model, tmp_path, line):
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"messages": CHAT}) + "\n\n" + line + "\n")
    said = refusal(tmp_path, *words_of(model, path))
    assert said.startswith(f"plimsoll: {path}:3") and MISTAKES[line] in said, said


def test_data_that_cannot_serve_are_refused_before_anything_is_printed(model, tmp_path):
    for name, text, expected in (("empty.jsonl", "", "--data: expected an example"), ("bad.jsonl", "{\n", "bad.jsonl:1: ")):
        (tmp_path / name).write_text(text)
        result = plimsoll(*words_of(model, tmp_path / name, "--out", tmp_path / "out"))
        assert result.returncode == 1 and result.stdout == "" and expected in result.stderr, result


def test_text_that_is_not_utf_8_is_refused(model, tmp_path):
    (tmp_path / "x.jsonl").write_bytes(b'{"text": "a"}\n{"text": "\xff"}\n')
    assert f"{tmp_path}/x.jsonl:2: expected UTF-8, got another byte after 10 bytes" in refusal(
        tmp_path, *words_of(model, tmp_path / "x.jsonl")
    )
    (tmp_path / "x.txt").write_bytes(b"abc\xc3")
    assert f"{tmp_path}/x.txt: expected UTF-8, got another byte after 3 bytes" in refusal(
        tmp_path, *words_of(model, tmp_path / "x.txt")
    )


def test_a_template_that_is_not_known_is_refused(model, data, tmp_path):
    for file in model.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    said = refusal(tmp_path, *words_of(tmp_path, data))
    assert f"{data}:1: " in said and "expected the chat template of" in said


def test_examples_beyond_the_context_are_cut_or_left_out_or_refused(model, tmp_path):
    path = write_lines(tmp_path / "x.jsonl", [{"messages": CHAT}, {"text": "word " * 300}, {"messages": CHAT}])
    plan = ["--context=40", "--steps=1", "--eval-share=0", *QUICK]
    said = done(*words_of(model, path, "--out", tmp_path / "cut", *plan))
    assert "examples   3 to train on, 0 held out; 1 cut, 0 skipped" in said
    said = done(*words_of(model, path, "--out", tmp_path / "skip", "--overlong=skip", *plan))
    assert "examples   2 to train on, 0 held out; 0 cut, 1 skipped" in said
    said = refusal(tmp_path, *words_of(model, path), "--overlong=error", *plan)
    assert f"{path}:2: expected at most the 40 tokens of the context, got " in said


def test_held_out_examples_may_have_a_file_of_their_own(model, data, tmp_path):
    held_out = write_lines(tmp_path / "held_out.jsonl", [{"messages": CHAT}])
    said = done(*words_of(model, data, "--out", tmp_path / "out", "--eval-data", held_out, "--steps=1", *QUICK))
    assert "examples   90 to train on, 1 held out" in said
    tokenizer = AutoTokenizer.from_pretrained(model)
    trained = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    tokens, counts = tokens_and_counts(tokenizer, {"messages": CHAT})
    ids = torch.tensor([tokens])
    labels = torch.where(torch.tensor([counts], dtype=torch.bool), ids, -100)
    with torch.inference_mode():
        expected = trained(ids, labels=labels).loss.item()
    assert logged(tmp_path / "out")[-1]["final_val_loss"] == same_sums(expected)


def test_a_model_that_memory_does_not_hold_is_refused_before_it_is_there(model, data, tmp_path):
    for file in model.iterdir():
        (tmp_path / file.name).symlink_to(file)
    config = json.loads((model / "config.json").read_text())
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps({**config, "vocab_size": 1 << 24, "hidden_size": 4096}))
    said = refusal(tmp_path, *words_of(tmp_path, data), *QUICK)
    assert re.match(r"plimsoll: finetune: expected memory of [\d.]+ GB, got [\d.]+ GB that are free; no fine-tuning", said)


def test_data_that_are_no_regular_file_are_refused(model, tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    for path in (tmp_path / "pipe.jsonl", pathlib.Path("/dev/zero")):
        assert "expected a regular file" in refusal(tmp_path, *words_of(model, path))


def test_replies_are_shown_before_and_after(model, data, tmp_path):
    said = done(*words_of(model, data, "--out", tmp_path / "out", "--steps=2", *QUICK, "--samples=1"))
    assert said.count("\nbefore ") == said.count("\nafter  ") == 1


def test_released_gradients_have_the_bits_of_those_that_are_kept(model, data, tmp_path):
    for out, words in {"kept": ["--clip=1e30"], "released": ["--release-gradients"]}.items():
        narrow = ["--recipe=bf16", "--masters=none", "--optimizer-state=8bit", "--accumulate=2"]
        done(*words_of(model, data, "--out", tmp_path / out, *PLAN, *narrow, *words))
    assert losses(tmp_path / "released") == losses(tmp_path / "kept")
    released, kept = (load_file(tmp_path / out / "model.safetensors") for out in ("released", "kept"))
    assert all(torch.equal(released[name], kept[name]) for name in kept)


RELEASES = {
    "--clip=1": "--release-gradients: expected no --clip, which needs the norm of all gradients, got 1",
    "--shard=ddp": "--release-gradients: expected --shard none, got ddp",
    "--recipe=fp16": "--release-gradients: expected --loss-scale none, since a loss scale may skip a step, got that of --recipe fp16",
}


@pytest.mark.parametrize("words", RELEASES)
def test_what_needs_all_gradients_is_refused_where_they_are_released(model, data, tmp_path, words):
    assert RELEASES[words] in refusal(tmp_path, *words_of(model, data, "--release-gradients", words))


def test_the_end_is_told_once_by_the_first_steps(model, data, tmp_path):
    result = plimsoll(*words_of(model, data, "--out", tmp_path / "out", *QUICK, "--steps=5"))
    assert result.returncode == 0 and result.stderr == ""
    assert len(re.findall(r"^time       about \d+:\d\d more, as the first steps have it$", result.stdout, re.MULTILINE)) == 1
