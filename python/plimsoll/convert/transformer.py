"""torch.nn.TransformerEncoderLayer and the encoder around it, in place."""

from __future__ import annotations

import torch

from plimsoll.convert.norm_pairs import is_pair, run_pair
from plimsoll.convert.swap import Converted


class ConvertedTransformerEncoder(Converted, torch.nn.TransformerEncoder):
    """An encoder whose layers get dense tensors in evaluation, too."""

    use_nested_tensor = property(lambda self: False)


class ConvertedTransformerEncoderLayer(Converted, torch.nn.TransformerEncoderLayer):
    """One with norm_first: norm2 and linear1 are one op. The rest is torch's, of converted children."""

    def forward(
        self,
        src: torch.Tensor,
        src_mask: torch.Tensor | None = None,
        src_key_padding_mask: torch.Tensor | None = None,
        is_causal: bool = False,
    ) -> torch.Tensor:
        if not is_pair(self.norm2, self.linear1):
            return super().forward(src, src_mask, src_key_padding_mask, is_causal)
        x = src + self._sa_block(self.norm1(src), src_mask, src_key_padding_mask, is_causal=is_causal)
        hidden = self.dropout(self.activation(run_pair(self.norm2, self.linear1, x)))
        output: torch.Tensor = x + self.dropout2(self.linear2(hidden))
        return output
