"""`plimsoll t5` on small models with a tokenizer of their own: texts, ids, scores, encodings."""

import json
import subprocess

import pytest
import sentencepiece
import torch
import transformers
from rounding import approx, rounds_alike
from safetensors.torch import load_file
from t5_command import PROGRAM, SENTENCES, SENTINELS, copy_of, edit_tensors, new_model, results, run, write_ids
from t5_models import exact, inputs


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    return new_model(folder), folder


@pytest.fixture(scope="module")
def spiece(model):
    return model[1] / "spiece.model"


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
    assert done.stderr == "plimsoll: t5 generate: expected finite results, got Inf or NaN for 1 input, the first is input 1\n"
    watched = run("generate", "--model", copied, "--input", file, "--max-new-tokens", 2, "--watch", "guard", *options)
    assert watched.returncode == 3 and watched.stderr.startswith("watch guard: ") and watched.stderr.endswith(done.stderr)


def test_an_empty_text_is_an_empty_line_and_ids_stand_for_texts_without_a_tokenizer(model, tmp_path):
    _, folder = model
    copied = copy_of(folder, tmp_path / "copy")
    edit_tensors(copied, lambda tensors: [tensor.zero_() for tensor in tensors.values()])  # writes <pad>, token 0, alone
    file = write_ids(tmp_path / "in.jsonl", [[5, 6, 1]])
    (line,), printed = results(tmp_path, "generate", "--model", copied, "--input", file, "--max-new-tokens", 3)
    assert line == {"input": 0, "ids": [0, 0, 0], "text": ""} and printed == "\n"
    (copied / "spiece.model").unlink()
    assert results(tmp_path, "generate", "--model", copied, "--input", file, "--max-new-tokens", 3)[1] == "0 0 0\n"


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
        timeout=300,
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
    last = sentencepiece.SentencePieceProcessor(model_file=str(spiece)).get_piece_size() + SENTINELS - 1
    text = "The <extra_id_0> fox <extra_id_12>"
    write_ids(tmp_path / "in.jsonl", [])
    (tmp_path / "in.jsonl").write_text(json.dumps({"text": text}))
    (encoded,), _ = results(tmp_path, "encode", "--model", folder, "--input", tmp_path / "in.jsonl")
    parts = [*reference_ids(spiece, "The ")[:-1], last, *reference_ids(spiece, " fox ")[:-1], last - 12, 1]
    assert encoded["tokens"] == len(parts)


def test_an_empty_text_is_a_text(model):
    done = run("generate", "--model", model[1], "--input", "", "--max-new-tokens", 3)
    assert done.returncode == 0, done.stderr
