"""plimsoll generate as a program: text, chats in a terminal and from a pipe, and what it logs."""

import fcntl
import json
import math
import os
import pathlib
import pty
import select
import shutil
import subprocess
import time

import pytest

BUILD = pathlib.Path(os.environ.get("PLIMSOLL_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build"))
PROGRAM = BUILD / "bin" / "plimsoll"
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A tiny run of bytes that sees much text, with a chat template."""
    folder = tmp_path_factory.mktemp("generate")
    (folder / "text").write_text("some words of a text, and more of them\n" * 3000)
    sizes = "--layers=1 --dim=32 --heads=2 --context=16384 --batch=1 --steps=1 --warmup=0 --eval-windows=1 --threads=1".split()
    subprocess.run(
        [PROGRAM, "train", "--data", folder / "text", "--out", folder / "run", *sizes], check=True, capture_output=True
    )
    (folder / "run" / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHATML}))
    return folder / "run"


def generate(run, *options, messages=None):
    command = [PROGRAM, "generate", "--model", run, "--threads", "1", *map(str, options)]
    return subprocess.run(command, input=messages, capture_output=True, text=True, timeout=300, check=False)


def log_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_log_has_each_token_and_the_text(run, tmp_path):
    done = generate(run, "--prompt", "some", "--tokens", 20, "--json", tmp_path / "log", "--temperature", 1)
    assert done.returncode == 0, done.stderr
    *tokens, text = log_of(tmp_path / "log")
    assert [token["id"] for token in tokens] == [token["id"] & 255 for token in tokens] and len(tokens) == 20
    assert all(-50 < token["log_probability"] < 0 for token in tokens)
    assert text == {"text": text["text"], "tokens": 20, "end": "length"}
    assert done.stdout == "some" + text["text"] + "\n"
    # Random weights: every byte is about as likely.
    assert abs(sum(token["log_probability"] for token in tokens) / 20 + math.log(256)) < 1


def test_all_names_of_the_options_mean_the_same(run):
    expected = generate(run, "--prompt", "a", "--tokens", 5, "--seed", 3)
    for names in (("--checkpoint", "--tokens"), ("--model", "--max-new-tokens")):
        command = [PROGRAM, "generate", names[0], run, names[1], "5", "--prompt", "a", "--seed", "3", "--threads", "1"]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == expected.stdout


def test_a_stop_ends_the_text(run):
    whole = generate(run, "--prompt", "a", "--tokens", 40).stdout[1:-1]
    stop = whole[20:22]
    assert generate(run, "--prompt", "a", "--tokens", 40, "--stop", "never met", stop).stdout == f"a{whole[: whole.find(stop)]}\n"


def test_lines_of_a_pipe_are_a_chat(run, tmp_path):
    options = ["--chat", "--tokens", 6, "--temperature", 0, "--system", "Be brief."]
    done = generate(run, *options, "--json", tmp_path / "log", messages="hi\n\nmore\n/reset\nhi\n")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    first, second, again = [line["text"] for line in log_of(tmp_path / "log") if "end" in line]
    assert done.stdout == f"{first}\n{second}\n{again}\n"
    assert again == first
    assert generate(run, *options, "--prompt", "hi").stdout == f"{first}\n"


def test_a_chat_goes_on_after_a_message_that_is_too_long(run):
    done = generate(run, "--chat", "--tokens", 2, messages="a" * 17000 + "\nhi\n")
    assert done.returncode == 0
    assert done.stderr.startswith("plimsoll: warning: chat: expected a conversation of less than the 16384 tokens")
    assert done.stdout.count("\n") == 1


def test_mistakes_are_named(run, tmp_path):
    shutil.copytree(next(run.glob("step-*")), tmp_path / "plain")
    for options, code, expected in [
        (["--system", "x"], 2, "--system: expected --chat, too"),
        (["--stop", ""], 2, "--stop: expected a text, got nothing"),
        (["--top-p", "2"], 2, "--top-p"),
        (["--model", tmp_path / "plain", "--chat"], 1, "tokenizer_config.json"),
    ]:
        done = generate(run, *options, messages="")
        assert done.returncode == code and expected in done.stderr and done.stderr.count("\n") == 1, done


class Terminal:
    """The program with a terminal."""

    def __init__(self, *command):
        self.process, self.screen = pty.fork()
        if self.process == 0:
            os.execv(command[0], [str(word) for word in command])
        self.text = ""

    def wait_for(self, expected, seconds=300):
        """Reads until `expected` stands behind what was waited for before."""
        end = time.monotonic() + seconds
        while expected not in self.text:
            assert select.select([self.screen], [], [], max(end - time.monotonic(), 0))[0], self.text
            self.text += os.read(self.screen, 4096).decode(errors="replace")
        before, _, self.text = self.text.partition(expected)
        return before

    def type(self, text):
        os.write(self.screen, text.encode())

    def exit_code(self):
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])


class NarrowLog:
    """A log that holds up the program: it has room for some forty tokens more than the test has read."""

    def __init__(self, path):
        os.mkfifo(path)
        self.pipe, self.text = os.open(path, os.O_RDWR), b""
        fcntl.fcntl(self.pipe, fcntl.F_SETPIPE_SZ, 4096)

    def wait_for(self, expected):
        while expected not in self.text:
            assert select.select([self.pipe], [], [], 300)[0], self.text
            self.text += os.read(self.pipe, 4096)

    def lines(self):
        os.close(self.pipe)
        return [json.loads(line) for line in self.text.splitlines()]


def test_a_terminal_can_stop_a_reply_forget_and_end(run, tmp_path):
    log = NarrowLog(tmp_path / "log")
    terminal = Terminal(PROGRAM, "generate", "--model", run, "--chat", "--threads", 1, "--json", tmp_path / "log")
    assert "Ctrl-C stops a reply" in terminal.wait_for("> ")
    terminal.type("hi\n")
    terminal.wait_for("hi\r\n")
    log.wait_for(b'"id"')
    terminal.type("\x03")
    terminal.wait_for("^C")  # the terminal has sent the signal
    log.wait_for(b'"end"')
    terminal.wait_for("\r\n> ")
    terminal.type("/reset\n")
    terminal.wait_for("> ")
    terminal.type("\x04")
    assert terminal.exit_code() == 0
    texts = [line for line in log.lines() if "end" in line]
    assert [text["end"] for text in texts] == ["interrupted"]
    assert texts[0]["tokens"] > 0
