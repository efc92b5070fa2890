"""T5ForConditionalGeneration over the C++ model, with Hugging Face's names and arguments."""

from __future__ import annotations

import json
import os
import types
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from plimsoll._overflow import count_overflowed, warn_of_overflow
from plimsoll._whole_file import whole_file, write_text
from plimsoll.t5.parameter_tree import register

_ops = torch.ops.plimsoll
_DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", None: "stored", "auto": "stored"}
_SEED = {"downproject_scale": 8.0, "residual_fp32": True, "mask_scale": 0.75, "gelu_guard": 39.0, "no_dynamic_clamp": True}
_NO_FIX = {"downproject_scale": 1.0, "residual_fp32": False, "mask_scale": 1.0, "gelu_guard": 0.0, "no_dynamic_clamp": False}
_EARLY_STOPPING = {False: "heuristic", True: "first", "never": "never"}


class T5Output(NamedTuple):
    """loss is None without labels; logits [batch, target, vocab_size]; encoder_last_hidden_state [batch, seq, d_model]."""

    loss: torch.Tensor | None
    logits: torch.Tensor
    encoder_last_hidden_state: torch.Tensor


class T5ForConditionalGeneration(torch.nn.Module):
    """A T5 with the parameters of Hugging Face's class of that name; made by from_pretrained().

    t5_fixes says how FP16 is computed, and nothing else: "seed" (the five switches, the default), None (FP32 inside each
    op, FP16 between them), or a dict of some of the switches, the others off: downproject_scale, residual_fp32, mask_scale,
    gelu_guard, no_dynamic_clamp. With {} it is Hugging Face's arithmetic.
    """

    def __init__(self, model: Any, config: dict[str, Any], t5_fixes: dict[str, Any] | str | None = "seed") -> None:
        super().__init__()
        self.config = types.SimpleNamespace(**config)
        self._model = model
        self.t5_fixes = t5_fixes
        register(self, model.parameters())
        self.eval()

    @classmethod
    def from_pretrained(
        cls,
        directory: str | os.PathLike[str],
        dtype: torch.dtype | str | None = None,
        t5_fixes: dict[str, Any] | str | None = "seed",
    ) -> T5ForConditionalGeneration:
        """directory: config.json with model.safetensors or its shards. dtype: of the weights, a torch.dtype, "fp32", "bf16",
        "fp16", "fp8" (E4M3 codes with a scale a row, for inference), or None: as they are stored. Weights that the dtype cannot
        hold become Inf, with a warning that counts and names them."""
        name = _DTYPES.get(dtype, dtype)
        if name not in (*_DTYPES.values(), "fp8"):
            raise ValueError(f"from_pretrained: expected dtype float32, bfloat16, float16 or 'fp8', got {dtype!r}")
        model = torch.classes.plimsoll.T5Model(str(directory), name)
        if overflowed := model.warning():
            warnings.warn(f"from_pretrained: {overflowed}", stacklevel=2)
        config = json.loads((Path(directory) / "config.json").read_text())
        return cls(model, config, t5_fixes)

    def save_pretrained(self, directory: str | os.PathLike[str]) -> None:
        """config.json and model.safetensors, which from_pretrained() reads, and Hugging Face's."""
        from safetensors.torch import save_file

        if any(parameter.numel() == 0 for parameter in self.parameters()):
            raise ValueError("save_pretrained: expected weights, got FP8 codes; load the model with another dtype")
        Path(directory).mkdir(parents=True, exist_ok=True)
        tensors = {name: parameter.detach().contiguous() for name, parameter in self.named_parameters()}
        with whole_file(Path(directory) / "model.safetensors") as file:
            save_file(tensors, file, metadata={"format": "pt"})
        write_text(Path(directory) / "config.json", json.dumps(vars(self.config), indent=2) + "\n")

    @property
    def t5_fixes(self) -> dict[str, Any] | str | None:
        return self._t5_fixes

    @t5_fixes.setter
    def t5_fixes(self, fixes: dict[str, Any] | str | None) -> None:
        if fixes is None:
            self._model.clear_fixes()
        else:
            switches = _SEED if fixes == "seed" else fixes
            if not isinstance(switches, dict) or not switches.keys() <= _NO_FIX.keys():
                raise ValueError(f"t5_fixes: expected 'seed', None or a dict of {', '.join(_NO_FIX)}, got {fixes!r}")
            _ops.t5_set_fixes(self._model, **{name: type(off)(switches.get(name, off)) for name, off in _NO_FIX.items()})
        self._t5_fixes = fixes

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """As torch's, with a warning for weights that the dtype of the parameters cannot hold. assign=True is refused: C++
        reads the parameters that are here."""
        if assign:
            raise ValueError("load_state_dict: expected assign=False, got True")
        keys = super().load_state_dict(state_dict, strict)
        held = {name: parameter for name, parameter in self.named_parameters() if name in state_dict}
        overflowed = ((name, count_overflowed(state_dict[name], tensor), tensor) for name, tensor in held.items())
        warn_of_overflow("load_state_dict", overflowed)
        return keys

    def train(self, mode: bool = True) -> T5ForConditionalGeneration:
        self._model.train(mode)
        return super().train(mode)

    def __deepcopy__(self, memo: dict[int, Any]) -> T5ForConditionalGeneration:
        copy = type(self)(self._model.clone(), dict(vars(self.config)), self.t5_fixes)
        for mine, theirs in zip(self.parameters(), copy.parameters(), strict=True):
            theirs.requires_grad_(mine.requires_grad)
            memo[id(mine)] = theirs  # an optimizer's, if it is copied in the same call
        memo[id(self)] = copy
        return copy.train(self.training)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of everything between the products."""
        return self.get_parameter("encoder.final_layer_norm.weight").dtype

    def encode(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        """The encoder's output [batch, seq, d_model] of input_ids [batch, seq]."""
        encoded: torch.Tensor = self._model.encode(input_ids, attention_mask)
        return encoded

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: Any = None,
        labels: torch.Tensor | None = None,
    ) -> T5Output:
        """ids int64 [batch, seq]; masks are nonzero where there is a token. labels: -100 is ignored; without
        decoder_input_ids they are these, shifted right. encoder_outputs: a tensor, or a tuple that starts with one."""
        encoded = encoder_outputs if encoder_outputs is None or torch.is_tensor(encoder_outputs) else encoder_outputs[0]
        outputs = _ops.t5_forward(
            self._model,
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            labels=labels,
            encoder_output=encoded,
        )
        return T5Output(*outputs)

    @torch.no_grad()
    def generate(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        max_new_tokens: int | None = None,
        max_length: int | None = None,
        num_beams: int = 1,
        length_penalty: float = 1.0,
        early_stopping: bool | str = False,
        num_return_sequences: int = 1,
        do_sample: bool = False,
        temperature: float = 1.0,
        top_k: int = 50,
        top_p: float = 1.0,
        streamer: Any = None,
    ) -> torch.Tensor:
        """Ids [batch * num_return_sequences, length]: the start token, what was written, pad behind </s>. Arguments and
        defaults are Hugging Face's. Draws follow torch.manual_seed. streamer: put(ids) is called at each step, end() at the
        end. Without an attention_mask every token counts, pad too, as in Hugging Face's encoder-decoders."""
        new_tokens = max_new_tokens
        if new_tokens is None:
            new_tokens = 20 if max_length is None else max_length - 1
        if num_beams > 1:
            if do_sample or streamer is not None:
                raise ValueError("generate: expected num_beams=1 with do_sample or a streamer")
            if early_stopping not in _EARLY_STOPPING:
                raise ValueError(f"generate: expected early_stopping False, True or 'never', got {early_stopping!r}")
            found: torch.Tensor = _ops.t5_beam_search(
                self._model,
                input_ids,
                attention_mask,
                max_new_tokens=new_tokens,
                beams=num_beams,
                length_penalty=float(length_penalty),
                early_stopping=_EARLY_STOPPING[early_stopping],
                sequences=num_return_sequences,
            )
            return found
        seed = int(torch.randint(2**62, ())) if do_sample else 0
        steps = _ops.t5_decode(
            self._model,
            input_ids,
            attention_mask,
            max_new_tokens=new_tokens,
            samples=do_sample,
            temperature=float(temperature),
            top_k=top_k or 0,
            top_p=float(top_p),
            seed=seed,
            sequences=num_return_sequences,
        )
        if streamer is not None:
            streamer.put(steps.sequences()[:, 0])
        while not steps.done():
            tokens = steps.step()
            if streamer is not None:
                streamer.put(tokens)
        if streamer is not None:
            streamer.end()
        written: torch.Tensor = steps.sequences()
        return written
