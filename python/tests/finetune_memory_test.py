"""The memory that plimsoll finetune foretells, against what it takes, with the real SmolLM2-135M where it is installed."""

import json
import pathlib
import re

import pytest
from finetune_runs import CHAT, words_of, write_lines
from program import PROGRAM, done

MODEL = pathlib.Path.home() / ".cache" / "plimsoll" / "models" / "SmolLM2-135M-Instruct"

pytestmark = [
    pytest.mark.skipif(not PROGRAM.is_file(), reason="bin/plimsoll is not built"),
    pytest.mark.skipif(not MODEL.is_dir(), reason="SmolLM2 is not installed: tools/import_gguf"),
]

NARROW = ["--recipe=bf16", "--masters=none", "--optimizer-state=8bit", "--release-gradients"]
WAYS = {
    "full fp32": ["--full", "--recipe=fp32"],
    "full bf16": ["--full", *NARROW],
    "full bf16, checkpointed": ["--full", "--checkpoint-activations", *NARROW],
    "full, split": ["--full", "--optimizer-state=8bit", "--masters=split"],
    "lora": ["--recipe=bf16"],
    "lora in fp8, with replies": ["--samples=1"],
    "lora in fp8, with replies and short rows": ["--samples=1", "--context=128", "--batch=1"],
    "lora on fp8": ["--recipe=bf16", "--base=fp8"],
    # Between steps, beside the weights, gradients and states of the run.
    "lora in fp16, validated": ["--recipe=fp16", "--eval-share=0.2"],
    "full fp16, validated": ["--full", "--recipe=fp16", "--eval-share=0.2"],
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Texts that fill rows of 512 tokens, and a chat."""
    text, chat = {"text": "one two three four " * 127 + "five"}, {"messages": CHAT}
    return write_lines(tmp_path_factory.mktemp("data") / "texts.jsonl", [text] * 8 + [chat])


@pytest.mark.parametrize("way", WAYS)
def test_it_takes_no_more_than_was_foretold_and_not_much_less(data, tmp_path, way):
    plan = ["--context=512", "--batch=4", "--steps=2", "--samples=0", "--eval-share=0", "--log-scales=0"]
    said = done(*words_of(MODEL, data, "--out", tmp_path / "out", *plan, *WAYS[way]))
    found = re.search(r"^memory     ([\d.]+) GB", said, re.MULTILINE)
    assert found is not None, said
    foretold, peak = (
        float(found[1]),
        json.loads((tmp_path / "out" / "train.jsonl").read_text().splitlines()[-1])["peak_rss_bytes"],
    )
    # An estimate that is too low lets a run be killed; one that is far too high refuses runs that fit.
    assert peak / 1e9 <= foretold <= 1.25 * peak / 1e9, said
