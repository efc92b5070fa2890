"""Times plimsoll.pytorch's modules against torch.nn's in bf16 autocast, in turn in one process; forward and backward together.

    PYTHONPATH=python .venv/bin/python bench/python_modules.py [--filter mlp] [--rounds 15] [--threads 2] [--json FILE]

Prints medians in ms and how many times faster ours are. "call" is one tiny Linear: what a call costs beside its arithmetic.
"""

import argparse
import os
import statistics
import time

import json_file
import plimsoll.pytorch as te
import torch
from plimsoll.common import recipe

RECIPES = {"delayed": recipe.DelayedScaling(), "current": recipe.Float8CurrentScaling(), "mxfp8": recipe.MXFP8BlockScaling()}


def torch_mlp(hidden, ffn):
    return torch.nn.Sequential(
        torch.nn.LayerNorm(hidden), torch.nn.Linear(hidden, ffn), torch.nn.GELU("tanh"), torch.nn.Linear(ffn, hidden)
    )


class TorchBlock(torch.nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.norm, self.qkv, self.proj = torch.nn.LayerNorm(hidden), torch.nn.Linear(hidden, 3 * hidden), torch.nn.Linear(hidden, hidden)
        self.mlp, self.heads = torch_mlp(hidden, 4 * hidden), heads

    def forward(self, x):
        query, key, value = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, 2))
        attended = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


def layer(hidden, heads):
    return te.TransformerLayer(
        hidden, 4 * hidden, heads, hidden_dropout=0.0, attention_dropout=0.0, fuse_qkv_params=True, attn_input_format="bshd"
    )


# name: torch's, ours, shape of the input.
CASES = {
    "call/linear_16": (lambda: torch.nn.Linear(16, 16), lambda: te.Linear(16, 16), (8, 16)),
    "linear/768_3072": (lambda: torch.nn.Linear(768, 3072), lambda: te.Linear(768, 3072), (4096, 768)),
    "mlp/768_3072": (lambda: torch_mlp(768, 3072), lambda: te.LayerNormMLP(768, 3072), (4096, 768)),
    "layer/768_12": (lambda: TorchBlock(768, 12), lambda: layer(768, 12), (8, 512, 768)),
}


def step(module, x, grad, rule):
    def run():
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16), te.fp8_autocast(enabled=rule is not None, fp8_recipe=rule):
            output = module(x)
        output.backward(grad.to(output.dtype))
        elapsed = time.perf_counter() - start
        module.zero_grad()
        return elapsed

    return run


def row_of(name, rule, rounds):
    torch.manual_seed(1)
    theirs, ours, shape = CASES[name]
    x = torch.randn(shape).requires_grad_()
    theirs, ours = theirs(), ours()
    grad = torch.randn_like(theirs(x))
    contestants = {"torch": step(theirs, x, grad, None), "plimsoll": step(ours, x, grad, rule)}
    times = {who: [] for who in contestants}
    for number in range(rounds + 2):
        for who, run in contestants.items():
            elapsed = run()
            if number >= 2:
                times[who].append(elapsed)
    medians = {who: statistics.median(values) for who, values in times.items()}
    return {"name": name, **medians, "ratio": medians["torch"] / medians["plimsoll"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--filter", default="")
    parser.add_argument("--recipe", choices=RECIPES, default="delayed")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows = []
    print(f"{'module':18}{'torch ms':>10}{'plimsoll':>10}{'x':>7}")
    for name in CASES:
        if args.filter in name:
            rows.append(row_of(name, RECIPES[args.recipe], args.rounds))
            print(f"{name:18}{1e3 * rows[-1]['torch']:10.3f}{1e3 * rows[-1]['plimsoll']:10.3f}{rows[-1]['ratio']:7.2f}")
    if args.json:
        json_file.write(args.json, {"arguments": vars(args), "rows": rows})


if __name__ == "__main__":
    main()
