"""Speed on a card: kernels beside a device copy of as many bytes, and layers in FP8 beside BF16.

    PYTHONPATH=python PLIMSOLL_BUILD=BUILD python tests/gpu/device_bench.py [--json FILE]

Prints a row for each: milliseconds, and the share of the copy or the ratio to BF16. Each time is the median of rounds in which all
that a row compares run in turn.
"""

import argparse
import json
import os
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("PLIMSOLL_CUDA_UNVERIFIED", "1")
import plimsoll.pytorch as te
import torch
from plimsoll.common import recipe as recipes

ops = torch.ops.plimsoll
ROWS, COLS = 16384, 8192  # 256 MiB of BF16: beyond the cards' L2
ROUNDS, CALLS = 7, 10
Row = dict[str, Any]


def milliseconds(works: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Median time of each, in turn."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        for _ in range(3):
            work()
    for _ in range(ROUNDS):
        for name, work in works.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(CALLS):
                work()
            end.record()
            torch.cuda.synchronize()
            times[name].append(start.elapsed_time(end) / CALLS)
    return {name: statistics.median(each) for name, each in times.items()}


def beside_copy(name: str, work: Callable[[], Any], bytes_moved: float) -> Row:
    """The kernel's time, and what share of it a copy that reads and writes as many bytes in all takes."""
    source = torch.empty(int(bytes_moved / 2), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    times = milliseconds({"kernel": work, "copy": lambda: target.copy_(source)})
    return {"name": name, "ms": times["kernel"], "of_copy": times["copy"] / times["kernel"]}


def kernel_rows() -> list[Row]:
    x = torch.randn(ROWS, COLS, device="cuda").bfloat16()
    n, weight = x.numel(), torch.randn(COLS, device="cuda")
    scale = torch.ones(1, device="cuda")
    codes, _ = ops.quantize(x, scale, "e4m3")
    norm = {"kind": "rmsnorm", "zero_centered": False, "epsilon": 1e-5}
    y, _, mean, rstd = ops.norm_forward(x, None, weight, None, dtype=torch.bfloat16, **norm)
    passed = {"x": x, "weight": weight, "mean": mean, "rstd": rstd, **norm}
    scores = x.view(1, 8, ROWS // 8, COLS)
    logits, targets = x.view(-1, 16 * COLS), torch.randint(16 * COLS, (ROWS // 16,), device="cuda")
    loss = partial(ops.cross_entropy_forward, logits, targets, None, reduction="mean", ignore_index=-100, label_smoothing=0.0)
    moments = [torch.zeros(n // 2, device="cuda") for _ in range(3)]
    grad = x.flatten()[: n // 2]
    parameter = grad.clone()
    tokens, few = torch.randperm(ROWS, device="cuda").view(8, -1), torch.randint(64, (8, ROWS // 8), device="cuda")
    of_places = y.view(8, -1, COLS)
    table = {"vocabulary": ROWS, "positions": 0, "first_position": 0, "dtype": torch.bfloat16}
    heads, angles = x.view(ROWS // 8, 8, -1, 128), torch.randn(ROWS // 8, 128, device="cuda")
    turns = {"cosine": angles.cos(), "sine": angles.sin(), "position_dim": 0, "interleaved": False, "transposed": False}
    # Four times as much, so that the host's wait is a small part, and the biases of a model.
    grads = [*(x.clone() for _ in range(4)), *(torch.randn(4096, device="cuda") for _ in range(300))]
    read = sum(each.nbytes for each in grads)
    return [
        beside_copy("quantize bf16 to e4m3, one scale", lambda: ops.quantize(x, scale, "e4m3"), 3 * n),
        beside_copy("amax bf16", lambda: ops.amax(x), 2 * n),
        beside_copy("quantize bf16 to e4m3, current scale (two passes)", lambda: ops.quantize_blocks(x, "e4m3", [0, 0]), 5 * n),
        *(
            beside_copy(f"quantize bf16 to e4m3, {a} x {b or 'row'}", partial(ops.quantize_blocks, x, "e4m3", [a, b]), 3 * n)
            for a, b in ((1, 0), (1, 128), (128, 128), (1, 32), (32, 1))
        ),
        beside_copy("dequantize e4m3 to bf16", lambda: ops.dequantize(codes, scale, "e4m3", [0, 0], torch.bfloat16), 3 * n),
        beside_copy("transpose of codes", lambda: ops.transpose(codes), 2 * n),
        beside_copy("RMSNorm bf16", lambda: ops.norm_forward(x, None, weight, None, dtype=torch.bfloat16, **norm), 4 * n),
        beside_copy("RMSNorm backward bf16", lambda: ops.norm_backward(y, None, **passed), 6 * n),
        beside_copy("GELU bf16", lambda: ops.activation_forward(x, "gelu"), 4 * n),
        beside_copy("GELU backward bf16", lambda: ops.activation_backward(x, y, "gelu"), 6 * n),
        beside_copy("SwiGLU bf16", lambda: ops.activation_forward(x, "swiglu"), 3 * n),
        beside_copy("SwiGLU backward bf16", lambda: ops.activation_backward(x, y[:, : COLS // 2], "swiglu"), 5 * n),
        beside_copy("softmax bf16", lambda: ops.softmax_forward(scores, 0.1, "no_mask", None), 4 * n),
        beside_copy("cross entropy bf16, 128k classes", lambda: loss(wants_grad=False), 2 * n),
        beside_copy("cross entropy bf16 with its gradient (two passes)", lambda: loss(wants_grad=True), 6 * n),
        beside_copy("embedding bf16", lambda: ops.embedding_forward(tokens, x, None, 0, torch.bfloat16), 4 * n),
        beside_copy(
            "embedding backward bf16, each token once", lambda: ops.embedding_backward(of_places, tokens, **table), 4 * n
        ),
        beside_copy("embedding backward bf16, 64 tokens", lambda: ops.embedding_backward(of_places, few, **table), 4 * n),
        beside_copy("rotary bf16", lambda: ops.rotary_turn(heads, **turns), 4 * n),
        beside_copy(
            "AdamW, masters of bf16",
            lambda: ops.adamw_(parameter, grad, moments[0], moments[1], step=1, lr=1e-3, master=moments[2]),
            28 * n / 2,
        ),
        beside_copy("norm of gradients, with the host's wait", lambda: ops.unscale_gradients_(grads, 1.0), read),
        beside_copy("unscaled gradients and norm, with the host's wait", lambda: ops.unscale_gradients_(grads, 0.999), 2 * read),
    ]


def layer_row(name: str, make: Callable[[], torch.nn.Module], shape: tuple[int, ...]) -> Row:
    """Forward and backward passes of one layer, without and with recipes."""
    layer = make()
    x = torch.randn(*shape, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    grad: list[torch.Tensor] = []

    def work(recipe: Any) -> Callable[[], None]:
        def step() -> None:
            with te.fp8_autocast(enabled=recipe is not None, fp8_recipe=recipe):
                y = layer(x)
            if not grad:
                grad.append(torch.randn_like(y))
            y.backward(grad[0])

        return step

    times = milliseconds(
        {"bf16": work(None), "delayed": work(recipes.DelayedScaling()), "current": work(recipes.Float8CurrentScaling())}
    )
    return {
        "name": name,
        **{f"{key}_ms": value for key, value in times.items()},
        "bf16_of_delayed": times["bf16"] / times["delayed"],
    }


def layer_rows() -> list[Row]:
    made: dict[str, Any] = {"params_dtype": torch.bfloat16, "device": "cuda"}
    return [
        layer_row("Linear 4096, 8192 tokens", lambda: te.Linear(4096, 4096, bias=False, **made), (8192, 4096)),
        layer_row("LayerNormMLP 4096, 8192 tokens", lambda: te.LayerNormMLP(4096, 16384, **made), (8192, 4096)),
        layer_row(
            "TransformerLayer 4096, 2048 tokens of 4 texts",
            lambda: te.TransformerLayer(4096, 16384, 32, hidden_dropout=0.0, attention_dropout=0.0, **made),
            (2048, 4, 4096),
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of kernels and layers on a card")
    parser.add_argument("--json", type=Path, help="file for the rows")
    args = parser.parse_args()
    rows: dict[str, list[Row]] = {}
    for part, measure in (("kernels", kernel_rows), ("layers", layer_rows)):
        rows[part] = measure()
        if args.json:  # whoever ends this program has the parts before
            args.json.write_text(json.dumps(rows, indent=1) + "\n")
    for row in rows["kernels"]:
        print(f"{row['name']:<52} {row['ms']:8.3f} ms, {row['of_copy']:5.0%} of a copy")
    for row in rows["layers"]:
        print(
            f"{row['name']:<52} BF16 {row['bf16_ms']:7.3f} ms, FP8 {row['delayed_ms']:7.3f} (delayed), {row['current_ms']:7.3f} (current)"
        )


if __name__ == "__main__":
    main()
