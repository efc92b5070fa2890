"""plimsoll gauge on a model that is much larger than the program: how many copies of it are in memory at a time."""

import os
import subprocess

import gauge_program
import pytest
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
    ids = torch.randint(3, 64, (8,)).tolist()
    inputs = gauge_program.write_ids(tmp_path / "ids.jsonl", {"input_ids": ids})
    sizes, peaks = [], []
    for layers in (4, 12):
        sizes.append(model_of(layers, tmp_path / f"model {layers}"))
        words = ("--model", tmp_path / f"model {layers}", "--out", tmp_path / f"gauged {layers}", "--calibrate", inputs)
        peaks.append(peak("gauge", *words, "--measurements", 2))
    # Besides, one layer and what is being written of it.
    layer = (sizes[1] - sizes[0]) / 8
    assert peaks[1] - peaks[0] < 1.5 * (sizes[1] - sizes[0]) + 2 * layer, (sizes, peaks)
