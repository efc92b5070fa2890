"""Texts and chats that plimsoll gauge reads of a decoder: with its tokenizer, as plimsoll finetune does."""

import pytest
from finetune_runs import chats, save_chats, save_model, write_lines
from gauge_program import PROGRAM, gauge, write_ids
from program import plimsoll, refused
from transformers import AutoTokenizer

pytestmark = pytest.mark.skipif(not PROGRAM.is_file(), reason="bin/plimsoll is not built")

QUICK = ("--measurements", 2)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source") / "model"
    folder.mkdir()
    return save_model(folder)


def findings(certificate):
    """The certificate without the name of the file that its inputs stood in."""
    del certificate["calibration"]["file_sha256"]
    return certificate


def test_chats_and_texts_are_the_ids_of_the_models_tokenizer(model, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(model)
    examples = [*chats(5), {"text": "The sea is wide."}, {"prompt": "One, ", "completion": "two."}, {"input_ids": [5, 6, 7]}]
    end = [tokenizer.eos_token_id]
    rows = [tokenizer.apply_chat_template(line["messages"], return_dict=False) for line in examples[:5]]
    rows += [tokenizer("The sea is wide.")["input_ids"] + end, tokenizer("One, two.")["input_ids"] + end, [5, 6, 7]]
    ids = write_ids(tmp_path / "ids.jsonl", *({"input_ids": row} for row in rows))
    lines = write_lines(tmp_path / "lines.jsonl", examples)
    found = findings(gauge(model, tmp_path / "by_texts", "--calibrate", lines, *QUICK))
    assert found["calibration"]["inputs"] == len(rows)
    assert found == findings(gauge(model, tmp_path / "by_ids", "--calibrate", ids, *QUICK))


def test_the_data_of_finetune_gauge_a_model_for_training(model, tmp_path):
    data = save_chats(tmp_path)
    certificate = gauge(model, tmp_path / "out", "--calibrate", data, "--train", *QUICK)
    assert certificate["calibration"]["inputs"] >= 90 and certificate["train"]["loss_scale"] is not None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"words": "a"}', "expected input_ids, messages, prompt and completion, or text, got none of them"),
        (b'{"text": "a", "input_ids": [5]}', "expected input_ids or text, got both"),
        (b'{"text": ""}', "text: expected a text, got an empty one"),
        (b'{"messages": [{"role": "robot", "content": "a"}]}', "got 'robot'"),
        (b'{"input_ids": [5, 1000000]}', "expected an array of ids from 0 to "),
        (b'{"text": "a\xff"}', "expected valid JSON, got an error at byte 12"),
        (b"3", "expected an object"),
    ],
)
def test_a_line_that_is_no_input_is_named(model, tmp_path, line, expected):
    file = tmp_path / "lines.jsonl"
    file.write_bytes(b'{"text": "The sea"}\n\n' + line + b"\n")
    result = plimsoll("gauge", "--model", model, "--out", tmp_path / "out", "--calibrate", file)
    assert (result.returncode, result.stdout) == (1, ""), result
    assert result.stderr.startswith(f"plimsoll: {file}, line 3") and expected in result.stderr
    assert list(tmp_path.iterdir()) == [file]


def test_a_text_that_is_not_utf8_is_named_with_its_line(model, tmp_path):
    file = tmp_path / "lines.txt"
    file.write_bytes(b"The sea\n\nis w\xffde\n")
    error = refused("gauge", "--model", model, "--out", tmp_path / "out", "--calibrate", file)
    assert error.startswith(f"plimsoll: {file}, line 3: ") and "UTF-8" in error


def test_texts_need_a_tokenizer_and_ids_none(tmp_path, model):
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        (bare / name).write_bytes((model / name).read_bytes())
    ids = write_ids(tmp_path / "ids.jsonl", {"input_ids": [1, 2, 3]})
    texts = write_ids(tmp_path / "texts.jsonl", {"text": "The sea"})
    assert gauge(bare, tmp_path / "by_ids", "--calibrate", ids, *QUICK)["calibration"]["input_tokens"] == 3
    error = refused("gauge", "--model", bare, "--out", tmp_path / "out", "--calibrate", texts)
    assert f"{bare}: expected tokenizer.json" in error
