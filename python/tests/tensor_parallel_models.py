"""Modules that ranks share, and the same modules of one rank."""

import oracle
import plimsoll.pytorch as te
import torch
import torch.distributed as dist

ALL_RECIPES = {"none": None, **oracle.RECIPES}


def rank_of(group):
    return dist.get_rank(group)


def part(group, tensor, dim):
    return tensor.chunk(dist.get_world_size(group), dim)[rank_of(group)]


def scope(group, rule):
    return te.fp8_autocast(enabled=rule is not None, fp8_recipe=rule, fp8_group=group)


def seeded(make, seed=0):
    torch.manual_seed(seed)
    return make()


def randomized(module):
    """The same values for a whole module and for the parts of its ranks: biases and norms away from what has no effect."""
    for name, parameter in module.named_parameters():
        if parameter.dim() == 1:
            torch.manual_seed(len(name))
            with torch.no_grad():
                parameter.copy_(torch.linspace(0.5, 1.5, 4).repeat(parameter.numel() // 4))
    return module


def sum_over_tokens(group, module):
    """Sums the gradients that each rank has from its tokens alone, as Megatron-LM does."""
    for parameter in module.parameters():
        if getattr(parameter, "sequence_parallel", False):
            dist.all_reduce(parameter.grad, group=group)


MODULES = {
    "LayerNormLinear": lambda **tp: te.LayerNormLinear(32, 48, **column(tp)),
    "LayerNormLinear without bias": lambda **tp: te.LayerNormLinear(32, 48, bias=False, normalization="RMSNorm", **column(tp)),
    "LayerNormMLP": lambda **tp: te.LayerNormMLP(32, 64, **tp),
    "LayerNormMLP swiglu": lambda **tp: te.LayerNormMLP(32, 64, activation="swiglu", normalization="RMSNorm", **tp),
    "MultiheadAttention": lambda **tp: te.MultiheadAttention(32, 4, attention_dropout=0.0, **tp),
    "MultiheadAttention fused": lambda **tp: te.MultiheadAttention(
        32, 8, attention_dropout=0.0, num_gqa_groups=4, input_layernorm=True, fuse_qkv_params=True, **tp
    ),
    "MultiheadAttention fused apart": lambda **tp: te.MultiheadAttention(
        32, 8, attention_dropout=0.0, num_gqa_groups=4, fuse_qkv_params=True, qkv_weight_interleaved=False, **tp
    ),
    "MultiheadAttention qk_norm": lambda **tp: te.MultiheadAttention(32, 4, attention_dropout=0.0, qk_norm_type="RMSNorm", **tp),
    "TransformerLayer qk_norm": lambda **tp: te.TransformerLayer(
        32, 64, 4, hidden_dropout=0.0, attention_dropout=0.0, fuse_qkv_params=True, qk_norm_type="LayerNorm", **tp
    ),
    "TransformerLayer": lambda **tp: te.TransformerLayer(
        32, 64, 4, hidden_dropout=0.0, attention_dropout=0.0, activation="geglu", **tp
    ),
    "TransformerLayer decoder": lambda **tp: te.TransformerLayer(
        32, 64, 4, 4, hidden_dropout=0.0, attention_dropout=0.0, layer_type="decoder", normalization="RMSNorm", **tp
    ),
}


def column(tp):
    tp = dict(tp)
    return {**tp, "parallel_mode": "column"} if tp.pop("set_parallel_mode", False) else tp


def part_of_parameter(group, module_name, name, tensor, mark):
    """Part of a whole parameter that this rank has; halves of gated fc1 and fused queries, keys, values are split each."""
    dim = getattr(mark, "partition_dim", None)
    if dim is None:
        return tensor
    pieces = [tensor]
    if "fc1" in name and tensor.shape[0] == 128:
        pieces = tensor.chunk(2)
    if module_name.endswith("fused apart") and "qkv" in name:
        pieces = tensor.split([32, 16, 16])
    return torch.cat([part(group, piece, dim) for piece in pieces], dim)


def run(module, x, grad, forward=None):
    x = x.clone().requires_grad_()
    output = (forward or module)(x)
    output.backward(grad)
    return output.detach(), x.grad


def both(group, name, sequence, rule):
    """{what: (this rank's, one rank's part of it)}; a whole module and a shared one of one seed."""
    whole = randomized(seeded(MODULES[name]))
    tp = {"set_parallel_mode": True, "tp_group": group, "sequence_parallel": sequence}
    shared = randomized(seeded(lambda: MODULES[name](**tp)))
    by_columns = name.startswith("LayerNormLinear")
    torch.manual_seed(3)
    x, grad = torch.randn(8, 5, 32), torch.randn(8, 5, 48 if by_columns else 32)

    def tokens(tensor):
        return part(group, tensor, 0) if sequence else tensor

    encoded = torch.randn(8, 5, 32)
    cross = "decoder" in name
    with scope(group, rule):
        output, input_grad = run(whole, x, grad, (lambda v: whole(v, encoder_output=encoded)) if cross else None)
    with scope(group, rule):
        results = run(
            shared,
            tokens(x),
            part(group, grad, -1) if by_columns else tokens(grad),
            (lambda v: shared(v, encoder_output=tokens(encoded))) if cross else None,
        )
    sum_over_tokens(group, shared)
    compared = {
        "output": (results[0], part(group, output, -1) if by_columns else tokens(output)),
        "gradient of the input": (results[1], tokens(input_grad)),
    }
    for (key, mine), theirs in zip(shared.named_parameters(), whole.parameters(), strict=False):
        if theirs.dim() == 2:
            assert torch.equal(mine, part_of_parameter(group, name, key, theirs, mine)), f"initial {key}"
        compared[f"gradient of {key}"] = (mine.grad, part_of_parameter(group, name, key, theirs.grad, mine))
    return compared
