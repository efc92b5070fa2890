"""examples/chat says what the command says."""

import os
import pathlib
import subprocess

import pytest
import tiny_llama

BUILD = pathlib.Path(os.environ.get("PLIMSOLL_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build"))
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

pytestmark = pytest.mark.skipif(not (BUILD / "bin" / "example_chat").is_file(), reason="the examples are not built")


@pytest.fixture
def tiny(tmp_path):
    """A llama with random weights, ChatML and a context of two short replies."""
    return tiny_llama.write(
        tmp_path,
        end=None,
        template=CHATML.replace("\n", "\\n"),
        head_dim=8,
        max_position_embeddings=400,
        eos_token_id=list(range(0, 300, 5)),
    )


def said(*command, text):
    return subprocess.run(list(map(str, command)), input=text, capture_output=True, text=True, timeout=300, check=False)


def test_it_says_what_the_command_says(tiny):
    text = "Hello\nAgain, caf\u00e9\n"
    command = (BUILD / "bin" / "plimsoll", "generate", "--model", tiny, "--chat", "--temperature", 0)
    ours, theirs = said(BUILD / "bin" / "example_chat", tiny, text=text), said(*command, text=text)
    assert ours.returncode == theirs.returncode == 0, ours.stderr + theirs.stderr
    assert ours.stdout == theirs.stdout != "\n\n"


def test_what_is_wrong_is_one_line(tiny, tmp_path):
    result = said(BUILD / "bin" / "example_chat", tmp_path / "nowhere", text="")
    assert result.returncode == 1 and result.stderr == f"{tmp_path}/nowhere: expected a model's directory\n"
    assert said(BUILD / "bin" / "example_chat", text="").returncode == 2
