"""Decoder-only models over the C++ model, with transformers' names and arguments."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Sequence
from operator import index
from pathlib import Path
from typing import Any, Self

import torch

from plimsoll._owned_model import OwnedModel, draw_options, write_texts
from plimsoll._parameter_tree import register
from plimsoll.common.recipe import Recipe
from plimsoll.models.joined_parameter import JoinedParameter
from plimsoll.models.outputs import CausalLMOutputWithPast
from plimsoll.pytorch.autocast import autocast

_HEAD = "lm_head.weight"
_OLDER_HEAD = "embed_out.weight"  # what GPT-NeoX's files call it
_IGNORED = -100
_IDS = ("eos_token_id", "pad_token_id")


class CausalLM(OwnedModel):
    """A decoder-only model with the parameters of transformers' class; made by AutoModelForCausalLM.from_pretrained().

    Parameters that are one matrix in C++ (q_proj, k_proj and v_proj; gate_proj and up_proj) are views of it. GPT-NeoX's
    query_key_value has the values and the order of transformers' as [heads, 3, head_dim, hidden_size]; state dicts have
    them as [3 * heads * head_dim, hidden_size].
    """

    def __init__(self, model: Any, config: dict[str, Any], directory: str, recipe: Recipe | None) -> None:
        super().__init__(model, config)
        self.recipe = recipe
        self._directory = directory  # of the files that save_pretrained() copies
        file = Path(directory) / "generation_config.json"
        self._generation_file: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
        self._generation_defaults: dict[str, Any] = json.loads(model.generation_defaults(directory))
        self._ids_read = {name: config.get(name) for name in _IDS}  # others in self.config are the caller's
        self._shape = json.loads(model.config())
        self._joined: list[JoinedParameter] = []
        self._stored_sizes: dict[str, torch.Size] = {}
        parameters: dict[str, torch.Tensor] = {}
        owned = model.parameters()
        for name, tensor in owned.items():
            parameters.update(self._as_named(name, tensor))
        if self._shape["tie_word_embeddings"]:
            parameters[_HEAD] = owned["token_embedding.weight"]
        register(self, {**parameters, **model.adapters()})
        self.register_state_dict_post_hook(_as_files_have_them)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_as_parameters_have_them)  # type: ignore[no-untyped-call]
        self.eval()

    def _as_named(self, name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
        """The parameter of C++ under transformers' names: itself, or views of it."""
        stored = self._model.as_stored({name: tensor.detach()})
        in_order = sorted(stored.items(), key=lambda item: item[1].storage_offset())
        views = {_HEAD if key == _OLDER_HEAD else key: view for key, view in in_order}
        if len(views) == 1 and next(iter(views.values())).stride() == tensor.stride():
            ((key, view),) = views.items()
            if view.data_ptr() == tensor.data_ptr():
                return {key: tensor}
            # Another order of rows, which only a tensor of more dimensions shows without a copy.
            self._stored_sizes[key] = view.size()
            heads = self._shape["num_attention_heads"]
            views = {key: tensor.detach().unflatten(0, (3, heads, -1)).transpose(0, 1)}
        self._joined.append(JoinedParameter(tensor, views))
        return views

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        *,
        return_dict: bool | None = None,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """input_ids int64 [batch, seq]; attention_mask is nonzero where there is a token. The tokens of a row have the
        positions 0, 1, ... wherever its padding stands. labels [batch, seq]: input_ids, of which each is predicted from those
        before it; -100 and padding are ignored.

        use_cache=True, under torch.no_grad() alone, returns past_key_values. Given them, input_ids follow the tokens that were
        read before, and they change in place; attention_mask may begin with the places of those, as transformers' does."""
        past = past_key_values
        if past is None and use_cache:
            past = self._model.start()
        for parameter in self._joined:
            parameter.follow_requires_grad()
        with self._scope():
            if past is None:
                logits = self._model.forward(input_ids, attention_mask)
            else:
                if torch.is_grad_enabled():
                    raise ValueError("forward: expected torch.no_grad() around a call with past_key_values or use_cache")
                new = None if attention_mask is None else attention_mask[:, -input_ids.shape[1] :]
                logits = self._model.extend(input_ids, new, past)
            loss = None if labels is None else torch.ops.plimsoll.cross_entropy(logits, _targets(labels, attention_mask))
        output = CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past)
        return output.to_tuple() if return_dict is False else output

    @torch.no_grad()
    def generate(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        max_new_tokens: int | None = None,
        do_sample: bool | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        no_repeat_ngram_size: int | None = None,
        eos_token_id: int | Sequence[int] | None = None,
        pad_token_id: int | None = None,
        streamer: Any = None,
    ) -> torch.Tensor:
        """Ids [batch, length]: input_ids, what was written, pad behind the end. What is not given is as
        generation_config.json or config.json says, of eos_token_id and pad_token_id as `self.config` has been told since, else
        Hugging Face's default. Draws follow torch.manual_seed. streamer: put(ids) is called with input_ids and at each step, end()
        at the end. Logits that are Inf or NaN are an error."""
        given = {
            "max_new_tokens": max_new_tokens,
            "do_sample": do_sample,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "repetition_penalty": repetition_penalty,
            "no_repeat_ngram_size": no_repeat_ngram_size,
            "eos_token_id": eos_token_id,
            "pad_token_id": pad_token_id,
        }
        told = {name: getattr(self.config, name, None) for name in _IDS}
        told = {name: value for name, value in told.items() if value is not None and value != self._ids_read[name]}
        options = self._generation_defaults | told | {name: value for name, value in given.items() if value is not None}
        ends, pad = options["eos_token_id"], options["pad_token_id"]
        end_ids = [index(end) for end in (ends if isinstance(ends, Sequence) else [ends])]
        if pad is None:
            pad = next((end for end in end_ids if 0 <= end < self._shape["vocab_size"]), 0)
        with self._scope():
            steps = torch.ops.plimsoll.decoder_decode(
                self._model,
                input_ids,
                attention_mask,
                **draw_options(options),
                min_p=float(options["min_p"]),
                eos_token_ids=end_ids,
                pad_token_id=index(pad),
            )
            return write_texts(steps, input_ids, streamer)

    @property
    def generation_config(self) -> Any:
        """transformers' object of generation_config.json, which its pipelines read."""
        from transformers import GenerationConfig

        return GenerationConfig.from_dict(self._generation_file)

    def can_generate(self) -> bool:
        return True

    def save_pretrained(self, directory: str | os.PathLike[str]) -> None:
        """config.json, model.safetensors and the tokenizer's files, which from_pretrained() reads, and transformers'."""
        self._model.save(str(directory), self._directory)

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: dict[str, Any] | None = None) -> None:
        """Backward computes each block again from its input. transformers' argument has no effect."""
        self._model.checkpoint_activations(True)

    def gradient_checkpointing_disable(self) -> None:
        self._model.checkpoint_activations(False)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return next(self.parameters()).dtype

    def _scope(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self.recipe is None else autocast(recipe=self.recipe)

    def _copy(self) -> Self:
        made = type(self)(self._model.clone(), dict(vars(self.config)), self._directory, self.recipe)
        made._ids_read = self._ids_read
        return made

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for parameter in self._joined:
            parameter.convert(fn)
        return self


def _targets(labels: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
    """For each place the label of the next, or -100."""
    targets = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=_IGNORED)
    if attention_mask is None:
        return targets
    both = (attention_mask[:, 1:] != 0) & (attention_mask[:, :-1] != 0)
    return targets.masked_fill(~torch.nn.functional.pad(both, (0, 1)), _IGNORED)


def _as_files_have_them(module: Any, state: dict[str, Any], prefix: str, _: Any) -> None:
    for name, size in module._stored_sizes.items():
        if (key := prefix + name) in state:
            state[key] = state[key].reshape(size)


def _as_parameters_have_them(module: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for name, size in module._stored_sizes.items():
        if (stored := state.get(prefix + name)) is not None and stored.size() == size:
            state[prefix + name] = stored.reshape(module.get_parameter(name).size())
