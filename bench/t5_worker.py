"""One contestant of t5.py: a T5 of Hugging Face, CTranslate2 or Plimsoll, run on request.

Protocol on stdin/stdout, one JSON object a line: prints {"ready", "first_token_seconds", "version"}, where the seconds count from before
the model is loaded; for each line {"work": "encode", "tokens"} or {"work": "decode", "rows", "beams", "steps"} prints {"seconds"}, of
one encoding or of one step; ends with stdin.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

SOURCE_TOKENS = 32  # of what is decoded from
VOCABULARY = 32000  # ids below are pieces of text


def ids(rows, tokens):
    """Different ones for each row, the last is </s>."""
    return [[3 + (row * 7919 + place * 104729) % (VOCABULARY - 3) for place in range(tokens - 1)] + [1] for row in range(rows)]


class HuggingFace:
    model: Any

    def __init__(self, directory, dtype):
        import torch
        import transformers

        self.torch, self.version = torch, f"transformers {transformers.__version__}, torch {torch.__version__}"
        torch.set_grad_enabled(False)
        self.load = lambda: transformers.T5ForConditionalGeneration.from_pretrained(directory, dtype=dtype).to(dtype).eval()

    def encode(self, tokens):
        self.model.encoder(input_ids=self.torch.tensor(ids(1, tokens)))

    def generate(self, rows, beams, steps):
        written = self.model.generate(
            self.torch.tensor(ids(rows, SOURCE_TOKENS)), num_beams=beams, max_new_tokens=steps, do_sample=False
        )
        return written.shape[1] - 1


class CTranslate2:
    model: Any

    def __init__(self, directory, dtype, threads):
        import ctranslate2

        self.version = f"ctranslate2 {ctranslate2.__version__}"
        self.pieces = json.loads((Path(directory) / "shared_vocabulary.json").read_text())
        self.load = lambda: ctranslate2.Translator(str(directory), compute_type={"fp32": "float32"}[dtype], intra_threads=threads)

    def generate(self, rows, beams, steps):
        texts = [[self.pieces[i] for i in text] for text in ids(rows, SOURCE_TOKENS)]
        results = self.model.translate_batch(texts, beam_size=beams, max_decoding_length=steps)
        return max(len(result.hypotheses[0]) for result in results)


class Plimsoll:
    model: Any

    def __init__(self, directory, dtype):
        import plimsoll.t5
        import torch

        self.torch, self.version = torch, "plimsoll"
        torch.set_grad_enabled(False)
        self.load = lambda: plimsoll.t5.T5ForConditionalGeneration.from_pretrained(directory, dtype)

    def encode(self, tokens):
        self.model.encode(self.torch.tensor(ids(1, tokens)))

    def generate(self, rows, beams, steps):
        written = self.model.generate(self.torch.tensor(ids(rows, SOURCE_TOKENS)), num_beams=beams, max_new_tokens=steps)
        return written.shape[1] - 1


def seconds_of(run, *arguments):
    start = time.perf_counter()
    written = run(*arguments)
    return time.perf_counter() - start, written


def seconds_of_work(contestant, work):
    if work["work"] == "encode":
        return seconds_of(contestant.encode, work["tokens"])[0]
    rows, beams, steps = work["rows"], work["beams"], work["steps"]
    first, _ = seconds_of(contestant.generate, rows, beams, 1)
    whole, written = seconds_of(contestant.generate, rows, beams, 1 + steps)
    if written != 1 + steps:
        raise SystemExit(f"t5 worker: expected {1 + steps} tokens, got {written}")
    return (whole - first) / steps


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", choices=("hf", "ctranslate2", "plimsoll"), required=True)
    parser.add_argument("--directory", required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()

    import torch

    torch.set_num_threads(args.threads)
    if args.library == "ctranslate2":
        contestant: Any = CTranslate2(args.directory, args.dtype, args.threads)
    else:
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}.get(args.dtype, args.dtype)
        contestant = {"hf": HuggingFace, "plimsoll": Plimsoll}[args.library](args.directory, dtype)
    start = time.perf_counter()
    contestant.model = contestant.load()
    contestant.generate(1, 1, 1)
    first_token = time.perf_counter() - start
    print(json.dumps({"ready": True, "first_token_seconds": first_token, "version": contestant.version}), flush=True)
    for line in sys.stdin:
        print(json.dumps({"seconds": seconds_of_work(contestant, json.loads(line))}), flush=True)


if __name__ == "__main__":
    main()
