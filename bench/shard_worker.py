"""A contestant of shard.py: a GPT's training step by one or more processes, run on request.

Protocol on stdin/stdout, one JSON object a line, as torch_gpt_worker.py. The first rank starts the others, passes on what
it is asked, and answers for the slowest and the largest. They find each other through the file --store.
"""

import argparse
import datetime
import functools
import json
import resource
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from contestant import Contestant
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch_gpt import Gpt, GptShape

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))
import plimsoll.pytorch as te
from plimsoll.common.recipe import Float8CurrentScaling
from plimsoll.shard import FullyShardedDataParallel


class PlimsollGpt(nn.Module):
    """torch_gpt's GPT of Plimsoll's blocks."""

    def __init__(self, shape):
        super().__init__()
        self.token_embedding = nn.Embedding(shape.vocabulary, shape.dim)
        self.position_embedding = nn.Embedding(shape.context, shape.dim)
        block = functools.partial(
            te.TransformerLayer, shape.dim, 4 * shape.dim, shape.heads, hidden_dropout=0.0, attention_dropout=0.0
        )
        self.blocks = nn.ModuleList(block(attn_input_format="bshd", fuse_qkv_params=True) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.dim)
        self.head = nn.Linear(shape.dim, shape.vocabulary, bias=False)

    def forward(self, tokens):
        x = self.token_embedding(tokens) + self.position_embedding.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, self_attn_mask_type="causal")
        return self.head(self.norm(x))


def distributed(model, how):
    if how == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if how == "fsdp":
        for index, block in enumerate(model.blocks):
            model.blocks[index] = FullyShardedDataParallel(block)
        return FullyShardedDataParallel(model)
    if how == "fsdp2":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for block in model.blocks:
            fully_shard(block, mp_policy=policy)
        return fully_shard(model, mp_policy=policy)
    return model


def clip(model, how):
    if how == "fsdp":
        model.clip_grad_norm_(1.0)
    else:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def main():
    parser = argparse.ArgumentParser()
    for name in ("layers", "dim", "heads", "context", "batch", "vocabulary", "threads", "ranks"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--store", required=True)
    parser.add_argument("--library", choices=["plimsoll", "torch"], required=True)
    parser.add_argument("--how", choices=["none", "ddp", "fsdp", "fsdp2"], required=True)
    parser.add_argument("--recipe", choices=["bf16", "fp8"], required=True)
    args = parser.parse_args()

    others = [Contestant(f"rank {rank}", [sys.executable, *sys.argv, f"--rank={rank}"], wait=False) for rank in others_of(args)]
    torch.set_num_threads(args.threads)
    if args.ranks > 1:
        limit = datetime.timedelta(seconds=120)
        dist.init_process_group("gloo", init_method=f"file://{args.store}", rank=args.rank, world_size=args.ranks, timeout=limit)
    torch.manual_seed(1)
    shape = GptShape(args.layers, args.dim, args.heads, args.context, args.vocabulary)
    model = distributed((PlimsollGpt if args.library == "plimsoll" else Gpt)(shape), args.how)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=args.how != "fsdp2")
    rows = args.batch // args.ranks
    tokens = torch.randint(0, args.vocabulary, (args.batch, args.context + 1))[args.rank * rows :][:rows]

    def step():
        with torch.autocast("cpu", torch.bfloat16), te.fp8_autocast(args.recipe == "fp8", fp8_recipe=Float8CurrentScaling()):
            logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        clip(model, args.how)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    for _ in range(2):
        step()
    held = sum(p.to_local().numel() if hasattr(p, "to_local") else p.numel() for p in model.parameters())
    answer(others, {"ready": True, "parameters_held": held})
    for line in sys.stdin:
        if line.strip() != "step":
            raise SystemExit(f"shard worker: expected 'step', got '{line.strip()}'")
        for other in others:
            other.send("step")
        start = time.perf_counter()
        step()
        seconds = time.perf_counter() - start
        answer(others, {"seconds": seconds, "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024})
    for other in others:
        other.close()


def others_of(args):
    return range(1, args.ranks) if args.rank == 0 else []


def answer(others, mine):
    """The largest of each number over the ranks."""
    answers = [mine, *(other.receive() for other in others)]
    print(json.dumps({key: max(one[key] for one in answers) for key in mine}), flush=True)


if __name__ == "__main__":
    main()
