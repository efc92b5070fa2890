"""Small decoders whose weights have columns that codes cannot hold beside the others, and `plimsoll line` on them."""

import json
import shutil

import decoder_models
import decoder_parts
import torch
from program import plimsoll

LINE = "plimsoll_line.json"
FACTOR = 2.0**17  # all but the columns that grow lie near or below the smallest code, 2^-9, of an E4M3 row whose largest is 448


def write(model, tokenizer, folder):
    decoder_models.save(model, folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, folder)
    return folder


def config_of(name, tokenizer):
    """The family's small one, with a row of the embedding for each token."""
    config = decoder_models.CONFIGS[name]()
    config.vocab_size = json.loads((tokenizer / "config.json").read_text())["vocab_size"]
    return config


def soft(model):
    """Logits as small as a trained model's, so that a divergence is a rounding's and not a choice between certainties."""
    with torch.no_grad():
        model.get_output_embeddings().weight *= 0.1
    return model


def line(model, text, out, *more):
    result = plimsoll("line", "--model", model, "--data", text, "--out", out, *more)
    return result, json.loads((out / LINE).read_text()) if (out / LINE).is_file() else None


def spread_values(block, generator, factor=FACTOR):
    """A value channel of a head shrinks, and the columns of the output projection that read it grow."""
    heads = decoder_parts.heads_of(block)
    head, channel = generator.randrange(heads.value.weight.shape[0]), generator.randrange(heads.value.weight.shape[1])
    heads.value.scale((head, channel), 1 / factor)
    heads.out[:, heads.queries(head), channel] *= factor
    return "self_attention.proj"


def spread_hidden(block, generator, factor=FACTOR):
    """A hidden channel of a gated MLP shrinks, and the column of the down-projection that reads it grows."""
    up, down = decoder_parts.gated_of(block)
    channel = generator.randrange(down.shape[1])
    up.scale(channel, 1 / factor)
    down[:, channel] *= factor
    return "layernorm_mlp.fc2"


def scale_norm(norm, channels, factor):
    """Without rounding: 1 + w is first given the bits that a factor of 2^-17 leaves."""
    if decoder_parts.is_zero_centered(norm):
        norm.weight[channels] = (norm.weight[channels] * 64).round() / 64
    decoder_parts.scale_norm(norm, channels, factor)


def spread_norm(block, part, generator, factor):
    norm, weights = decoder_parts.readers(block)[part]
    channel = generator.randrange(weights[0].shape[1])
    scale_norm(norm, channel, 1 / factor)
    for weight in weights:
        weight[:, channel] *= factor


def spread_attention(block, generator, factor=FACTOR):
    """A channel of the residual stream shrinks in the norm of the attention, and the columns that read it grow."""
    spread_norm(block, 0, generator, factor)
    return "self_attention.layernorm_qkv"


def spread_mlp(block, generator, factor=FACTOR):
    """A channel of the residual stream shrinks in the norm of the MLP, and the columns that read it grow."""
    spread_norm(block, 1, generator, factor)
    return "layernorm_mlp.fc1"


def spread_keys(block, generator, factor=FACTOR):
    """Two channels of a head's keys that turn together grow, and its queries shrink: rows, which have scales of their own."""
    heads = decoder_parts.heads_of(block)
    half = (heads.rotary or heads.key.weight.shape[1]) // 2
    first = generator.randrange(half)
    channels = torch.tensor([first, first + half])
    if heads.norms:
        for norm, power in zip(heads.norms, (1 / factor, factor), strict=True):
            scale_norm(norm, channels, power)
    else:
        head = generator.randrange(heads.key.weight.shape[0])
        heads.key.scale((head, channels), factor)
        for query in range(heads.shared):
            heads.query.scale((head * heads.shared + query, channels), 1 / factor)
    return None


SPREADS = {
    "values": spread_values,
    "hidden": spread_hidden,
    "attention": spread_attention,
    "mlp": spread_mlp,
    "keys": spread_keys,
}


def spreads_of(model):
    """Names of those that a model of this family can have."""
    has_gate = decoder_parts.gated_of(decoder_parts.blocks(model)[0]) is not None
    return [name for name in SPREADS if has_gate or name != "hidden"]


@torch.no_grad()
def spread(model, block, name, generator, factor=FACTOR):
    """Spreads a block's weights without changing the function; the path of the product that it hurts, or None."""
    product = SPREADS[name](decoder_parts.blocks(model)[block], generator, factor)
    return product and f"blocks.{block}.{product}"
