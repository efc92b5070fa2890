"""Small decoder-only models of transformers with seeded weights, in directories, and the C++ model of the same files."""

import torch
import transformers

VOCABULARY = 777
CONTEXT = 160

# Odd sizes; three heads of queries for each of keys where the family can have it; heads * head_dim is not hidden_size
# where the family can have it.
_LLAMA = {
    "vocab_size": VOCABULARY,
    "hidden_size": 54,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "intermediate_size": 87,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 40,
}
_IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}

CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**_LLAMA),
    "llama_scaled": lambda: transformers.LlamaConfig(
        **_LLAMA, attention_bias=True, mlp_bias=True, rope_parameters=_LLAMA3, tie_word_embeddings=True
    ),
    "mistral": lambda: transformers.MistralConfig(**_LLAMA, sliding_window=16),
    "mistral_unbounded": lambda: transformers.MistralConfig(**_LLAMA, sliding_window=None),
    "qwen2": lambda: transformers.Qwen2Config(
        **_LLAMA, tie_word_embeddings=True, use_sliding_window=True, sliding_window=9, max_window_layers=1
    ),
    "qwen3": lambda: transformers.Qwen3Config(
        **_LLAMA, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
    ),
    "gemma3_text": lambda: transformers.Gemma3TextConfig(
        **_LLAMA, query_pre_attn_scalar=168, sliding_window=11, layer_types=["sliding_attention", "full_attention"]
    ),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=54, n_layer=2, n_head=6, n_positions=CONTEXT, n_inner=87, **_IDS
    ),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(
        vocab_size=VOCABULARY,
        hidden_size=68,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=87,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.36},
        **_IDS,
    ),
    "gpt_neox_in_turn": lambda: transformers.GPTNeoXConfig(
        vocab_size=VOCABULARY,
        hidden_size=68,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=87,
        max_position_embeddings=CONTEXT,
        use_parallel_residual=False,
        attention_bias=False,
        **_IDS,
    ),
}


def make(name: str, config: transformers.PreTrainedConfig | None = None) -> transformers.PreTrainedModel:
    """A model in eval mode whose logits depend on every weight: products keep the size of their input."""
    torch.manual_seed(sum(map(ord, name)))
    model = transformers.AutoModelForCausalLM.from_config(config or CONFIGS[name](), attn_implementation="eager")
    embedding = model.get_input_embeddings().weight
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter is embedding:
                parameter.normal_()
            elif parameter.dim() == 2:
                parameter.normal_(0, min(parameter.shape) ** -0.5)
            else:
                parameter.add_(torch.empty_like(parameter).uniform_(-0.5, 0.5))
    return model.eval()


def save(model: transformers.PreTrainedModel, directory) -> str:
    model.save_pretrained(directory)
    return str(directory)


def load(directory, dtype: str = "fp32"):
    return torch.classes.plimsoll.DecoderModel(str(directory), dtype)


def tokens(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (batch, length), generator=generator)
