"""Results of decoder-only models: transformers' class of this name, with the members that are computed here."""

from __future__ import annotations

from typing import Any

import torch

from plimsoll._model_output import ModelOutput


class CausalLMOutputWithPast(ModelOutput):
    """loss with labels; logits fp32 [batch, seq, vocab_size]; past_key_values with use_cache."""

    loss: torch.Tensor | None
    logits: torch.Tensor
    past_key_values: Any
