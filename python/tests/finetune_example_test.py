"""examples/finetune writes chats that plimsoll finetune reads."""

import json
import pathlib
import subprocess
import sys

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "finetune" / "python_docs.py"


def test_chats_are_questions_and_replies_the_same_each_time(tmp_path):
    for name in ("one", "two"):
        said = subprocess.run([sys.executable, EXAMPLE, tmp_path / name], capture_output=True, text=True, check=True).stdout
        assert said == f"{tmp_path / name}: 120 chats from the documentation strings of Python, PSF License Version 2\n"
    lines = (tmp_path / "one").read_text(encoding="utf-8").splitlines()
    assert lines == (tmp_path / "two").read_text(encoding="utf-8").splitlines()
    chats = [json.loads(line)["messages"] for line in lines]
    assert len({chat[0]["content"] for chat in chats}) == len(chats) == 120
    for question, reply in chats:
        assert (question["role"], reply["role"]) == ("user", "assistant")
        name = question["content"].split("`")[1]
        assert reply["content"].startswith(f"```python\n{name}") and reply["content"].endswith(".")
