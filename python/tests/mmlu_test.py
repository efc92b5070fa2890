"""`plimsoll mmlu`: the questions that it asks, the answers that Hugging Face's model gives to them, and how sure the accuracy is."""

import json
import math
import subprocess
from statistics import NormalDist

import plimsoll
import pytest
import torch
from rounding import gamma
from t5_models import make, save, train_tokenizer

sentencepiece = pytest.importorskip("sentencepiece")

PROGRAM = plimsoll._library.find().parent / "bin" / "plimsoll"
PIECES = 90
DEV = [("What is 1+1?", "1", "2", "3", "4", "B"), ("Which is first?", "a", "b", "c", "d", "A")]
# Written with a mark of the byte order, a comma, a doubled quote and a line end inside quotes, and \r\n between rows.
TEST = '\ufeff"Which, of these, is a ""number""?",one,B,C,D,A\r\n"Two lines\nof text?",A,"B, too",C,D,D\r\n' + "".join(
    f"Is {n} even?,yes,no,it is,never,{'ABCD'[n % 4]}\r\n" for n in range(9)
)
QUESTIONS = [
    ('Which, of these, is a "number"?', "one", "B", "C", "D", "A"),
    ("Two lines\nof text?", "A", "B, too", "C", "D", "D"),
    *((f"Is {n} even?", "yes", "no", "it is", "never", "ABCD"[n % 4]) for n in range(9)),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """(Hugging Face's model, its directory, the tokenizer)."""
    folder = tmp_path_factory.mktemp("model")
    texts = [field for row in DEV + QUESTIONS for field in row]
    texts += ["The following are multiple choice questions (with answers) about abstract algebra.", "Answer: A B C D"]
    train_tokenizer(folder, texts * 20, pieces=PIECES, user_defined_symbols=[f"▁{letter}" for letter in "ABCD"])
    theirs = make("v1.1", vocab_size=PIECES + 100)
    save(theirs, folder)
    return theirs, folder, sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))


@pytest.fixture
def data(tmp_path):
    for part, text in (("test", TEST), ("dev", "".join(",".join(row) + "\n" for row in DEV))):
        (tmp_path / "data" / part).mkdir(parents=True)
        (tmp_path / "data" / part / f"abstract_algebra_{part}.csv").write_bytes(text.encode())
    (tmp_path / "data" / "test" / "zoology_test.csv").write_text("Which has legs?,ant,stone,sea,sky,A\n")  # without examples
    return tmp_path / "data"


def asked(row, with_answer=False):
    text = row[0] + "".join(f"\n{letter}. {choice}" for letter, choice in zip("ABCD", row[1:5], strict=True)) + "\nAnswer:"
    return text + f" {row[5]}\n\n" if with_answer else text


def prompt(row, shots, subject="abstract algebra"):
    return (
        f"The following are multiple choice questions (with answers) about {subject}.\n\n"
        + "".join(asked(example, True) for example in DEV[:shots])
        + asked(row)
    )


def run(*arguments):
    return subprocess.run([PROGRAM, "mmlu", *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False)


def mmlu(folder, data, out, *arguments):
    done = run("--model", folder, "--data", data, "--json", out, *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text()), done.stdout


@torch.no_grad()
def right_of(model, tokenizer, rows, shots):
    letters = [tokenizer.encode(letter)[0] for letter in "ABCD"]
    assert len(set(letters)) == 4
    right = 0
    for row, subject, given in rows:
        ids = torch.tensor([[*tokenizer.encode(prompt(row, min(shots, given), subject)), 1]])
        logits = model(input_ids=ids, decoder_input_ids=torch.zeros(1, 1, dtype=torch.long)).logits[0, 0, letters]
        right += "ABCD"[int(logits.argmax())] == row[5]
    return right


@pytest.mark.parametrize("shots", [0, 2])
def test_the_answers_are_hugging_faces(model, data, tmp_path, shots):
    theirs, folder, tokenizer = model
    result, printed = mmlu(folder, data, tmp_path / "out.json", "--shots", shots, "--batch", 4, "--dtypes", "fp32,fp16,fp8")
    rows = [(row, "abstract algebra", 2) for row in QUESTIONS]
    want = right_of(theirs, tokenizer, rows, shots)
    legs = right_of(theirs, tokenizer, [(("Which has legs?", "ant", "stone", "sea", "sky", "A"), "zoology", 0)], shots)
    exact = result["dtypes"]["fp32"]
    assert exact["subjects"]["abstract_algebra"]["correct"] == want and exact["subjects"]["zoology"]["correct"] == legs
    assert exact["accuracy"]["correct"] == want + legs and exact["accuracy"]["of"] == result["questions"] == len(rows) + 1
    assert exact["agreement"]["share"] == 1 and result["dtypes"]["fp16"]["agreement"]["of"] == len(rows) + 1
    assert result["shortened"] == (1 if shots else 0)
    assert list(result["dtypes"]) == ["fp16", "fp32", "fp8"] and "95 % interval" in printed


def test_the_interval_is_wilsons(model, data, tmp_path):
    """The interval's ends are the shares that the normal approximation puts 1.96 deviations from what was seen."""
    _, folder, _ = model
    accuracy = mmlu(folder, data, tmp_path / "out.json", "--dtypes", "bf16")[0]["dtypes"]["bf16"]["accuracy"]
    low, high = accuracy["interval"]
    assert 0 <= low <= accuracy["share"] <= high <= 1 and low < high
    for end in (low, high):
        if 0 < end < 1:
            deviations = abs(accuracy["share"] - end) / math.sqrt(end * (1 - end) / accuracy["of"])
            # Each end comes of some ten roundings, and the difference is smaller than the end by `smaller`.
            smaller = end * (1 + 1 / (1 - end)) / abs(accuracy["share"] - end)
            assert abs(deviations / NormalDist().inv_cdf(0.975) - 1) <= gamma(16, torch.float64) * (2 + smaller)


def test_long_prompts_have_fewer_examples(model, data, tmp_path):
    _, folder, _ = model
    short, _ = mmlu(folder, data, tmp_path / "short.json", "--max-tokens", 1, "--dtypes", "fp32")
    none, _ = mmlu(folder, data, tmp_path / "none.json", "--shots", 0, "--dtypes", "fp32")
    assert short["shortened"] == len(QUESTIONS) + 1 and none["shortened"] == 0
    assert short["dtypes"] == none["dtypes"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a,b,c\n", "row 1: expected question,A,B,C,D,answer, got 3 fields"),
        ("q,1,2,3,4,A\nq,1,2,3,4,E\n", "row 2: expected an answer of A, B, C or D, got 'E'"),
        ('"q,1,2,3,4,A\n', "row 1: expected a closing quote"),
        ("", "expected one question or more"),
    ],
)
def test_broken_files_are_named_in_one_line(model, text, expected, tmp_path):
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "law_test.csv").write_text(text)
    done = run("--model", model[1], "--data", tmp_path)
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert expected in done.stderr


def test_an_empty_file_beside_others_is_named(model, data):
    empty = data / "test" / "zoology_test.csv"
    empty.write_text("")
    done = run("--model", model[1], "--data", data)
    assert done.returncode == 1 and done.stderr == f"plimsoll: {empty}: expected one question or more, got none\n"


def test_a_directory_without_questions_is_named(model, tmp_path):
    done = run("--model", model[1], "--data", tmp_path)
    assert done.returncode == 1 and "expected test/SUBJECT_test.csv" in done.stderr


def test_a_model_without_a_tokenizer_is_named(model, data, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).symlink_to(model[1] / name)
    done = run("--model", folder, "--data", data)
    assert done.returncode == 1, done
    assert done.stderr == f"plimsoll: {folder}: expected spiece.model, found none, which has the ids of the questions\n"
