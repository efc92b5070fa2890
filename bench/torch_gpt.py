"""The peer: the GPT of plimsoll/models/gpt/model.h written with torch.nn alone, pre-norm, GELU (tanh), learned positions."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class GptShape:
    layers: int
    dim: int
    heads: int
    context: int
    vocabulary: int = 256
    tied: bool = False  # the head reads the token embedding


class Block(nn.Module):
    """x [batch, tokens, dim] -> the same shape."""

    def __init__(self, shape: GptShape):
        super().__init__()
        self.heads = shape.heads
        self.norm1 = nn.LayerNorm(shape.dim)
        self.qkv = nn.Linear(shape.dim, 3 * shape.dim)
        self.proj = nn.Linear(shape.dim, shape.dim)
        self.norm2 = nn.LayerNorm(shape.dim)
        self.fc1 = nn.Linear(shape.dim, 4 * shape.dim)
        self.fc2 = nn.Linear(4 * shape.dim, shape.dim)

    def forward(self, x):
        batch, tokens, dim = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, dim // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).reshape(batch, tokens, dim))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """token ids [batch, tokens] -> logits [batch, tokens, vocabulary]."""

    def __init__(self, shape: GptShape):
        super().__init__()
        self.token_embedding = nn.Embedding(shape.vocabulary, shape.dim)
        self.position_embedding = nn.Embedding(shape.context, shape.dim)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.dim)
        self.head = nn.Linear(shape.dim, shape.vocabulary, bias=False)
        if shape.tied:
            self.head.weight = self.token_embedding.weight

    def forward(self, tokens):
        x = self.token_embedding(tokens) + self.position_embedding.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def saved_bytes(step, parameters) -> int:
    """Bytes that autograd saves while `step` runs: each storage once, those of `parameters` left out, whose views are saved, too."""
    seen = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        step()
    for parameter in parameters:
        seen.pop(parameter.untyped_storage().data_ptr(), None)
    return sum(seen.values())
