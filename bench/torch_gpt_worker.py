"""One contestant of gpt_step.py: PyTorch's GPT training step, run on request.

Protocol on stdin/stdout, one JSON object a line: prints {"ready": ...}; for each line "step" runs one step and prints
{"seconds", "loss", "peak_rss_bytes"}; ends with stdin.
"""

import argparse
import json
import resource
import sys
import time

import torch
import torch.nn.functional as F
from torch_gpt import Gpt, GptShape, saved_bytes

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def serve(step, saved, version):
    if saved is None:
        step()  # in the place of the pass that counts, so that all do as much before the step that is timed
    step()
    print(json.dumps({"ready": True, "saved_bytes": saved, "version": version}), flush=True)
    for line in sys.stdin:
        if line.strip() != "step":
            raise SystemExit(f"gpt_step worker: expected 'step', got '{line.strip()}'")
        start = time.perf_counter()
        loss = step()
        seconds = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"seconds": seconds, "loss": loss, "peak_rss_bytes": peak}), flush=True)


def main():
    parser = argparse.ArgumentParser()
    for name in ("layers", "dim", "heads", "context", "batch", "vocabulary", "tied", "threads"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--dtype", choices=DTYPES, required=True)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--pooled", action="store_true", help="with Plimsoll's caching allocator")
    parser.add_argument("--library", help="libplimsoll_python.so, for --pooled")
    args = parser.parse_args()

    if args.pooled:
        torch.ops.load_library(args.library)
        torch.ops.plimsoll.use_caching_allocator()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    model = Gpt(GptShape(args.layers, args.dim, args.heads, args.context, args.vocabulary, bool(args.tied)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    scaler = torch.amp.GradScaler("cpu", enabled=args.dtype == "fp16")
    tokens = torch.randint(0, args.vocabulary, (args.batch, args.context + 1))
    run = torch.compile(model) if args.compile else model

    def loss_of():
        with torch.autocast("cpu", DTYPES[args.dtype], enabled=args.dtype != "fp32"):
            logits = run(tokens[:, :-1])
        return F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())

    def step():
        loss = loss_of()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.item()

    # A compiled graph decides itself what it saves, so hooks see the eager model only.
    saved = None if args.compile else saved_bytes(lambda: loss_of().backward(), model.parameters())
    optimizer.zero_grad()
    serve(step, saved, torch.__version__)


if __name__ == "__main__":
    main()
