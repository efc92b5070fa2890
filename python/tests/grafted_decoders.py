"""The outliers of trained decoders, grafted onto random weights of each family, and uniform powers of two to compare gauge with."""

import copy
import math

import decoder_models
import decoder_parts
import torch
from t5_outliers import hooks

LARGE = 3e5  # some five times FP16's largest number
OUTLIER_CHANNELS = 12  # enough that no token is without outliers, which its norms would then not shrink

# Family to the parts of its model that can have outliers: "stream", "hidden" (gate times up; GELU has no factor to take
# back), "key", "value".
MODELS = {
    "llama": ("stream", "hidden", "key", "value"),
    "mistral": ("stream", "hidden", "key", "value"),
    "qwen2": ("stream", "hidden", "key", "value"),
    "qwen3": ("stream", "hidden", "key", "value"),
    "gemma3_text": ("stream", "hidden", "key", "value"),
    "gpt2": ("stream", "key", "value"),
    "gpt_neox": ("stream", "key", "value"),
}


def reading_norms(model):
    """Norms that read the residual stream, in the order in which they run."""
    norms = [norm for block in decoder_parts.blocks(model) for norm, _ in decoder_parts.readers(block)]
    return [*norms, decoder_parts.last_norm(model)]


def graft_stream(model, ids, large=LARGE):
    """One block writes `large` into some channels; each later norm gives these and the others unit rms, so that blocks stay tame."""
    outlier = torch.zeros(model.config.hidden_size, dtype=torch.bool)
    outlier[torch.arange(OUTLIER_CHANNELS) * 4 + 3] = True
    first = reading_norms(model)[2 if len(decoder_parts.blocks(model)) > 1 else 1]
    later = reading_norms(model)[reading_norms(model).index(first) :]
    seen = {}

    def level(norm, arguments):
        h = arguments[0].detach()
        seen[norm] = h.abs().max().item()
        h = h - h.mean(-1, keepdim=True) if isinstance(norm, torch.nn.LayerNorm) else h
        y = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True))
        for group in (outlier, ~outlier):
            norm.weight[group] = 1 / y[..., group].pow(2).mean().sqrt() - int(decoder_parts.is_zero_centered(norm))

    written = decoder_parts.written(decoder_parts.blocks(model)[0])
    for _ in range(2):
        if decoder_parts.is_zero_centered(written):
            decoder_parts.scale_norm(written, outlier, large / seen.get(first, 1))
        else:
            decoder_parts.weight_of(written)[outlier] *= large / seen.get(first, 1)
        with hooks([norm.register_forward_pre_hook(level) for norm in later]):
            model(ids)


def input_of(product, model, ids):
    seen: list[torch.Tensor] = []
    with hooks([product.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))]):
        model(ids)
    return seen[0]


def outputs_of(rows, x):
    """[batch, seq, heads, dim] of rows [heads, dim, in]."""
    y = torch.einsum("bsi,hdi->bshd", x, rows.weight)
    return y if rows.bias is None else y + rows.bias


def graft_hidden(model, ids, large=LARGE):
    """Hidden channels of each block reach `large`, and the down-projection takes it back."""
    for block in decoder_parts.blocks(model):
        up, down = decoder_parts.gated_of(block)
        channels = torch.tensor([3, 17])
        factor = large / input_of(block.mlp.down_proj, model, ids)[..., channels].abs().amax((0, 1))
        up.weight[channels] *= factor[:, None]
        if up.bias is not None:
            up.bias[channels] *= factor
        down[:, channels] /= factor


def graft_keys(model, ids, large=LARGE):
    """Keys of one head, of all where a norm has one weight for them, reach `large` in two channels that turn together, and the
    queries that read them take it back."""
    for block in decoder_parts.blocks(model):
        heads = decoder_parts.heads_of(block)
        channels = torch.tensor([1, 1 + (heads.rotary or heads.key.weight.shape[1]) // 2])
        keys = outputs_of(heads.key, input_of(heads.reads, model, ids))
        if heads.norms:
            query, key = heads.norms
            factor = large / key(keys)[..., channels].abs().max()
            decoder_parts.scale_norm(key, channels, factor)
            decoder_parts.scale_norm(query, channels, 1 / factor)
        else:
            factor = large / keys[:, :, 0, channels].abs().max()
            heads.key.scale((0, channels), factor)
            for query in range(heads.shared):
                heads.query.scale((query, channels), 1 / factor)


def graft_values(model, ids, large=LARGE):
    """A channel of one head's values reaches `large`, and the output projection takes it back."""
    for block in decoder_parts.blocks(model):
        heads = decoder_parts.heads_of(block)
        values = outputs_of(heads.value, input_of(heads.reads, model, ids))
        factor = large / values[:, :, 0, 2].abs().max()
        heads.value.scale((0, 2), factor)
        heads.out[:, heads.queries(0), 2] /= factor


GRAFTS = {"stream": graft_stream, "hidden": graft_hidden, "key": graft_keys, "value": graft_values}


@torch.no_grad()
def make(name, ids, config=None, parts=None):
    """A model of the family with outliers on these inputs, in all of its parts unless some are given."""
    model = decoder_models.make(name, config)
    for part in MODELS[name] if parts is None else parts:
        GRAFTS[part](model, ids)
    return model


def scale(rows, exponent):
    rows.scale((), 2.0**exponent)


@torch.no_grad()
def multiplied(source, residual, pairs, queries):
    """The model with its residual stream times 2^residual, queries 2^queries and keys the inverse, by their norms where they have some,
    values and up-projections 2^pairs."""
    model = copy.deepcopy(source)
    config = model.config
    old = next(name for name in ("layer_norm_epsilon", "layer_norm_eps", "rms_norm_eps") if hasattr(config, name))
    epsilon = getattr(config, old) * 4.0**residual
    setattr(config, old, epsilon)
    for module in model.modules():
        for attribute in ("variance_epsilon", "eps"):
            if hasattr(module, attribute):
                setattr(module, attribute, epsilon)
    if config.tie_word_embeddings:
        model.lm_head.weight = torch.nn.Parameter(model.get_input_embeddings().weight.clone())
        config.tie_word_embeddings = False
    for embedding in decoder_parts.embeddings(model):
        embedding.weight *= 2.0**residual
    for block in decoder_parts.blocks(model):
        heads, gated = decoder_parts.heads_of(block), decoder_parts.gated_of(block)
        scale(heads.query, residual if heads.norms else queries)
        scale(heads.key, residual if heads.norms else -queries)
        if heads.norms:
            for norm, exponent in zip(heads.norms, (queries, -queries), strict=True):
                decoder_parts.scale_norm(norm, slice(None), 2.0**exponent)
        scale(heads.value, pairs)
        heads.out.mul_(2.0**-pairs)
        if gated:
            up, down = gated
            scale(up, pairs)
            down.mul_(2.0**-pairs)
        for product in decoder_parts.branches(block):
            scale(decoder_parts.rows_of(product), residual)
        for norm in decoder_parts.norms_behind(block):
            decoder_parts.scale_norm(norm, slice(None), 2.0**residual)
    return model


def uniform(source, residual):
    """(what, model) of each way to give all freedoms one exponent."""
    yield "stream alone", multiplied(source, residual, 0, 0)
    if residual:
        yield "all", multiplied(source, residual, residual, residual)
        yield "all, keys down", multiplied(source, residual, residual, -residual)


@torch.no_grad()
def headroom_bits(model, ids):
    """Bits of headroom in FP16, over what products read and write, and the residual stream."""
    largest: list[float] = []

    def see(module, arguments, output):
        if type(module).__name__ in ("Linear", "Conv1D"):
            largest.extend(x.abs().max().item() for x in (arguments[0], output))
        elif module in norms:
            largest.append(arguments[0].abs().max().item())

    norms = reading_norms(model)
    with hooks([module.register_forward_hook(see) for module in model.modules()]):
        model(ids)
    return math.log2(torch.finfo(torch.float16).max / max(largest))
