"""Times single operators of torch with plimsoll.accelerate() against torch's own kernels, in turn in one process: the shapes at which the
rules of plimsoll/accelerate/rules.cpp begin to hold, and larger ones.

    .venv/bin/python bench/accelerated_operators.py [--all] [--isa avx2] [--operators mm_nt,softmax] [--dtypes bf16] [--json FILE]

--all turns the rules off, so that our kernels run wherever they can: what a rule for another processor is made of. Results are written
into tensors that exist where the operator can do so, and both sides have a caching allocator: page faults of fresh tensors come and go
with what malloc finds free.
"""

import argparse
import statistics
import time

import json_file
from accelerated_models import DTYPES, LEVELS, begin_at_level

ROWS = ((1, 768), (16, 768), (128, 768), (512, 768), (512, 3072))  # of what is passed over once
HEADS = ((64, 64), (2048, 64), (2048, 128))  # of norms of queries and keys
VOCABULARIES = ((512, 64), (4096, 256), (128, 8192), (128, 50304), (16, 151936))
MATRICES = ((1, 1024, 1024), (4, 1024, 1024), (8, 1024, 1024), (16, 1024, 1024), (64, 64, 64), (128, 128, 128), (128, 768, 768),
            (128, 3072, 768), (512, 768, 3072), (512, 1024, 1024))  # fmt: skip
BATCHES = ((12, 4, 128, 64), (12, 128, 128, 64), (12, 128, 64, 128), (8, 512, 512, 64))
ATTENTIONS = ((1, 12, 1, 128, 64), (1, 12, 32, 32, 64), (1, 12, 128, 128, 64), (2, 8, 512, 512, 64), (1, 4, 512, 512, 128))
PARAMETERS = ((1, 4096), (64, 64), (64, 768), (1, 65536), (1, 1 << 20), (1, 1 << 24))  # tensors, elements of each


def product_cases(torch, dtype):
    """mm by layout: what lies one after the other is k of both (nt), k and n (nn), m and n (tn)."""
    for m, n, k in MATRICES:
        rows, columns = torch.randn(m, k).to(dtype), torch.randn(n, k).to(dtype)
        wide, tall, out = torch.randn(k, n).to(dtype), torch.randn(k, m).to(dtype), torch.empty(m, n, dtype=dtype)
        shape = f"{m}x{n}x{k}"
        yield "mm_nt", shape, lambda a=rows, b=columns, out=out: torch.mm(a, b.t(), out=out)
        yield "mm_nn", shape, lambda a=rows, b=wide, out=out: torch.mm(a, b, out=out)
        yield "mm_tn", shape, lambda a=tall, b=wide, out=out: torch.mm(a.t(), b, out=out)
    for batch, m, n, k in BATCHES:
        a, b, out = torch.randn(batch, m, k).to(dtype), torch.randn(batch, n, k).to(dtype), torch.empty(batch, m, n, dtype=dtype)
        yield "bmm", f"{batch}x{m}x{n}x{k}", lambda a=a, b=b, out=out: torch.bmm(a, b.mT, out=out)


def scaled_cases(torch, dtype):
    for m, n, k in MATRICES:
        a, b = torch.randn(m, k).to(torch.float8_e4m3fn), torch.randn(n, k).to(torch.float8_e4m3fn).t()
        scales = {"tensor": (torch.tensor(0.5), torch.tensor(0.5)), "rows": (torch.rand(m, 1), torch.rand(1, n))}
        for name, (scale_a, scale_b) in scales.items():
            yield (
                f"scaled_mm_{name}",
                f"{m}x{n}x{k}",
                lambda a=a, b=b, p=scale_a, q=scale_b: torch._scaled_mm(a, b, p, q, out_dtype=dtype),
            )


def attention_cases(torch, dtype):
    attend = torch.nn.functional.scaled_dot_product_attention
    for batch, heads, queries, keys, channels in ATTENTIONS:
        q = torch.randn(batch, heads, queries, channels).to(dtype)
        k, v = (torch.randn(batch, heads, keys, channels).to(dtype) for _ in range(2))
        shape = f"{batch}x{heads}x{queries}x{keys}x{channels}"
        for name, causal in (("attention", False), ("attention_causal", True)):
            if causal and queries == 1:
                continue
            yield name, shape, lambda q=q, k=k, v=v, causal=causal: attend(q, k, v, is_causal=causal)
            leaves = [x.clone().requires_grad_() for x in (q, k, v)]
            with_gradient = gradient_of(torch, lambda *x, causal=causal: attend(*x, is_causal=causal), leaves)
            yield f"{name}_and_backward", shape, with_gradient


def gradient_of(torch, function, leaves):
    """A call of the function and of its backward pass, of the kernels in force at that time."""
    with torch.no_grad():
        gradient = torch.randn_like(function(*leaves))
    return lambda: torch.autograd.grad(function(*leaves), leaves, gradient)


def pass_cases(torch, dtype):
    aten = torch.ops.aten
    for rows, cols in ROWS:
        x, dy = torch.randn(rows, cols).to(dtype), torch.randn(rows, cols).to(dtype)
        out, in_place, shape = torch.empty_like(x), x.clone(), f"{rows}x{cols}"
        for name, by in (("gelu_tanh", "tanh"), ("gelu_erf", "none")):
            yield name, shape, lambda x=x, out=out, by=by: aten.gelu.out(x, approximate=by, out=out)
            yield (
                f"{name}_backward",
                shape,
                lambda dy=dy, x=x, out=out, by=by: aten.gelu_backward.grad_input(dy, x, approximate=by, grad_input=out),
            )
        yield "silu", shape, lambda x=x, out=out: aten.silu.out(x, out=out)
        yield "silu_", shape, lambda y=in_place: aten.silu_(y)
        yield "silu_backward", shape, lambda dy=dy, x=x, out=out: aten.silu_backward.grad_input(dy, x, grad_input=out)


def norm_cases(torch, dtype):
    for rows, cols in (*ROWS, *HEADS):
        x, weight, bias = torch.randn(rows, cols).to(dtype), torch.rand(cols).to(dtype), torch.rand(cols).to(dtype)
        shape = f"{rows}x{cols}"
        yield "layer_norm", shape, lambda x=x, w=weight, b=bias: torch.layer_norm(x, (x.size(-1),), w, b)
        yield "rms_norm", shape, lambda x=x, w=weight: torch.rms_norm(x, (x.size(-1),), w)
        leaves = [each.clone().requires_grad_() for each in (x, weight)]
        for name, norm in (("layer_norm", torch.layer_norm), ("rms_norm", torch.rms_norm)):
            both = gradient_of(torch, lambda x, w, norm=norm: norm(x, (x.size(-1),), w), leaves)
            yield f"{name}_and_backward", shape, both


def loss_cases(torch, dtype):
    aten = torch.ops.aten
    for rows, cols in VOCABULARIES:
        x, targets = torch.randn(rows, cols).to(dtype), torch.randint(cols, (rows,))
        out, y, dy = torch.empty_like(x), torch.log_softmax(x, -1), torch.zeros_like(x)
        dy[torch.arange(rows), targets] = -1 / rows
        shape = f"{rows}x{cols}"
        yield "softmax", shape, lambda x=x, out=out: aten._softmax.out(x, -1, False, out=out)
        yield "log_softmax", shape, lambda x=x, out=out: aten._log_softmax.out(x, -1, False, out=out)
        yield (
            "log_softmax_backward",
            shape,
            lambda dy=dy, y=y, out=out: aten._log_softmax_backward_data.out(dy, y, -1, dtype, out=out),
        )
        leaves = [x.clone().requires_grad_()]
        loss = gradient_of(torch, lambda x, t=targets: torch.nn.functional.cross_entropy(x, t), leaves)
        yield "cross_entropy_and_backward", shape, loss


def optimizer_cases(torch, dtype):
    options = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.01, "eps": 1e-8, "amsgrad": False, "maximize": False}
    for tensors, elements in PARAMETERS:
        lists = [[torch.rand(elements).to(dtype) for _ in range(tensors)] for _ in range(4)]
        steps = [torch.tensor(3.0) for _ in range(tensors)]
        yield (
            "fused_adamw",
            f"{tensors}x{elements}",
            lambda lists=lists, steps=steps: torch._fused_adamw_(*lists, [], steps, **options),
        )


def cases(torch, dtype):
    for part in (product_cases, scaled_cases, attention_cases, pass_cases, norm_cases, loss_cases, optimizer_cases):
        yield from part(torch, dtype)


def in_turn(plimsoll, work, args, clock):
    """(torch's own, ours): the median of each, in seconds a call. A turn is many calls of a short operator."""

    def turn(accelerated, calls):
        plimsoll.accelerate(accelerated)
        work()
        begin = clock()
        for _ in range(calls):
            work()
        return (clock() - begin) / calls

    first = max(turn(False, 1), turn(True, 1))
    calls = max(1, int(args.seconds / (first + 1e-6)))
    times = [[turn(accelerated, calls) for accelerated in (False, True)] for _ in range(args.rounds)]
    plimsoll.accelerate(False)
    return [statistics.median(each) for each in zip(*times, strict=True)]


def parse():
    parser = argparse.ArgumentParser(description="operators of torch with plimsoll.accelerate() against torch's own kernels")
    parser.add_argument("--operators", help="some of those that the table names, with commas; all by default")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--all", action="store_true", help="our kernels wherever they can run, whatever the rules say")
    parser.add_argument("--isa", choices=LEVELS, help="the level of both sides; the processor's best by default")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.003, help="of a turn")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side")
    parser.add_argument("--json", help="write the table to this file")
    args = parser.parse_args()
    args.dtypes = args.dtypes.split(",")
    if unknown := sorted(set(args.dtypes) - set(DTYPES)):
        parser.error(f"--dtypes: expected some of {', '.join(DTYPES)}, got {', '.join(unknown)}")
    return parser, args


def rows_of(parser, args):
    import plimsoll
    import torch

    torch.set_num_threads(args.threads)
    clock = time.thread_time if args.threads == 1 else time.perf_counter
    wanted, seen = set(args.operators.split(",")) if args.operators else None, set()
    torch.ops.plimsoll.set_acceleration_rules(not args.all)
    torch.ops.plimsoll.use_caching_allocator()
    for dtype in args.dtypes:
        torch.manual_seed(0)
        torch.backends.mkldnn.set_flags(not (args.isa == "avx2" and dtype != "fp32"))
        for operator, shape, function in cases(torch, getattr(torch, DTYPES[dtype])):
            seen.add(operator)
            if wanted is not None and operator not in wanted:
                continue
            plimsoll.reset_acceleration_report()
            theirs, ours = in_turn(plimsoll, function, args, clock)
            counts = [count for op in plimsoll.acceleration_report().values() for count in op.items()]
            yield {
                "operator": operator,
                "dtype": dtype,
                "shape": shape,
                "torch_seconds": theirs,
                "seconds": ours,
                "times": theirs / ours,
                "outcomes": sorted({outcome for outcome, calls in counts if calls}),
            }
    if wanted is not None and wanted - seen:
        parser.error(f"--operators: expected some of {', '.join(sorted(seen))}, got {', '.join(sorted(wanted - seen))}")


def main():
    parser, args = parse()
    begin_at_level(args.isa)
    rows = []
    print(f"{'operator':30}{'dtype':7}{'shape':18}{'torch us':>11}{'ours us':>11}{'times':>8}   calls", flush=True)
    for row in rows_of(parser, args):
        rows.append(row)
        print(
            f"{row['operator']:30}{row['dtype']:7}{row['shape']:18}{1e6 * row['torch_seconds']:11.1f}{1e6 * row['seconds']:11.1f}"
            f"{row['times']:8.2f}   {' '.join(row['outcomes'])}",
            flush=True,
        )
    if args.json:
        json_file.write(args.json, {"arguments": vars(args), "rows": rows})


if __name__ == "__main__":
    main()
