"""Models of one layer and seeded numbers, written as Hugging Face and PEFT write theirs, and examples to fine-tune one on."""

import json
import struct


def t5_tensors(vocabulary=160, width=16, inner=24, heads=2, size=8):
    """A T5 v1.1 of one layer, of seeded numbers."""
    import torch

    torch.manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {"shared.weight": (vocabulary, width), "lm_head.weight": (vocabulary, width)}
    for part, attentions in (("encoder", ("SelfAttention",)), ("decoder", ("SelfAttention", "EncDecAttention"))):
        block = f"{part}.block.0.layer"
        for layer, attention in enumerate(attentions):
            for name in "qkv":
                shapes[f"{block}.{layer}.{attention}.{name}.weight"] = (heads * size, width)
            shapes[f"{block}.{layer}.{attention}.o.weight"] = (width, heads * size)
            shapes[f"{block}.{layer}.layer_norm.weight"] = (width,)
        last = len(attentions)
        for name in ("wi_0", "wi_1"):
            shapes[f"{block}.{last}.DenseReluDense.{name}.weight"] = (inner, width)
        shapes[f"{block}.{last}.DenseReluDense.wo.weight"] = (width, inner)
        shapes[f"{block}.{last}.layer_norm.weight"] = (width,)
        shapes[f"{block}.0.SelfAttention.relative_attention_bias.weight"] = (8, heads)
        shapes[f"{part}.final_layer_norm.weight"] = (width,)
    config = {
        "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "vocab_size": vocabulary, "d_model": width, "d_kv": size,
        "d_ff": inner, "num_layers": 1, "num_decoder_layers": 1, "num_heads": heads, "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 16, "layer_norm_epsilon": 1e-6, "dropout_rate": 0.0, "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0, "is_encoder_decoder": True,
    }  # fmt: skip
    return config, {name: 0.1 * torch.randn(shape) for name, shape in shapes.items()}


def llama_tensors(vocabulary, width=16, inner=32, heads=2):
    """A Llama of one layer, of seeded numbers, in BF16."""
    import torch

    torch.manual_seed(0)
    layer = "model.layers.0"
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, width), "model.norm.weight": (width,)}
    shapes |= {f"{layer}.{name}_layernorm.weight": (width,) for name in ("input", "post_attention")}
    shapes |= {f"{layer}.self_attn.{name}_proj.weight": (width, width) for name in "qo"}
    shapes |= {f"{layer}.self_attn.{name}_proj.weight": (width // heads, width) for name in "kv"}
    shapes |= {f"{layer}.mlp.{name}_proj.weight": (inner, width) for name in ("gate", "up")}
    shapes |= {f"{layer}.mlp.down_proj.weight": (width, inner)}
    config = {
        "model_type": "llama", "vocab_size": vocabulary, "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": 1,
        "num_attention_heads": heads, "num_key_value_heads": 1, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "eos_token_id": 2,
        "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}, "tie_word_embeddings": True, "dtype": "bfloat16",
    }  # fmt: skip
    return config, {name: (0.1 * torch.randn(shape)).bfloat16() for name, shape in shapes.items()}


def byte_pairs():
    """A tokenizer.json with a token for each byte and a few merges."""
    letters = [chr(byte) for byte in range(33, 127)] + [chr(byte) for byte in (*range(161, 173), *range(174, 256))]
    letters += [chr(256 + number) for number in range(256 - len(letters))]
    merges = [["t", "h"], ["th", "e"], ["f", "o"]]
    words = letters + ["".join(pair) for pair in merges]
    end = {"id": len(words), "content": "<|im_end|>", "special": True}
    flags = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
    model = {"type": "BPE", "vocab": {word: number for number, word in enumerate(words)}, "merges": merges}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {"version": "1.0", "added_tokens": [end | flags], "normalizer": {"type": "NFC"}, "pre_tokenizer": level, "decoder": level,
            "post_processor": level, "model": model}  # fmt: skip


CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def write_llama(folder):
    from safetensors.torch import save_file

    tokenizer = byte_pairs()
    config, tensors = llama_tensors(len(tokenizer["model"]["vocab"]) + 1)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 3], "pad_token_id": 0}')
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "chat_template": CHATML}))
    save_file(tensors, folder / "model.safetensors")


def write_adapter(folder):
    """A LoRA adapter of that Llama, as PEFT writes it."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(1)
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj"], "bias": "none",
              "base_model_name_or_path": "llama", "use_rslora": True}  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {}
    for name, rows in (("q", 16), ("v", 8)):
        module = f"base_model.model.model.layers.0.self_attn.{name}_proj"
        shapes |= {f"{module}.lora_A.weight": (2, 16), f"{module}.lora_B.weight": (rows, 2)}
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file({name: 0.1 * torch.randn(shape) for name, shape in shapes.items()}, folder / "adapter_model.safetensors")


def write_chats(file):
    """An example of each kind that finetune reads, more than once."""
    messages = [{"role": "user", "content": "fox?"}, {"role": "assistant", "content": "fox"}]
    examples = [{"messages": messages}, {"prompt": "the", "completion": " fox"}, {"text": "the fox"}]
    file.write_text("".join(json.dumps(example) + "\n" for example in 4 * examples))


def letters():
    """A spiece.model with a piece for each letter, and one for each that begins a word."""

    def field(number, data):
        return bytes([number << 3 | 2, len(data)]) + data

    space = "\u2581"
    pieces = [("<pad>", 3), ("</s>", 3), ("<unk>", 2)]
    pieces += [(text, 1) for letter in "abcdefghijklmnopqrstuvwxyzABCD.:" for text in (letter, space + letter)] + [(space, 1)]
    return b"".join(
        field(1, field(1, text.encode()) + bytes([2 << 3 | 5]) + struct.pack("<f", -2) + bytes([3 << 3, kind]))
        for text, kind in pieces
    )
