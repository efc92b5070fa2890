"""Results of models: transformers' classes of these names, with the members that are computed here."""

from __future__ import annotations

from typing import Any, ClassVar

import torch


class ModelOutput(dict[str, Any]):
    """Members by attribute, which is None where one was not computed; and, of those that were, by name or place, as in
    transformers."""

    _names: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        cls._names = tuple(cls.__annotations__)

    def __init__(self, *values: Any, **named: Any) -> None:
        given = dict(*values, **named)
        if unknown := given.keys() - set(self._names):
            raise TypeError(f"{type(self).__name__}: expected {', '.join(self._names)}, got {', '.join(sorted(unknown))}")
        super().__init__((name, given[name]) for name in self._names if given.get(name) is not None)

    def __getattr__(self, name: str) -> Any:
        if name not in self._names:
            raise AttributeError(f"{type(self).__name__} has no member {name}")
        return self.get(name)

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key) if isinstance(key, str) else self.to_tuple()[key]

    def to_tuple(self) -> tuple[Any, ...]:
        return tuple(self.values())


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
