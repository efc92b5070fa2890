"""The process of one contestant of a Comparison: loads a model of one library, then does what it is asked.

Protocol on stdin and stdout, one JSON object a line: prints {"ready", "first_token_seconds", "version"}, where the seconds count from
before the model is loaded; for each line prints the answer, with "seconds"; ends with stdin.
"""

import argparse
import json
import sys
import time
from typing import Any


class HuggingFace:
    model: Any

    def __init__(self, kind, directory, dtype):
        """kind: a class of transformers."""
        import torch
        import transformers

        self.torch, self.version = torch, f"transformers {transformers.__version__}, torch {torch.__version__}"
        torch.set_grad_enabled(False)
        of_name = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
        self.load = lambda: getattr(transformers, kind).from_pretrained(directory, dtype=of_name).to(of_name).eval()


class Plimsoll:
    model: Any

    def __init__(self):
        import plimsoll  # noqa: F401  registers the classes and operators
        import torch

        self.torch, self.version = torch, "plimsoll"
        torch.set_grad_enabled(False)


def seconds_of(run, *arguments):
    start = time.perf_counter()
    written = run(*arguments)
    return time.perf_counter() - start, written


def serve(libraries, write_token, answer):
    """libraries: of each name what takes directory, dtype and threads and returns a contestant, which has a version and loads a
    model. write_token(contestant) writes the first; answer(contestant, request) is what is printed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", choices=libraries, required=True)
    parser.add_argument("--directory", required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()

    import torch

    torch.set_num_threads(args.threads)
    contestant = libraries[args.library](args.directory, args.dtype, args.threads)
    start = time.perf_counter()
    contestant.model = contestant.load()
    write_token(contestant)
    first_token = time.perf_counter() - start
    print(json.dumps({"ready": True, "first_token_seconds": first_token, "version": contestant.version}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(contestant, json.loads(line))), flush=True)
