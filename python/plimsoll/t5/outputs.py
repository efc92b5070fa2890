"""Results of models: transformers' classes of these names, with the members that are computed here."""

from __future__ import annotations

from typing import Any

import torch

from plimsoll._model_output import ModelOutput


class BaseModelOutput(ModelOutput):
    """last_hidden_state [batch, seq, d_model]; hidden_states, where they are asked for: the embedded tokens, what each block
    but the last makes of them, and last_hidden_state."""

    last_hidden_state: torch.Tensor
    hidden_states: tuple[torch.Tensor, ...] | None


class Seq2SeqLMOutput(ModelOutput):
    """loss with labels; logits [batch, target, vocab_size]; past_key_values with use_cache; hidden states as BaseModelOutput's."""

    loss: torch.Tensor | None
    logits: torch.Tensor
    past_key_values: Any
    decoder_hidden_states: tuple[torch.Tensor, ...] | None
    encoder_last_hidden_state: torch.Tensor
    encoder_hidden_states: tuple[torch.Tensor, ...] | None


class GenerateEncoderDecoderOutput(ModelOutput):
    """sequences [rows, length]; scores, with output_scores, of each step [rows, vocab_size]: the logits that a token was chosen
    by."""

    sequences: torch.Tensor
    scores: tuple[torch.Tensor, ...] | None


class GenerateBeamEncoderDecoderOutput(ModelOutput):
    """sequences [rows, length] and, with output_scores, sequences_scores [rows] and scores of each step [batch * num_beams,
    vocab_size], log probabilities. beam_indices [rows, length - 1] are the rows of scores that each token was chosen by; -1
    behind the end."""

    sequences: torch.Tensor
    sequences_scores: torch.Tensor | None
    scores: tuple[torch.Tensor, ...] | None
    beam_indices: torch.Tensor
