"""plimsoll gauge and plimsoll line on models that are much larger than the program: how many copies are in memory at a time."""

import os
import subprocess
from typing import Any

import gauge_program
import pytest
import tiny_llama
import tokenizer_texts
import torch
import transformers
from program import PROGRAM, command_of

pytestmark = pytest.mark.skipif(not PROGRAM.is_file(), reason="bin/plimsoll is not built")


def model_of(layers, folder):
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=512,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=8,
        intermediate_size=2048,
        max_position_embeddings=64,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return sum(each.stat().st_size for each in folder.glob("*.safetensors"))


def peak(*words):
    """Bytes of memory that the program held at most."""
    with subprocess.Popen(command_of(*words), stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss * 1024


def test_search_has_the_fp32_weights_and_an_fp16_copy_and_nothing_has_more(tmp_path):
    torch.manual_seed(0)
    # Several texts: from the second on, layers could keep what they make of their weights.
    inputs = gauge_program.write_ids(
        tmp_path / "ids.jsonl", *({"input_ids": row} for row in torch.randint(3, 64, (4, 8)).tolist())
    )
    sizes, peaks = [], []
    for layers in (4, 12):
        sizes.append(model_of(layers, tmp_path / f"model {layers}"))
        words = ("--model", tmp_path / f"model {layers}", "--out", tmp_path / f"gauged {layers}", "--calibrate", inputs)
        peaks.append(peak("gauge", *words, "--measurements", 2))
    # Besides, one layer and what is being written of it.
    layer = (sizes[1] - sizes[0]) / 8
    assert peaks[1] - peaks[0] < 1.5 * (sizes[1] - sizes[0]) + 2 * layer, (sizes, peaks)


def test_line_has_the_fp32_weights_and_nothing_beside_them(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(tokenizer_texts.python_source()[:20_000])
    sizes, peaks = [], []
    for layers in (4, 12):
        folder = tmp_path / f"model {layers}"
        folder.mkdir()
        shape: dict[str, Any] = {
            "hidden_size": 512,
            "intermediate_size": 2048,
            "num_attention_heads": 8,
            "num_key_value_heads": 8,
            "head_dim": 64,
        }
        tiny_llama.write(folder, num_hidden_layers=layers, initializer_range=0.02, **shape)
        sizes.append(sum(each.stat().st_size for each in folder.glob("*.safetensors")))
        words = ("--model", folder, "--data", text, "--out", tmp_path / f"lined {layers}", "--tokens", 256, "--context", 32)
        peaks.append(peak("line", *words, "--measurements", 2, "--max-kl", 10))
    layer = (sizes[1] - sizes[0]) / 8
    assert peaks[1] - peaks[0] < sizes[1] - sizes[0] + 2 * layer, (sizes, peaks)
