"""`plimsoll t5` as tests run it, and a small model with a tokenizer of its own."""

import json
import pathlib
import subprocess

import plimsoll
from safetensors.torch import load_file, save_file
from t5_models import make, save, train_tokenizer

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


def new_model(folder):
    """Hugging Face's model in the folder, with a unigram tokenizer as T5's: pad 0, </s> 1, <unk> 2."""
    theirs = make("v1.1", vocab_size=PIECES + SENTINELS + 8)
    save(theirs, folder)
    train_tokenizer(folder, SENTENCES * 20, pieces=PIECES)
    return theirs


def run(*arguments):
    return subprocess.run([PROGRAM, "t5", *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False)


def results(tmp_path, *arguments):
    done = run(*arguments, "--json", tmp_path / "out.jsonl")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()], done.stdout


def write_ids(path, rows):
    path.write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in rows))
    return path


def copy_of(folder, to):
    to.mkdir()
    for file in pathlib.Path(folder).iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    return to


def edit_tensors(folder, edit):
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")
