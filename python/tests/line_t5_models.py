"""Small T5s with columns of weights that codes cannot hold beside the others, examples for them, and what `plimsoll line` says."""

import json
import random

import torch
import transformers
from line_models import FACTOR
from plimsoll.t5 import T5ForConditionalGeneration
from rounding import gamma
from t5_models import make, save

WRITTEN = 32  # tokens at most that FP32 writes where there is no target
END = 1


def soft(model):
    """Logits as small as a trained model's, so that a divergence is a rounding's and not a choice between certainties."""
    with torch.no_grad():
        if model.lm_head.weight is not model.shared.weight:
            model.lm_head.weight *= 0.1
    return model


def small(kind, **changes):
    return soft(make(kind, **changes))


def examples(count, seed=3, vocabulary=130, has_target=True):
    """Objects of a *.jsonl, of lengths that differ, so that batches are padded."""
    generator = random.Random(seed)

    def ids(least, most):
        return [generator.randrange(3, vocabulary) for _ in range(generator.randrange(least, most))]

    return [{"input_ids": [*ids(4, 14), END], **({"target": ids(2, 9)} if has_target else {})} for _ in range(count)]


def write_examples(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def targets_of(model, rows):
    """Tokens that the decoder is to write for each: the target and its end, or Hugging Face's own text."""
    result = []
    for row in rows:
        if "target" in row:
            result.append([*row["target"], END])
        elif len(row.get("decoder_input_ids", [])) > 1:
            result.append(row["decoder_input_ids"][1:])
        else:
            options = {"max_new_tokens": WRITTEN, "do_sample": False, "num_beams": 1}
            result.append(model.generate(torch.tensor([row["input_ids"]]), **options)[0, 1:].tolist())
    return result


def log_probabilities(model, rows, targets, start=0):
    """FP64 [tokens, vocabulary] of the target's tokens, one example at a time."""
    found = []
    for row, target in zip(rows, targets, strict=True):
        first = row["decoder_input_ids"][0] if "target" not in row and "decoder_input_ids" in row else start
        decoder = torch.tensor([[first, *target[:-1]]])
        found.append(model(input_ids=torch.tensor([row["input_ids"]]), decoder_input_ids=decoder).logits[0].double())
    return torch.log_softmax(torch.cat(found), -1)


@torch.no_grad()
def divergence(source, written, dtype, rows, targets, fixes="seed"):
    """Mean KL of the model written, in this dtype, from the source in FP32, and how far it may be off."""
    want = log_probabilities(T5ForConditionalGeneration.from_pretrained(source, "fp32"), rows, targets)
    got = log_probabilities(T5ForConditionalGeneration.from_pretrained(written, dtype, fixes), rows, targets)
    mean = (want.exp() * (want - got)).sum(-1).mean().item()
    magnitude = (want.exp() * (want.abs() + got.abs())).sum(-1).max().item()
    return mean, gamma(4 * want.shape[1], torch.float64) * magnitude


def shrink(rows, columns, factor=FACTOR):
    """Rows of a weight, or a norm's channels, shrink by what the columns that read them grow."""
    rows /= factor
    for each in columns:
        each *= factor


def spread_values(model):
    """A value channel of an attention and the column of its output projection."""
    attention = model.encoder.block[1].layer[0].SelfAttention
    shrink(attention.v.weight[3], [attention.o.weight[:, 3]])
    return ["encoder.block.1.layer.0.SelfAttention.o"]


def spread_hidden(model):
    """A hidden channel of a feed-forward part and the column that reads it."""
    dense = model.decoder.block[0].layer[2].DenseReluDense
    shrink((dense.wi_1 if hasattr(dense, "wi_1") else dense.wi).weight[5], [dense.wo.weight[:, 5]])
    return ["decoder.block.0.layer.2.DenseReluDense.wo"]


def spread_stream(model):
    """A channel of the residual stream in the norm of an attention, and the columns of all three weights that read it."""
    layer = model.decoder.block[1].layer[0]
    parts = "qkv"
    shrink(layer.layer_norm.weight[7:8], [getattr(layer.SelfAttention, part).weight[:, 7] for part in parts])
    return [f"decoder.block.1.layer.0.SelfAttention.{part}" for part in parts]


def spread_cross(model):
    """A channel of the encoder's output, and the columns of every cross attention's keys and values."""
    attentions = [(i, block.layer[1].EncDecAttention) for i, block in enumerate(model.decoder.block)]
    shrink(
        model.encoder.final_layer_norm.weight[2:3],
        [getattr(attention, part).weight[:, 2] for _, attention in attentions for part in "kv"],
    )
    return [f"decoder.block.{i}.layer.1.EncDecAttention.{part}" for i, _ in attentions for part in "kv"]


def spread_head(model):
    """A channel of the decoder's output, and the column of a head of its own."""
    shrink(model.decoder.final_layer_norm.weight[4:5], [model.lm_head.weight[:, 4]])
    return ["lm_head"]


def classes_of(kind):
    return {"m": transformers.MT5ForConditionalGeneration, "U": transformers.UMT5ForConditionalGeneration}.get(
        kind[0], transformers.T5ForConditionalGeneration
    )


def save_small(kind, folder, spread=None, **changes):
    """(Hugging Face's model, its directory, the names of the products that codes hurt)."""
    model = small(kind, **changes)
    with torch.no_grad():
        names = spread(model) if spread else []
    return model, save(model, folder), names
