"""The common part of torch.nn.Modules whose parameters a model in C++ owns."""

from __future__ import annotations

import types
from collections.abc import Mapping
from operator import index
from typing import Any, Self

import torch

from plimsoll._overflow import count_overflowed, warn_of_overflow

CODES = ("fp8", "nvfp4", "mxfp4")  # dtypes under which products read codes
_DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", None: "stored", "auto": "stored"}


def dtype_name(dtype: torch.dtype | str | None, *, codes: bool, where: str = "from_pretrained") -> str:
    """The library's name of the dtype that weights are to have; codes: whether CODES are some. where: opens the error."""
    name = _DTYPES.get(dtype, dtype)
    if name not in (*_DTYPES.values(), *(CODES if codes else ())):
        expected = "float32, bfloat16, float16, 'fp8', 'nvfp4' or 'mxfp4'" if codes else "float32, bfloat16 or float16"
        raise ValueError(f"{where}: expected dtype {expected}, got {dtype!r}")
    return str(name)


def draw_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that the operators of every generation take, from options under Hugging Face's names. A draw's seed is torch's
    next random number."""
    draws = bool(options["do_sample"])
    return {
        "max_new_tokens": index(options["max_new_tokens"]),
        "do_sample": draws,
        "temperature": float(options["temperature"]),
        "top_k": index(options["top_k"] or 0),
        "top_p": float(options["top_p"]),
        "seed": int(torch.randint(2**62, ())) if draws else 0,
        "repetition_penalty": float(options["repetition_penalty"]),
        "no_repeat_ngram_size": index(options["no_repeat_ngram_size"] or 0),
    }


def write_texts(steps: Any, start: torch.Tensor, streamer: Any) -> torch.Tensor:
    """Runs all steps of a generation and returns its sequences. streamer: put(ids) is called with `start` and at each step,
    end() at the end."""
    if streamer is not None:
        streamer.put(start)
    while not steps.done():
        tokens = steps.step()
        if streamer is not None:
            streamer.put(tokens)
    if streamer is not None:
        streamer.end()
    return steps.sequences()  # type: ignore[no-any-return]


class OwnedModel(torch.nn.Module):
    """Base of models whose C++ side reads the very parameters that are registered here."""

    def __init__(self, model: Any, config: dict[str, Any]) -> None:
        super().__init__()
        self.config = types.SimpleNamespace(**config)
        self._model = model

    def _copy(self) -> Self:
        """A model of the same arguments around a clone of what C++ owns."""
        raise NotImplementedError

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """As torch's, with a warning for weights that the dtype of the parameters cannot hold. assign=True is refused: C++
        reads the parameters that are here."""
        if assign:
            raise ValueError("load_state_dict: expected assign=False, got True")
        keys = super().load_state_dict(state_dict, strict)
        held = {name: parameter for name, parameter in self.named_parameters() if name in state_dict}
        stored = {name: state_dict[name].reshape(tensor.size()) for name, tensor in held.items()}
        overflowed = ((name, count_overflowed(stored[name], tensor), tensor) for name, tensor in held.items())
        warn_of_overflow("load_state_dict", overflowed)
        return keys

    def train(self, mode: bool = True) -> Self:
        self._model.train(mode)
        return super().train(mode)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        copy = self._copy()
        for mine, theirs in zip(self.parameters(), copy.parameters(), strict=True):
            theirs.requires_grad_(mine.requires_grad)
            memo[id(mine)] = theirs  # an optimizer's, if it is copied in the same call
        memo[id(self)] = copy
        return copy.train(self.training)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")
