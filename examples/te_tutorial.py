"""A GPT in Transformer Engine's terms, trained in FP32 and in FP8 from the same weights on the same batches.

    .venv/bin/python examples/te_tutorial.py [--steps 300] [--recipe delayed]

The model is written as for Transformer Engine; only the two imports name Plimsoll. Prints the loss as it goes and the mean of the last
tenth of the steps; exits with 1 if FP8's is more than 1 % above FP32's. The text is the source of Python's standard library.
"""

import argparse
import contextlib
import sys
import sysconfig
import time
from pathlib import Path

import plimsoll.pytorch as te
import torch
from plimsoll.common import recipe

RECIPES = {
    "delayed": recipe.DelayedScaling(fp8_format=recipe.Format.HYBRID, amax_history_len=16),
    "current": recipe.Float8CurrentScaling(),
    "block": recipe.Float8BlockScaling(),
    "mxfp8": recipe.MXFP8BlockScaling(),
}
VOCABULARY, HIDDEN, HEADS, LAYERS, CONTEXT, BATCH = 256, 128, 4, 4, 64, 16


class Gpt(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(VOCABULARY, HIDDEN)
        self.positions = torch.nn.Embedding(CONTEXT, HIDDEN)
        self.blocks = torch.nn.ModuleList(
            te.TransformerLayer(
                HIDDEN,
                4 * HIDDEN,
                HEADS,
                hidden_dropout=0.0,
                attention_dropout=0.0,
                layer_number=number + 1,
                self_attn_mask_type="causal",
                fuse_qkv_params=True,
                attn_input_format="bshd",
            )
            for number in range(LAYERS)
        )
        self.norm = te.LayerNorm(HIDDEN)
        self.head = torch.nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def corpus(size: int = 4_000_000) -> torch.Tensor:
    text = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
        if len(text) > size:
            break
    return torch.frombuffer(text, dtype=torch.uint8).long()


def train(name: str, scope, text: torch.Tensor, steps: int) -> float:
    torch.manual_seed(1)
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(2)
    losses, start = [], time.perf_counter()
    for step in range(1, steps + 1):
        begins = torch.randint(len(text) - CONTEXT - 1, (BATCH,), generator=generator)
        batch = torch.stack([text[begin : begin + CONTEXT + 1] for begin in begins])
        with scope():
            logits = model(batch[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % max(steps // 6, 1) == 0:
            print(f"{name:8} step {step:4}  loss {loss.item():.4f}  {(time.perf_counter() - start) / step * 1e3:5.0f} ms a step")
    tail = losses[-max(steps // 10, 1) :]
    return sum(tail) / len(tail)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--recipe", choices=RECIPES, default="delayed")
    args = parser.parse_args()
    text = corpus()
    fp32 = train("fp32", contextlib.nullcontext, text, args.steps)
    fp8 = train("fp8", lambda: te.fp8_autocast(enabled=True, fp8_recipe=RECIPES[args.recipe]), text, args.steps)
    print(f"loss over the last tenth: fp32 {fp32:.4f}, fp8 {fp8:.4f} ({100 * (fp8 / fp32 - 1):+.2f} %)")
    sys.exit(0 if fp8 <= 1.01 * fp32 else 1)


if __name__ == "__main__":
    main()
