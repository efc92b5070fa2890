"""Times plimsoll.pytorch's modules against torch.nn's in bf16 autocast, in turn in one process; forward and backward together.

    .venv/bin/python bench/python_modules.py [--filter mlp] [--rounds 15] [--threads 2] [--json FILE]

Prints medians in ms and how many times faster ours are. "call" is one tiny Linear: what a call costs beside its arithmetic.

    ... bench/python_modules.py --torchao        (after .venv/bin/pip install --no-deps torchao==0.18.0)

has torchao's float8 training of torch.nn's modules, emulated as on any CPU, as a third contestant.

    ... bench/python_modules.py --overhead [--build build] [--threads 1]

times Linear 4096 x 768 -> 3072 against C++'s nn::Linear (build/bin/linear_step_worker) instead: CPU time of each process, in turn.
"""

import argparse
import copy
import os
import statistics
import time
from pathlib import Path

import json_file
import plimsoll.pytorch as te
import torch
from contestant import Contestant
from plimsoll.common import recipe

RECIPES = {"delayed": recipe.DelayedScaling(), "current": recipe.Float8CurrentScaling(), "mxfp8": recipe.MXFP8BlockScaling()}


def torch_mlp(hidden, ffn):
    return torch.nn.Sequential(
        torch.nn.LayerNorm(hidden), torch.nn.Linear(hidden, ffn), torch.nn.GELU("tanh"), torch.nn.Linear(ffn, hidden)
    )


class TorchBlock(torch.nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.norm, self.qkv, self.proj = (
            torch.nn.LayerNorm(hidden),
            torch.nn.Linear(hidden, 3 * hidden),
            torch.nn.Linear(hidden, hidden),
        )
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


def in_torchao(module):
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    return convert_to_float8_training(copy.deepcopy(module), config=Float8LinearConfig(emulate=True))


def row_of(name, rule, rounds, with_torchao):
    torch.manual_seed(1)
    theirs, ours, shape = CASES[name]
    x = torch.randn(shape).requires_grad_()
    theirs, ours = theirs(), ours()
    grad = torch.randn_like(theirs(x))
    contestants = {"torch": step(theirs, x, grad, None), "plimsoll": step(ours, x, grad, rule)}
    if with_torchao:
        contestants["torchao"] = step(in_torchao(theirs), x, grad, None)
    times: dict[str, list[float]] = {who: [] for who in contestants}
    for number in range(rounds + 2):
        for who, run in contestants.items():
            elapsed = run()
            if number >= 2:
                times[who].append(elapsed)
    medians = {who: statistics.median(values) for who, values in times.items()}
    return {"name": name, **medians, "ratio": medians["torch"] / medians["plimsoll"]}


def overhead_row(rule, rounds, threads, build):
    """Overhead in CPU time, which others on the machine disturb less than time on the wall."""
    rows, columns, outputs = 4096, 768, 3072
    torch.manual_seed(1)
    x = torch.randn(rows, columns).requires_grad_()
    module = te.Linear(columns, outputs)
    grad = torch.randn(rows, outputs)
    options = [
        f"--{key}={value}" for key, value in zip(("rows", "in", "out", "threads"), (rows, columns, outputs, threads), strict=True)
    ]
    worker = Contestant("C++", [Path(build) / "bin" / "linear_step_worker", *options, f"--recipe={rule.to_json('fp32')}"], {})
    times: dict[str, list[float]] = {"python": [], "cpp": []}
    try:
        for number in range(rounds + 2):
            start = time.process_time()
            with te.fp8_autocast(fp8_recipe=rule):
                output = module(x)
            output.backward(grad)
            elapsed = time.process_time() - start
            module.zero_grad()
            x.grad = None
            other = worker.ask("step")["cpu_seconds"]
            if number >= 2:
                times["python"].append(elapsed)
                times["cpp"].append(other)
    finally:
        worker.close()
    medians = {who: statistics.median(values) for who, values in times.items()}
    least = {who: min(values) for who, values in times.items()}
    return {
        "name": "overhead/linear/768_3072",
        "median_seconds": medians,
        "least_seconds": least,
        "median_ratio": medians["python"] / medians["cpp"],
        "least_ratio": least["python"] / least["cpp"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--filter", default="")
    parser.add_argument("--recipe", choices=RECIPES, default="delayed")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--json")
    parser.add_argument("--torchao", action="store_true", help="time torchao's float8 training, too")
    parser.add_argument("--overhead", action="store_true", help="against C++'s nn::Linear, not torch.nn")
    parser.add_argument("--build", default=str(Path(__file__).resolve().parent.parent / "build"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.overhead:
        row = overhead_row(RECIPES[args.recipe], args.rounds, args.threads, args.build)
        for what in ("median", "least"):
            seconds = row[f"{what}_seconds"]
            python, cpp = 1e3 * seconds["python"], 1e3 * seconds["cpp"]
            print(f"{what:8}Python {python:9.3f} ms   C++ {cpp:9.3f} ms   ratio {row[f'{what}_ratio']:.4f}")
        if args.json:
            json_file.write(args.json, {"arguments": vars(args), "rows": [row]})
        return
    names = [name for name in CASES if args.filter in name]
    if not names:
        parser.error(f"--filter: expected a part of {', '.join(CASES)}, got '{args.filter}'")
    rows = []
    print(f"{'module':18}{'torch ms':>10}{'plimsoll':>10}{'x':>7}" + (f"{'torchao':>10}{'x':>7}" if args.torchao else ""))
    for name in names:
        row = row_of(name, RECIPES[args.recipe], args.rounds, args.torchao)
        rows.append(row)
        theirs, ours, torchao = (1e3 * row.get(who, 0) for who in ("torch", "plimsoll", "torchao"))
        more = f"{torchao:10.3f}{torchao / ours:7.2f}" if args.torchao else ""
        print(f"{name:18}{theirs:10.3f}{ours:10.3f}{row['ratio']:7.2f}{more}")
    if args.json:
        json_file.write(args.json, {"arguments": vars(args), "rows": rows})


if __name__ == "__main__":
    main()
