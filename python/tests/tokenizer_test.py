"""Ids and text of plimsoll's tokenizer.json are those of Hugging Face's `tokenizers`: on random texts of made-up tokenizers, and of
the real ones that tools/fetch_tokenizers fetches. PLIMSOLL_NIGHTLY=1 takes ten times as many texts."""

import itertools
import json
import os
import pathlib
import random
import struct
import subprocess

import pytest
import tokenizer_texts
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

BUILD = pathlib.Path(os.environ.get("PLIMSOLL_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build"))
CACHE = pathlib.Path(os.environ.get("PLIMSOLL_CACHE", "~/.cache/plimsoll")).expanduser() / "tokenizers"
TIMES = 10 if os.environ.get("PLIMSOLL_NIGHTLY") else 1
LLAMA_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def run(folder, items, mode=()):
    """The program's answers to texts, or with --ids to lists of ids."""
    blobs = [item.encode() if isinstance(item, str) else struct.pack(f"<{len(item)}I", *item) for item in items]
    requests = b"".join(struct.pack("<I", len(blob)) + blob for blob in blobs)
    command = [BUILD / "bin" / "tokenizer_program", folder, *mode]
    result = subprocess.run(command, input=requests, capture_output=True, timeout=3600, check=False)
    assert result.returncode == 0, result.stderr.decode()
    place = 0

    def take(size):
        nonlocal place
        begin = place + 4
        place = begin + size * struct.unpack_from("<I", result.stdout, place)[0]
        return result.stdout[begin:place]

    answers = []
    for _ in items:
        ids = take(4)
        answers.append((list(struct.unpack(f"<{len(ids) // 4}I", ids)), *(take(1).decode() for _ in range(3))))
    return answers


def refusal(folder):
    result = subprocess.run(
        [BUILD / "bin" / "tokenizer_program", folder], input=b"", capture_output=True, timeout=300, check=False
    )
    assert result.returncode == 1
    return result.stderr.decode()


def expect_equal(folder, theirs, texts):
    """Ids, both ways to decode them, and that a stream of the ids gives the same text."""
    for text, ours, encoding in zip(texts, run(folder, texts), theirs.encode_batch(texts), strict=True):
        whole = theirs.decode(encoding.ids, skip_special_tokens=False)
        assert ours == (encoding.ids, theirs.decode(encoding.ids), whole, whole), text


def words_of(theirs):
    """Added tokens, and some of the vocabulary, as texts."""
    added = [token.content for token in theirs.get_added_tokens_decoder().values()]
    return added[:400] + [theirs.id_to_token(i) or "x" for i in range(0, theirs.get_vocab_size(), 97)]


@pytest.mark.parametrize("name", ["smollm2", "qwen3", "llama3", "gemma3"])
def test_real_tokenizers_give_the_same_ids_and_text(name):
    folder = CACHE / name
    if not folder.is_dir():
        pytest.skip(f"{folder} is missing; tools/fetch_tokenizers fetches it")
    theirs = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for part in range(10 * TIMES):
        expect_equal(folder, theirs, tokenizer_texts.random_texts(10_000, part, words_of(theirs)))
    expect_equal(folder, theirs, tokenizer_texts.standard_library())
    rng = random.Random(0)
    lists = [[rng.randrange(theirs.get_vocab_size()) for _ in range(rng.randrange(12))] for _ in range(20_000)]
    for ids, ours in zip(lists, run(folder, lists, ["--ids"]), strict=True):
        assert ours[1:3] == (theirs.decode(ids), theirs.decode(ids, skip_special_tokens=False)), ids


NORMALIZERS = {
    "none": None,
    "nfc": normalizers.NFC(),
    "replace": normalizers.Replace(" ", "\u2581"),
    "prepend": normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]),
    "regex": normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s{2,}|[\u0300-\u0310]"), " ")]),
}
PRE_TOKENIZERS = {
    "none": None,
    "bytes": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "bytes_space": pre_tokenizers.ByteLevel(add_prefix_space=True),
    "digits_bytes": pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]),
    "digits": pre_tokenizers.Digits(False),
    "llama": pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    ),
    "bytes_first": pre_tokenizers.Sequence(
        [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), pre_tokenizers.Split("\u0120", "merged_with_next")]
    ),
    "removed": pre_tokenizers.Split(Regex(r"\s+"), "removed"),
    "inverted": pre_tokenizers.Split(Regex(r"\w+"), "removed", invert=True),
    "previous": pre_tokenizers.Split(" ", "merged_with_previous"),
    "next": pre_tokenizers.Split(Regex(r"\W"), "merged_with_next"),
    "contiguous": pre_tokenizers.Split(Regex(r"[\p{P}\s]"), "contiguous"),
    "boundaries": pre_tokenizers.Split(Regex(r"\b|(?=\d{3}\b)"), "isolated"),
    "scripts": pre_tokenizers.Split(Regex(r"\p{Han}|\P{Latin}+"), "isolated"),
    "metaspace_first": pre_tokenizers.Metaspace(prepend_scheme="first"),
    "metaspace_always": pre_tokenizers.Metaspace(prepend_scheme="always", split=False),
    "metaspace_never": pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.Metaspace("_", "never")]),
}
DECODERS = {
    "none": None,
    "bytes": decoders.ByteLevel(),
    "llama2": decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    ),
    "metaspace": decoders.Metaspace(),
    "strip": decoders.Sequence([decoders.ByteFallback(), decoders.Strip("e", 2, 0), decoders.Replace(Regex(r"[aeiou]"), "*")]),
}
MODELS = [
    {"unk_token": None},
    {"unk_token": "<unk>", "fuse_unk": True},
    {"unk_token": "<unk>", "fuse_unk": False, "ignore_merges": True},
    {"unk_token": "<unk>", "byte_fallback": True, "fuse_unk": True},
]
ADDED = [
    AddedToken("<s>", special=True, normalized=False),
    AddedToken("<|end|>", special=True, normalized=False, rstrip=True),
    AddedToken("<mask>", special=True, normalized=False, lstrip=True),
    AddedToken("<|end|>x", special=False, normalized=False),
    AddedToken("word", special=False, normalized=True, single_word=True),
    AddedToken("e\u0301t\u00e9 a", special=False, normalized=True),
    AddedToken("both", special=False, normalized=True, lstrip=True, rstrip=True),
]


def made_up(number, normalizer, pre_tokenizer, decoder, model):
    """A tokenizer of these parts, trained on a few files, with the flags and tokens that the number says."""
    bytes_too = [f"<0x{byte:02X}>" for byte in range(256)] if model.get("byte_fallback") else []
    theirs = Tokenizer(models.BPE(**model))
    if NORMALIZERS[normalizer] is not None:
        theirs.normalizer = NORMALIZERS[normalizer]
    if PRE_TOKENIZERS[pre_tokenizer] is not None:
        theirs.pre_tokenizer = PRE_TOKENIZERS[pre_tokenizer]
    if DECODERS[decoder] is not None:
        theirs.decoder = DECODERS[decoder]
    # All bytes, or without every sixth where the number is odd. The library's own order is another one in each process.
    every_byte = sorted(pre_tokenizers.ByteLevel.alphabet()) if "bytes" in pre_tokenizer else []
    alphabet = [letter for place, letter in enumerate(every_byte) if place % 6 or number % 2 == 0]
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=["<unk>", *bytes_too],
        initial_alphabet=alphabet,
        limit_alphabet=max(200, len(alphabet)),
        max_token_length=12,
        show_progress=False,
    )
    files = tokenizer_texts.standard_library()
    theirs.train_from_iterator([file[:3000] for file in files[number % 7 :: 11]], trainer)
    theirs.add_tokens(ADDED[number % 3 :])
    if number % 4 == 0:
        theirs.post_processor = processors.TemplateProcessing(
            single="<s> $A <|end|>" if number % 3 == 0 else "$A <unk>",
            special_tokens=[
                (token, theirs.token_to_id(token))
                for token in ("<s>", "<|end|>", "<unk>")
                if theirs.token_to_id(token) is not None
            ],
        )
    elif number % 4 == 1:
        theirs.post_processor = processors.Sequence(
            [processors.ByteLevel(), processors.TemplateProcessing("<unk> $A", special_tokens=[("<unk>", 0)])]
        )
    return theirs


def combinations():
    """Every pair of a normalizer and a pre-tokenizer, with decoders and models in turn."""
    decoder, model = itertools.cycle(DECODERS), itertools.cycle(range(len(MODELS)))
    return [
        (number, normalizer, pre_tokenizer, "bytes" if "bytes" in pre_tokenizer else next(decoder), next(model))
        for number, (normalizer, pre_tokenizer) in enumerate(itertools.product(NORMALIZERS, PRE_TOKENIZERS))
    ]


@pytest.mark.parametrize(("number", "normalizer", "pre_tokenizer", "decoder", "model"), combinations())
def test_made_up_tokenizers_give_the_same_ids_and_text(number, normalizer, pre_tokenizer, decoder, model, tmp_path):
    theirs = made_up(number, normalizer, pre_tokenizer, decoder, MODELS[model])
    theirs.save(str(tmp_path / "tokenizer.json"))
    theirs = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    texts = tokenizer_texts.random_texts(1200 * TIMES, number, [token.content for token in ADDED] + words_of(theirs)[:60])
    answers = run(tmp_path, texts)
    for text, ours, encoding in zip(texts, answers, theirs.encode_batch(texts), strict=True):
        whole = theirs.decode(encoding.ids, skip_special_tokens=False)
        assert ours[:3] == (encoding.ids, theirs.decode(encoding.ids), whole), text


def test_both_spellings_of_merges_are_the_same(tmp_path):
    theirs = made_up(0, "none", "bytes", "bytes", MODELS[0])
    content = json.loads(theirs.to_str())
    texts = tokenizer_texts.random_texts(500, 0, [])
    answers = []
    for spelling in (lambda merge: merge, " ".join):
        content["model"]["merges"] = [spelling(merge) for merge in content["model"]["merges"]]
        (tmp_path / "tokenizer.json").write_text(json.dumps(content))
        answers.append(run(tmp_path, texts))
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    "model", [models.Unigram([("a", -1.0)]), models.WordPiece({"a": 0}, unk_token="a"), models.WordLevel({"a": 0})]
)
def test_other_models_are_refused_by_name(model, tmp_path):
    Tokenizer(model).save(str(tmp_path / "tokenizer.json"))
    expected = f'{tmp_path}/tokenizer.json.model.type: expected BPE, got "{type(model).__name__}"\n'
    assert refusal(tmp_path) == expected


@pytest.mark.parametrize(
    ("part", "value", "expected"),
    [
        ("normalizer", normalizers.NFKC(), "expected NFC, Replace, Prepend or Sequence"),
        ("normalizer", normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()]), "normalizers[1].type: expected NFC"),
        ("pre_tokenizer", pre_tokenizers.BertPreTokenizer(), "expected ByteLevel, Split, Digits, Metaspace or Sequence"),
        ("decoder", decoders.WordPiece(), "expected ByteLevel, ByteFallback, Replace, Fuse, Strip, Metaspace or Sequence"),
        ("post_processor", processors.BertProcessing(("a", 0), ("b", 1)), "expected TemplateProcessing, ByteLevel or Sequence"),
        ("pre_tokenizer", pre_tokenizers.Split(Regex(r"[a-w&&[^c-g]]"), "isolated"), "means the same to Oniguruma and to PCRE2"),
    ],
)
def test_other_parts_are_refused_by_name(part, value, expected, tmp_path):
    theirs = Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    setattr(theirs, part, value)
    theirs.save(str(tmp_path / "tokenizer.json"))
    assert expected in refusal(tmp_path)
