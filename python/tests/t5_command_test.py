"""`plimsoll t5` on small models with a tokenizer of their own: texts, ids, scores, encodings; and what it says to bad input."""

import json
import pathlib
import re
import subprocess

import plimsoll
import pytest
import sentencepiece
import torch
import transformers
from rounding import approx, rounds_alike
from safetensors.torch import load_file, save_file
from t5_models import exact, inputs, make, save, train_tokenizer

PROGRAM = plimsoll._library.find().parent / "bin" / "plimsoll"
SENTENCES = """The quick brown fox jumps over the lazy dog.
Der schnelle braune Fuchs springt über den faulen Hund.
Le vif renard brun saute par-dessus le chien paresseux.
敏捷的棕色狐狸跳过懒狗。
すばやい茶色の狐はのろまな犬を飛び越える。
Быстрая коричневая лиса перепрыгивает через ленивую собаку.
الثعلب البني السريع يقفز فوق الكلب الكسول.
빠른 갈색 여우가 게으른 개를 뛰어넘는다.
1234567890 + - * / = ( ) [ ] { } < > @ # $ % & ! ? ; :
Ligatures ﬁ ﬂ, full width ＡＢＣ, a  double   space, a\ttab, an emoji 😀 and e\u0301 decomposed.
""".splitlines()
PIECES, SENTINELS = 420, 100


@pytest.fixture(scope="module")
def spiece(tmp_path_factory):
    """A unigram model as T5's: pad 0, </s> 1, <unk> 2."""
    folder = tmp_path_factory.mktemp("spiece")
    train_tokenizer(folder, SENTENCES * 20, pieces=PIECES)
    return folder / "spiece.model"


@pytest.fixture(scope="module")
def model(spiece, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    theirs = make("v1.1", vocab_size=PIECES + SENTINELS + 8)
    save(theirs, folder)
    (folder / "spiece.model").write_bytes(spiece.read_bytes())
    return theirs, folder


def run(*arguments):
    return subprocess.run([PROGRAM, "t5", *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False)


def results(tmp_path, *arguments):
    done = run(*arguments, "--json", tmp_path / "out.jsonl")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()], done.stdout


def reference_ids(spiece, text):
    return sentencepiece.SentencePieceProcessor(model_file=str(spiece)).encode(text) + [1]


def test_texts_become_the_ids_of_hugging_faces_tokenizer(model, spiece, tmp_path):
    theirs, folder = model
    tokenizer = transformers.T5Tokenizer.from_pretrained(folder)
    (tmp_path / "in").write_text("\n".join(SENTENCES))
    encoded, _ = results(tmp_path, "encode", "--model", folder, "--input", tmp_path / "in", "--out", tmp_path / "e")
    outputs = load_file(tmp_path / "e")
    for number, text in enumerate(SENTENCES):
        ids = tokenizer(text).input_ids
        assert ids == reference_ids(spiece, text)
        assert encoded[number]["tokens"] == len(ids)
        with torch.no_grad():
            encode = lambda model, ids=ids: model.encoder(input_ids=torch.tensor([ids])).last_hidden_state[0]
            assert rounds_alike(outputs[f"input.{number}"], encode(theirs), encode(exact(theirs)))


def write_ids(path, rows):
    path.write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in rows))
    return path


def test_generate_writes_hugging_faces_ids(model, tmp_path):
    theirs, folder = model
    ids, mask = inputs(theirs, [7, 12, 3])
    rows = [row[: int(length)].tolist() for row, length in zip(ids, mask.sum(1), strict=True)]
    file = write_ids(tmp_path / "in.jsonl", rows)
    for options, theirs_options in (
        ([], {"do_sample": False}),
        (["--beams", "4"], {"num_beams": 4}),
        (
            ["--beams", "3", "--length-penalty", "0.5", "--early-stopping", "first"],
            {"num_beams": 3, "length_penalty": 0.5, "early_stopping": True},
        ),
    ):
        want = theirs.generate(input_ids=ids, attention_mask=mask, max_new_tokens=30, **theirs_options)
        for batch in (1, 2):
            got, printed = results(
                tmp_path, "generate", "--model", folder, "--input", file, "--batch", batch, "--max-new-tokens", 30, *options
            )
            assert [line["input"] for line in got] == [0, 1, 2]
            assert len(printed.splitlines()) >= 3
            for row, line in zip(want.tolist(), got, strict=True):
                end = row.index(1) if 1 in row else len(row)
                assert line["ids"] == row[1:end]


def test_generate_has_transformers_rules(model, tmp_path):
    theirs, folder = model
    ids, mask = inputs(theirs, [7, 12, 3])
    rows = [row[: int(length)].tolist() for row, length in zip(ids, mask.sum(1), strict=True)]
    file = write_ids(tmp_path / "in.jsonl", rows)
    plain = theirs.generate(input_ids=ids, attention_mask=mask, max_new_tokens=30, do_sample=False)
    bad_words = [[int(plain[0, 1])], plain[1, 2:4].tolist()]
    words = tmp_path / "words.jsonl"
    words.write_text("".join(json.dumps({"input_ids": word}) + "\n" for word in bad_words))
    for options, theirs_options in (
        (["--repetition-penalty", "1.7"], {"repetition_penalty": 1.7}),
        (["--no-repeat-ngram-size", "2"], {"no_repeat_ngram_size": 2}),
        (["--min-new-tokens", "30"], {"min_new_tokens": 30}),
        (["--bad-words", words], {"bad_words_ids": bad_words}),
        (
            ["--repetition-penalty", "1.2", "--no-repeat-ngram-size", "2", "--min-new-tokens", "4", "--bad-words", words],
            {"repetition_penalty": 1.2, "no_repeat_ngram_size": 2, "min_new_tokens": 4, "bad_words_ids": bad_words},
        ),
    ):
        for beams in (1, 3):
            want = theirs.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=30,
                do_sample=False,
                num_beams=beams,
                return_dict_in_generate=True,
                output_scores=True,
                **theirs_options,
            )
            got, _ = results(
                tmp_path, "generate", "--model", folder, "--input", file, "--max-new-tokens", 30, "--beams", beams, *options
            )
            for number, line in enumerate(got):
                row = want.sequences[number].tolist()
                assert line["ids"] == row[1 : row.index(1) if 1 in row else None], options
                if beams > 1:
                    # On either side a sum of at most 30 log probabilities in FP32.
                    assert line["score"] == approx(want.sequences_scores[number].item(), 2 * 30)
                else:
                    assert "score" not in line


def test_bad_words_are_texts_too(model, tmp_path):
    _, folder = model
    common = ["--model", folder, "--input", SENTENCES[0], "--max-new-tokens", 5]
    (before,), _ = results(tmp_path, "generate", *common)
    piece = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model")).encode("fox")
    (after,), _ = results(tmp_path, "generate", *common, "--bad-words", "fox")
    (tmp_path / "words.jsonl").write_text(json.dumps({"input_ids": piece}) + "\n")
    (by_ids,), _ = results(tmp_path, "generate", *common, "--bad-words", tmp_path / "words.jsonl")
    assert after["ids"] == by_ids["ids"]
    (none,), _ = results(tmp_path, "generate", *common, "--bad-words", "<pad>")  # a token that is its own text
    assert 0 not in none["ids"] and before["ids"]


@pytest.mark.parametrize("options", [[], ["--beams", "3"], ["--sample"], ["--stream"]])
def test_logits_that_are_not_finite_are_exit_3_and_one_line(model, tmp_path, options):
    _, folder = model
    copied = copy_of(folder, tmp_path / "copy")

    def spoil(tensors):
        tensors["shared.weight"][7] = float("nan")

    edit_tensors(copied, spoil)
    file = write_ids(tmp_path / "in.jsonl", [[5, 6, 1], [5, 7, 1]])
    done = run("generate", "--model", copied, "--input", file, "--max-new-tokens", 2, *options)
    assert done.returncode == 3, done
    assert done.stderr == "plimsoll: t5 generate: expected finite results, got Inf or NaN for 1 inputs, the first is input 1\n"
    watched = run("generate", "--model", copied, "--input", file, "--max-new-tokens", 2, "--watch", "guard", *options)
    assert watched.returncode == 3 and watched.stderr.startswith("watch guard: ") and watched.stderr.endswith(done.stderr)


def test_parity_compares_texts_with_texts(model, tmp_path):
    """Targets that are texts, with blanks around one."""
    _, folder = model
    (tmp_path / "in.txt").write_text("\n".join(SENTENCES[:3]))
    written, _ = results(
        tmp_path, "generate", "--model", folder, "--input", tmp_path / "in.txt", "--dtype", "fp32", "--max-new-tokens", 5
    )
    targets = [written[0]["text"], f"  {written[1]['text']}\n", written[2]["text"] + "x"]
    rows = [{"text": text, "target": target} for text, target in zip(SENTENCES, targets, strict=False)]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, rows)))
    done = subprocess.run(
        [
            PROGRAM,
            "parity",
            "--model",
            folder,
            "--data",
            tmp_path / "in.jsonl",
            "--dtypes",
            "fp32",
            "--max-new-tokens",
            "5",
            "--json",
            tmp_path / "parity.json",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "parity.json").read_text())["dtypes"]["fp32"]["accuracy"] == 2 / 3


def test_a_stream_is_the_text(model):
    _, folder = model
    whole = run("generate", "--model", folder, "--input", SENTENCES[0])
    streamed = run("generate", "--model", folder, "--input", SENTENCES[0], "--stream")
    assert whole.returncode == 0 and streamed.stdout == whole.stdout


def test_who_says_how_to_draw_draws(model, tmp_path):
    _, folder = model

    def ids(*options):
        (written,), _ = results(tmp_path, "generate", "--model", folder, "--input", SENTENCES[0], *options)
        return written["ids"]

    drawn = ids("--temperature", "3", "--seed", "5")
    assert drawn == ids("--sample", "--temperature", "3", "--seed", "5")
    assert drawn != ids()
    assert ids("--top-k", "1") == ids()


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16", "fp8"])
def test_score_is_the_targets_log_probability(model, spiece, dtype, tmp_path):
    theirs, folder = model
    source, target = SENTENCES[0], SENTENCES[1]
    (got,), _ = results(tmp_path, "score", "--model", folder, "--input", source, "--target", target, "--dtype", dtype)
    labels = torch.tensor([reference_ids(spiece, target)])
    with torch.no_grad():
        loss = theirs(input_ids=torch.tensor([reference_ids(spiece, source)]), labels=labels).loss.item()
    assert got["tokens"] == labels.numel()
    kept = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}[dtype]
    # Roundings to the format: of a logit, of both operands of its product and of the norm; in FP8 that of a code hides these.
    roundings = 1 if dtype == "fp8" else 4
    assert got["log_probability"] == approx(-loss * labels.numel(), roundings, kept)


def test_sentinels_have_their_ids(model, spiece, tmp_path):
    _, folder = model
    last = PIECES_OF(spiece) + SENTINELS - 1
    text = "The <extra_id_0> fox <extra_id_12>"
    write_ids(tmp_path / "in.jsonl", [])
    (tmp_path / "in.jsonl").write_text(json.dumps({"text": text}))
    (encoded,), _ = results(tmp_path, "encode", "--model", folder, "--input", tmp_path / "in.jsonl")
    parts = [*reference_ids(spiece, "The ")[:-1], last, *reference_ids(spiece, " fox ")[:-1], last - 12, 1]
    assert encoded["tokens"] == len(parts)


def PIECES_OF(spiece):
    return sentencepiece.SentencePieceProcessor(model_file=str(spiece)).get_piece_size()


def copy_of(folder, to):
    to.mkdir()
    for file in pathlib.Path(folder).iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    return to


def edit_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def edit_tensors(folder, edit):
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


def edit_pieces(folder, pattern, replacement):
    file = folder / "spiece.model"
    edited, count = re.subn(pattern, lambda _: replacement, file.read_bytes(), count=1)
    assert count == 1
    file.write_bytes(edited)


def truncate(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def drop_two(tensors):
    del tensors["shared.weight"], tensors["encoder.block.1.layer.0.SelfAttention.q.weight"]


def in_int8(tensors):
    tensors["encoder.final_layer_norm.weight"] = tensors["encoder.final_layer_norm.weight"].to(torch.int8)


def shard(folder, weight_map):
    (folder / "model.safetensors").rename(folder / "one.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


BROKEN = {
    "truncated": (truncate, 1, "truncated?"),
    "missing keys": (
        lambda folder: edit_tensors(folder, drop_two),
        1,
        "missing: encoder.block.1.layer.0.SelfAttention.q.weight, shared.weight",
    ),
    "fewer layers": (lambda folder: edit_config(folder, num_layers=2), 1, "unknown: encoder.block.2."),
    "another width": (lambda folder: edit_config(folder, d_ff=49), 1, "[48, 32] instead of [49, 32]"),
    "another kind": (lambda folder: edit_config(folder, model_type="bert"), 1, "model_type: expected t5, mt5 or umt5"),
    "no number": (lambda folder: edit_config(folder, d_model="x"), 1, "d_model: expected an integer"),
    "no size": (lambda folder: edit_config(folder, num_heads=0), 1, "num_heads"),
    "beyond memory": (lambda folder: edit_config(folder, d_model=2**40), 1, "d_model"),
    "no activation": (lambda folder: edit_config(folder, feed_forward_proj="gated-tanh"), 1, "feed_forward_proj"),
    "no JSON": (lambda folder: (folder / "config.json").write_text("{"), 1, "expected valid JSON"),
    "no tokenizer": (lambda folder: (folder / "spiece.model").unlink(), 1, "expected spiece.model"),
    "another tokenizer": (lambda folder: (folder / "spiece.model").write_text("no model"), 1, "expected a sentencepiece model"),
    "a piece of a zero byte": (
        lambda folder: edit_pieces(folder, rb"\n\x01[ -~]\x15", b"\n\x01\x00\x15"),
        1,
        "expected a sentencepiece model",
    ),
    "a number beyond doubles": (
        lambda folder: (folder / "config.json").write_text('{"d_model": 1e400}'),
        1,
        "expected numbers that a double holds",
    ),
    "no architecture": (
        lambda folder: edit_config(folder, tie_word_embeddings="maybe"),
        1,
        "tie_word_embeddings: expected true or false",
    ),
    "ids beyond the vocabulary": (lambda folder: edit_config(folder, eos_token_id=10**6), 1, "ids of pad, eos and decoder start"),
    "codes": (lambda folder: edit_tensors(folder, in_int8), 1, "expected F32, BF16 or F16, got I8"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), 1, "expected model.safetensors or"),
    "a lost shard": (
        lambda folder: shard(folder, {"shared.weight": "lost.safetensors"}),
        1,
        "expected the files lost.safetensors",
    ),
    "a shard elsewhere": (
        lambda folder: shard(folder, {"shared.weight": "../model.safetensors"}),
        1,
        "expected a file beside the index",
    ),
    "no index": (lambda folder: shard(folder, ["shared.weight"]), 1, "expected an object with a weight_map"),
    "too many tokens": (
        lambda folder: (folder / "tokenizer_config.json").write_text('{"extra_ids": 400}'),
        1,
        "expected at most the model's vocabulary",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_directories_are_one_line(model, name, tmp_path):
    damage, code, expected = BROKEN[name]
    folder = copy_of(model[1], tmp_path / "model")
    damage(folder)
    done = run("generate", "--model", folder, "--input", "text")
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("plimsoll: ") and done.stderr.count("\n") == 1, done.stderr
    assert expected in done.stderr, done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        ([], 2, "t5: expected "),
        (["--model", "{model}", "--input", "x"], 2, "t5: expected generate"),
        (["generte"], 2, "expected generate"),
        (["generate"], 2, "expected --model DIR"),
        (["generate", "--model", "/nowhere", "--input", "x"], 2, "--model: expected a file or directory"),
        (["generate", "--model", "{model}"], 2, "expected --input TEXT|FILE"),
        (["score", "--model", "{model}", "--input", "x"], 2, "expected --target"),
        (["generate", "--model", "{model}", "--input", "x", "--beams", "0"], 2, "--beams"),
        (["generate", "--model", "{model}", "--input", "x", "--beams", "2", "--stream"], 2, "stream"),
        (["generate", "--model", "{model}", "--input", "x", "--beams", "2", "--sample"], 1, "beams or sampling"),
        (["generate", "--model", "{model}", "--input", "x", "--dtype", "fp4"], 2, "--dtype"),
        (["generate", "--model", "{model}", "--input", "{empty}"], 1, "expected at least one line"),
        (["generate", "--model", "{model}", "--input", "{bad}"], 1, "line 1: input_ids: expected an array of ids from 0 to 527"),
        (["encode", "--model", "{model}", "--input", "x", "--out", "/nowhere/out"], 1, "/nowhere/out"),
    ],
)
def test_mistakes_are_one_line(model, arguments, code, expected, tmp_path):
    (tmp_path / "empty.txt").write_text("")
    write_ids(tmp_path / "bad.jsonl", [[528]])
    places = {"{model}": model[1], "{empty}": tmp_path / "empty.txt", "{bad}": tmp_path / "bad.jsonl"}
    done = run(*(places.get(argument, argument) for argument in arguments))
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("plimsoll: ") and done.stderr.count("\n") == 1, done.stderr
    assert expected in done.stderr, done.stderr


def test_a_prompt_beyond_memory_is_one_line(model, tmp_path):
    """Beside a shorter one, in FP16, whose mask has an element for each query and key: 12 TB."""
    file = write_ids(tmp_path / "long.jsonl", [[5] * 1_000_000, [5]])
    done = run("encode", "--model", model[1], "--input", file, "--dtype", "fp16")
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("plimsoll: ") and done.stderr.count("\n") == 1, done.stderr
    assert "memory" in done.stderr, done.stderr


def test_an_empty_text_is_a_text(model):
    done = run("generate", "--model", model[1], "--input", "", "--max-new-tokens", 3)
    assert done.returncode == 0, done.stderr
