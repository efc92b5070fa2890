"""The outliers of trained decoders, grafted onto random weights of several families, and uniform powers of two to compare gauge with."""

import contextlib
import copy
import math

import decoder_models
import torch
from t5_outliers import hooks

LARGE = 3e5  # some five times FP16's largest number
OUTLIER_CHANNELS = 12  # enough that no token is without outliers, which its norms would then not shrink

# Family to the outliers of its model: "stream", "hidden" (gate times up), "key".
MODELS = {
    "llama": ("stream", "hidden", "key"),
    "mistral": ("stream", "key"),
    "qwen2": ("hidden", "key"),
    "gemma3_text": ("stream", "hidden"),
    "gpt2": ("stream",),
}


def blocks(model):
    return model.transformer.h if hasattr(model, "transformer") else model.model.layers


def reading_norms(model):
    """Norms that read the residual stream, in the order in which they run."""
    names: tuple[str, ...] = ("input_layernorm", "pre_feedforward_layernorm", "ln_1", "ln_2")
    if not hasattr(blocks(model)[0], "pre_feedforward_layernorm"):
        names += ("post_attention_layernorm",)
    norms = [module for name, module in model.named_modules() if name.rsplit(".", 1)[-1] in names]
    return [*norms, model.transformer.ln_f if hasattr(model, "transformer") else model.model.norm]


def is_zero_centered(norm):
    return type(norm).__name__.startswith("Gemma")


def stream_writers(block):
    """Weight, [out, in], and bias or None of each product that adds to the residual stream; or the norm that adds instead."""
    if hasattr(block, "post_feedforward_layernorm"):
        return [block.post_feedforward_layernorm]
    mlp = block.mlp
    return [mlp.c_proj if hasattr(mlp, "c_proj") else mlp.down_proj]


def graft_stream(model, ids, large=LARGE):
    """One block writes `large` into some channels; each later norm gives these and the others unit rms, so that blocks stay tame."""
    outlier = torch.zeros(model.config.hidden_size, dtype=torch.bool)
    outlier[torch.arange(OUTLIER_CHANNELS) * 4 + 3] = True
    first = reading_norms(model)[2 if len(blocks(model)) > 1 else 1]
    later = reading_norms(model)[reading_norms(model).index(first) :]
    seen = {}

    def level(norm, arguments):
        h = arguments[0].detach()
        seen[norm] = h.abs().max().item()
        h = h - h.mean(-1, keepdim=True) if isinstance(norm, torch.nn.LayerNorm) else h
        y = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True))
        for group in (outlier, ~outlier):
            norm.weight[group] = 1 / y[..., group].pow(2).mean().sqrt() - (1 if is_zero_centered(norm) else 0)

    for writer in stream_writers(blocks(model)[0]):
        for _ in range(2):
            if is_zero_centered(writer):
                writer.weight[outlier] = (1 + writer.weight[outlier]) * large / seen.get(first, 1) - 1
            else:
                rows = writer.weight.mT if type(writer).__name__ == "Conv1D" else writer.weight
                rows[outlier] *= large / seen.get(first, 1)
            with hooks([norm.register_forward_pre_hook(level) for norm in later]):
                model(ids)


def seen_by(product, model, ids):
    """Input and output of a product."""
    seen: list[torch.Tensor] = []
    with hooks([product.register_forward_hook(lambda _, arguments, output: seen.extend((arguments[0], output)))]):
        model(ids)
    return seen


def graft_hidden(model, ids, large=LARGE):
    """Hidden channels of each block reach `large`, and the down-projection takes it back."""
    for block in blocks(model):
        hidden, _ = seen_by(block.mlp.down_proj, model, ids)
        channels = [3, 17]
        factor = large / hidden[..., channels].abs().amax((0, 1))
        block.mlp.up_proj.weight[channels] *= factor[:, None]
        block.mlp.down_proj.weight[:, channels] /= factor


def graft_keys(model, ids, large=LARGE):
    """Keys of one head reach `large` in two channels that turn together, and its queries take it back."""
    for block in blocks(model):
        attention = block.self_attn
        _, keys = seen_by(attention.k_proj, model, ids)
        dim = attention.head_dim
        channels = torch.tensor([1, 1 + dim // 2])
        factor = large / keys[..., channels].abs().max()
        queries = attention.config.num_attention_heads // attention.config.num_key_value_heads
        for name, rows, power in (("k_proj", channels, 1), *(("q_proj", channels + i * dim, -1) for i in range(queries))):
            product = getattr(attention, name)
            product.weight[rows] *= factor**power
            if product.bias is not None:
                product.bias[rows] *= factor**power


GRAFTS = {"stream": graft_stream, "hidden": graft_hidden, "key": graft_keys}


@torch.no_grad()
def make(name, ids, config=None):
    """A model of the family with all of its outliers on these inputs."""
    model = decoder_models.make(name, config)
    for part in MODELS[name]:
        GRAFTS[part](model, ids)
    return model


@contextlib.contextmanager
def parts_of(product, counts):
    """Rows of a product that is several: (weight [out, in], bias) each."""
    weight = product.weight.mT if type(product).__name__ == "Conv1D" else product.weight
    biases = [None] * len(counts) if product.bias is None else product.bias.split(counts)
    yield list(zip(weight.split(counts), biases, strict=True))


def scale(part, exponent, columns=0):
    weight, bias = part
    weight *= 2.0 ** (exponent + columns)
    if bias is not None:
        bias *= 2.0**exponent


@torch.no_grad()
def multiplied(source, residual, pairs, queries):
    """The model with its residual stream times 2^residual, queries 2^queries and keys the inverse, values and up-projections 2^pairs."""
    model = copy.deepcopy(source)
    config = model.config
    old = "layer_norm_epsilon" if hasattr(config, "layer_norm_epsilon") else "rms_norm_eps"
    epsilon = getattr(config, old) * 4.0**residual
    setattr(config, old, epsilon)
    for module in model.modules():
        for attribute in ("variance_epsilon", "eps"):
            if hasattr(module, attribute):
                setattr(module, attribute, epsilon)
    if config.tie_word_embeddings:
        model.lm_head.weight = torch.nn.Parameter(model.get_input_embeddings().weight.clone())
        config.tie_word_embeddings = False
    inner = model.transformer if hasattr(model, "transformer") else model.model
    for embedding in (inner.wte, inner.wpe) if hasattr(model, "transformer") else (inner.embed_tokens,):
        embedding.weight *= 2.0**residual
    for block in blocks(model):
        if hasattr(block, "attn"):
            width = config.hidden_size
            with parts_of(block.attn.c_attn, [width] * 3) as (query, key, value):
                scale(query, queries), scale(key, -queries), scale(value, pairs)
            writers = [(block.attn.c_proj, -pairs), (block.mlp.c_proj, 0)]
        else:
            attention, mlp = block.self_attn, block.mlp
            norms_heads = hasattr(attention, "q_norm")
            for product, exponent in (
                (attention.q_proj, residual if norms_heads else queries),
                (attention.k_proj, residual if norms_heads else -queries),
                (attention.v_proj, pairs),
                (mlp.up_proj, pairs),
            ):
                scale((product.weight, product.bias), exponent)
            writers = [(attention.o_proj, -pairs), (mlp.down_proj, -pairs)]
        for product, columns in writers:
            scale((product.weight, product.bias), residual, columns)
        for name in ("post_attention_layernorm", "post_feedforward_layernorm"):
            if norm := getattr(block, name, None) if hasattr(block, "pre_feedforward_layernorm") else None:
                norm.weight.copy_((1 + norm.weight) * 2.0**residual - 1)
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
