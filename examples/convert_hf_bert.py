"""A Hugging Face BERT classifier, trained in FP32 and, converted in place, in FP8, from the same weights on the same batches.

    .venv/bin/python examples/convert_hf_bert.py [--steps 80] [--recipe delayed]

Nothing is downloaded: a small model with random weights learns whether a sequence holds more tokens of the upper half of the vocabulary
than of the lower. Prints what was converted and the losses; exits with 1 if FP8's mean over the last third of the steps is more than 2 %
of the first loss above FP32's.
"""

import argparse
import copy
import sys
import time

import plimsoll
import torch
from plimsoll.common import recipe
from transformers import BertConfig, BertForSequenceClassification

RECIPES = {
    "delayed": recipe.DelayedScaling(amax_history_len=16),
    "current": recipe.Float8CurrentScaling(),
    "block": recipe.Float8BlockScaling(),
    "mxfp8": recipe.MXFP8BlockScaling(),
}
VOCABULARY, LENGTH, BATCH = 64, 24, 64


def make_model() -> BertForSequenceClassification:
    torch.manual_seed(1)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=256,
            max_position_embeddings=LENGTH,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            num_labels=2,
        )
    )


def make_batch(generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Random sequences, each with its own share of upper tokens: some are easy, some are not."""
    share = torch.rand(BATCH, 1, generator=generator)
    upper = torch.rand(BATCH, LENGTH, generator=generator) < share
    tokens = torch.randint(VOCABULARY // 2, (BATCH, LENGTH), generator=generator) + upper * (VOCABULARY // 2)
    return {"input_ids": tokens, "labels": (upper.sum(1) > LENGTH // 2).long()}


def train(name: str, model: BertForSequenceClassification, steps: int) -> list[float]:
    generator = torch.Generator().manual_seed(2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    losses, start = [], time.perf_counter()
    for step in range(1, steps + 1):
        loss = model(**make_batch(generator)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % max(steps // 6, 1) == 0:
            print(f"{name:5} step {step:4}  loss {loss.item():.4f}  {(time.perf_counter() - start) / step * 1e3:5.0f} ms a step")
    return losses


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--recipe", choices=RECIPES, default="delayed")
    args = parser.parse_args()
    model = make_model()
    converted = copy.deepcopy(model)
    print(plimsoll.convert(converted, recipe=RECIPES[args.recipe]))
    fp32 = train("fp32", model, args.steps)
    fp8 = train("fp8", converted, args.steps)
    tail = max(args.steps // 3, 1)
    means = [sum(losses[-tail:]) / tail for losses in (fp32, fp8)]
    print(f"loss over the last third: fp32 {means[0]:.4f}, fp8 {means[1]:.4f}; the first loss was {fp32[0]:.4f}")
    sys.exit(0 if means[1] <= means[0] + 0.02 * fp32[0] else 1)


if __name__ == "__main__":
    main()
