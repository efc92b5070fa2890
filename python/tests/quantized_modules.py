"""Modules whose weights are FP8 codes, for tests."""

import plimsoll.pytorch as te
import torch
from plimsoll.pytorch import QuantizedTensor

MODULES = {
    "Linear": lambda: te.Linear(32, 48),
    "LayerNormLinear": lambda: te.LayerNormLinear(32, 48),
    "LayerNormMLP": lambda: te.LayerNormMLP(32, 48, activation="swiglu"),
    "TransformerLayer": lambda: te.TransformerLayer(32, 48, 2, hidden_dropout=0.0, attention_dropout=0.0),
}


def quantized(make, seed=4, **keywords):
    torch.manual_seed(seed)
    with te.fp8_model_init(**keywords):
        return make()


def weights_of(module):
    return {name: p for name, p in module.named_parameters() if isinstance(p, QuantizedTensor)}


def is_parameter(weight) -> bool:
    return isinstance(weight, QuantizedTensor) and isinstance(weight, torch.nn.Parameter)


def marked():
    """A module whose weight carries what callers hang on parameters, and its optimizer after a step."""
    module = quantized(MODULES["Linear"], preserve_high_precision_init_val=True)
    module.weight.main_grad, module.weight.partition_dim = torch.zeros(48, 32), 1
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    module(torch.randn(2, 32)).sum().backward()
    optimizer.step()
    return module, optimizer
