"""Cost of a session of each mode in a forward pass: the encoder of a T5 with FLAN-T5-base's shape and random weights, in FP16.

    .venv/bin/python bench/watch.py [--layers 12] [--tokens 128] [--rounds 15] [--threads 1] [--json FILE]

Modes are timed in turn; prints the median of the CPU seconds of all threads, and of each round's ratio to nobody watching.
"""

import argparse
import contextlib
import statistics
import tempfile
import time
from typing import Any

import json_file
import plimsoll
import torch
import transformers
from plimsoll.t5 import T5ForConditionalGeneration

BASE: dict[str, Any] = {
    "d_model": 768,
    "d_kv": 64,
    "d_ff": 2048,
    "num_heads": 12,
    "vocab_size": 1024,
    "num_decoder_layers": 1,
    "feed_forward_proj": "gated-gelu",
    "decoder_start_token_id": 0,
}
NOBODY = "nobody"


def model_of(layers):
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as directory:
        transformers.T5ForConditionalGeneration(transformers.T5Config(**BASE, num_layers=layers)).save_pretrained(directory)
        model = T5ForConditionalGeneration.from_pretrained(directory, torch.float16)
    model.t5_fixes = None
    return model


def seconds(model, ids, mode):
    with contextlib.nullcontext() if mode == NOBODY else plimsoll.watch(mode):
        start = time.process_time()
        model.encode(ids)
        return time.process_time() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--modes", nargs="+", default=["guard", "count", "trap", "shadow"])
    parser.add_argument("--json", help="write the table to this file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = model_of(args.layers)
    ids = torch.randint(3, BASE["vocab_size"], (1, args.tokens))
    times: dict[str, list[float]] = {mode: [] for mode in [NOBODY, *args.modes]}
    with torch.no_grad():
        for _ in range(3):
            model.encode(ids)
        for _ in range(args.rounds):
            for mode, of_mode in times.items():
                of_mode.append(seconds(model, ids, mode))
    ratios = {
        mode: statistics.median(a / b for a, b in zip(of_mode, times[NOBODY], strict=True)) for mode, of_mode in times.items()
    }
    for mode, of_mode in times.items():
        print(f"{mode:8} {statistics.median(of_mode) * 1e3:9.2f} ms {100 * (ratios[mode] - 1):+8.2f} %")
    if args.json:
        json_file.write(
            args.json, {mode: {"seconds": statistics.median(of_mode), "ratio": ratios[mode]} for mode, of_mode in times.items()}
        )


if __name__ == "__main__":
    main()
