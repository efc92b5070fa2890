"""plimsoll.tokenize.Tokenizer gives the ids and texts of Hugging Face's `tokenizers`, and the chats of transformers."""

import json
import os
import pathlib

import plimsoll.tokenize
import pytest
import tokenizer_texts
import torch
from tokenizer_test import MODELS, made_up, words_of
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer

SMOLLM2 = pathlib.Path(os.environ.get("PLIMSOLL_CACHE", "~/.cache/plimsoll")).expanduser() / "models" / "SmolLM2-135M-Instruct"
CHAT = [
    {"role": "user", "content": "caf\u00e9 in 1984?"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "\U0001f600"},
]


@pytest.fixture(params=["made up", "SmolLM2"])
def folder(request, tmp_path):
    if request.param == "made up":
        made_up(4, "none", "bytes", "bytes", MODELS[0]).save(str(tmp_path / "tokenizer.json"))
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<|end|>", "eos_token": {"content": "word"}}))
        return tmp_path
    if not SMOLLM2.is_dir():
        pytest.skip(f"{SMOLLM2} is missing; tools/import_gguf makes it")
    return SMOLLM2


def test_ids_and_texts_are_those_of_tokenizers(folder):
    theirs = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ours = plimsoll.tokenize.Tokenizer.from_pretrained(folder)
    for text in tokenizer_texts.random_texts(2000, 0, words_of(theirs)):
        for special in (True, False):
            ids = theirs.encode(text, add_special_tokens=special).ids
            assert ours.encode(text, add_special_tokens=special) == ids, text
            assert ours.decode(ids, skip_special_tokens=special) == theirs.decode(ids, skip_special_tokens=special), text
        assert ours.decode(torch.tensor(ids, dtype=torch.int64)) == theirs.decode(ids)
    assert len(ours) == theirs.get_vocab_size()
    for token in words_of(theirs):
        assert ours.token_to_id(token) == theirs.token_to_id(token)
    assert [ours.id_to_token(number) for number in range(400)] == [theirs.id_to_token(number) for number in range(400)]
    config = json.loads((folder / "tokenizer_config.json").read_text())
    eos = config["eos_token"]
    assert ours.bos_token_id == theirs.token_to_id(config["bos_token"])
    assert ours.eos_token_id == theirs.token_to_id(eos if isinstance(eos, str) else eos["content"])


def test_a_stream_gives_whole_characters(tmp_path):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())  # a token for each byte, no merges
    theirs = Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    theirs.pre_tokenizer, theirs.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    theirs.save(str(tmp_path / "tokenizer.json"))
    tokenizer = plimsoll.tokenize.Tokenizer.from_pretrained(tmp_path)
    text = "na\u00efve \U0001f468\u200d\U0001f469\u200d\U0001f467 \u65e5\u672c\u8a9e end"
    ids = tokenizer.encode(text, add_special_tokens=False)
    pieces = list(tokenizer.stream(ids))
    assert pieces == list(text)
    assert "".join(pieces) == tokenizer.decode(ids) == text
    assert "".join(tokenizer.stream(ids[:3])) == tokenizer.decode(ids[:3])  # which may end inside a character


def test_chats_are_those_of_transformers(folder):
    if folder != SMOLLM2:
        pytest.skip("the made-up tokenizer has no chat template")
    theirs = AutoTokenizer.from_pretrained(folder)
    ours = plimsoll.tokenize.Tokenizer.from_pretrained(folder)
    for prompt in (False, True):
        text = theirs.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=prompt)
        assert ours.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=prompt) == text
        ids = theirs.apply_chat_template(CHAT, add_generation_prompt=prompt)["input_ids"]
        assert ours.apply_chat_template(CHAT, add_generation_prompt=prompt) == ids


def made_up_tokenizer(folder):
    made_up(4, "none", "bytes", "bytes", MODELS[0]).save(str(folder / "tokenizer.json"))
    return plimsoll.tokenize.Tokenizer.from_pretrained(folder)


@pytest.mark.parametrize("number", [-1, 10**6, 2**40])
def test_ids_beyond_the_vocabulary_are_named(number, tmp_path):
    tokenizer = made_up_tokenizer(tmp_path)
    expected = f"tokenizer: expected ids of 0 to {len(tokenizer) - 1}, got {number}$"
    with pytest.raises(RuntimeError, match=expected):
        tokenizer.decode([0, number])
    with pytest.raises(RuntimeError, match=expected):
        list(tokenizer.stream([0, number]))


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda tokenizer: tokenizer.encode(3), "encode: expected a str, got 3"),
        (lambda tokenizer: tokenizer.encode(["a"]), r"encode: expected a str, got \['a'\]"),
        (lambda tokenizer: tokenizer.decode("abc"), "decode: expected ids, one sequence of integers, got 'abc'"),
        (lambda tokenizer: tokenizer.decode(3), "decode: expected ids, one sequence of integers, got 3"),
        (lambda tokenizer: tokenizer.decode(torch.zeros(1, 2, dtype=torch.int64)), "decode: expected ids, one sequence"),
        (lambda tokenizer: tokenizer.decode([1.5]), "decode: expected an id, an integer, got 1.5"),
        (lambda tokenizer: list(tokenizer.stream(["a"])), "stream: expected an id, an integer, got 'a'"),
        (lambda tokenizer: tokenizer.token_to_id(3), "token_to_id: expected a str, got 3"),
        (lambda tokenizer: tokenizer.id_to_token("a"), "id_to_token: expected an id, an integer, got 'a'"),
    ],
)
def test_arguments_of_another_type_are_named(call, expected, tmp_path):
    with pytest.raises(TypeError, match=expected):
        call(made_up_tokenizer(tmp_path))


@pytest.mark.parametrize("message", [{"role": "user"}, {"content": "x"}, "x"])
def test_a_message_without_its_parts_is_named(message, tmp_path):
    tokenizer = made_up_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages[0]['content'] }}"}))
    with pytest.raises(ValueError, match="expected messages with a role and a content, got"):
        tokenizer.apply_chat_template([message])
    call = {"role": "assistant", "tool_calls": []}
    assert tokenizer.apply_chat_template([call], tokenize=False) == ""


def test_what_is_wrong_is_named(tmp_path):
    with pytest.raises(RuntimeError, match="tokenizer.json"):
        plimsoll.tokenize.Tokenizer.from_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "Unigram"}}')
    with pytest.raises(RuntimeError, match='tokenizer.json.model.type: expected BPE, got "Unigram"'):
        plimsoll.tokenize.Tokenizer.from_pretrained(tmp_path)
