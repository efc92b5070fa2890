"""A Llama of two layers with random weights and a tokenizer of byte pairs without special tokens around a text, as a directory."""

import json
import pathlib
from typing import Any

import torch
from tokenizer_test import MODELS, made_up
from transformers import LlamaConfig, LlamaForCausalLM


def write(
    folder: pathlib.Path,
    end: str | None = "<|end|>",
    specials: tuple[str, ...] = (),
    template: str | None = None,
    spare_tokens: int = 0,
    **config: Any,
) -> pathlib.Path:
    """end: the token that ends a text, of the tokenizer's or of the specials. spare_tokens: beyond the tokenizer's."""
    tokenizer = made_up(6, "none", "bytes", "bytes", MODELS[0])
    tokenizer.post_processor = None
    tokenizer.add_special_tokens(list(specials))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps({key: value for key, value in settings.items() if value}))
    torch.manual_seed(1)
    sizes = {
        "vocab_size": tokenizer.get_vocab_size() + spare_tokens,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "initializer_range": 0.3,
        "bos_token_id": None,
        "eos_token_id": tokenizer.token_to_id(end) if end else None,
    }
    LlamaForCausalLM(LlamaConfig(**{**sizes, **config})).save_pretrained(folder)
    return folder
