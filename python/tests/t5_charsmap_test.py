"""Tokenizers with every table of replaced characters that sentencepiece's trainer writes, whole and damaged."""

import json
import random
import subprocess

import plimsoll
import pytest
import sentencepiece
from t5_models import make, save, train_tokenizer

PROGRAM = plimsoll._library.find().parent / "bin" / "plimsoll"
TEXTS = [
    "The quick brown fox ﬁﬂ Ⅳ ｆｕｌｌ ＡＢＣ",
    "Über allen Gipfeln ist Ruh",
    "狐 は ﷺ ½ x² e\u0301  a\ttab",
    "STRASSE Straße 😀",
]
RULES = ["nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity"]
OWN_RULES = "41\t61\n42 43\t62 63\nDF\t73 73\n2460\t31\nFF46 FF55\t66 75\n"  # code points: A to a, BC to bc, ...
VOCABULARY = 400


def train(folder, **rule):
    train_tokenizer(folder, TEXTS * 30, pieces=150, **rule)
    return folder / "spiece.model"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save(make("v1.1", vocab_size=VOCABULARY), folder)
    return folder


def encode(folder, texts):
    (folder / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    command = [PROGRAM, "t5", "encode", "--model", folder, "--input", folder / "in.jsonl", "--json", folder / "out.jsonl"]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, check=False)


def check_counts(folder):
    done = encode(folder, TEXTS)
    assert done.returncode == 0, done.stderr
    reference = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
    counts = [json.loads(line)["tokens"] for line in (folder / "out.jsonl").read_text().splitlines()]
    assert counts == [len(reference.encode(text)) + 1 for text in TEXTS]


@pytest.mark.parametrize("rule", RULES)
def test_the_trainers_own_tables_are_used(folder, rule):
    train(folder, normalization_rule_name=rule)
    check_counts(folder)


def test_a_table_of_ones_own_is_used(folder, tmp_path):
    (tmp_path / "rules.tsv").write_text(OWN_RULES)
    train(folder, normalization_rule_tsv=str(tmp_path / "rules.tsv"))
    check_counts(folder)


def test_odd_units_in_a_real_table_never_end_the_process(folder):
    """Forty files, as many as first showed it: most of these crashed."""
    model = train(folder, normalization_rule_name="nmt_nfkc")
    whole = model.read_bytes()
    name = whole.index(b"nmt_nfkc")
    generator = random.Random(1)
    refused = 0
    for _ in range(40):
        damaged = bytearray(whole)
        for _ in range(2000):  # of about 50,000 units
            place = name + 20 + 4 * generator.randrange(50_000)
            damaged[place : place + 4] = generator.randbytes(4)
        model.write_bytes(damaged)
        done = encode(folder, TEXTS)
        assert done.returncode in (0, 1), done
        assert len(done.stderr.splitlines()) <= 1
        refused += "precompiled_charsmap: expected" in done.stderr
    assert refused > 20
