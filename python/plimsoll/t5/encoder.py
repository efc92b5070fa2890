"""T5EncoderModel: the encoder alone, with Hugging Face's names and arguments."""

from __future__ import annotations

from typing import Any

import torch

from plimsoll.t5.outputs import BaseModelOutput
from plimsoll.t5.pretrained import T5PreTrainedModel


class T5EncoderModel(T5PreTrainedModel):
    """The encoder of a checkpoint, whether or not that has a decoder, too."""

    _encoder_alone = True

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        *,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> BaseModelOutput | tuple[Any, ...]:
        """input_ids int64 [batch, seq], or inputs_embeds [batch, seq, d_model]; attention_mask is nonzero where there is a
        token."""
        output = self._run_encoder(input_ids, attention_mask, inputs_embeds, output_hidden_states)
        return output.to_tuple() if return_dict is False else output
