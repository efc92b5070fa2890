"""The checkpoints that generate.py times: SmolLM2-135M's shape with random weights from a seed, and GGUF files of a Llama."""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

SHAPE: dict[str, Any] = {
    "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3, "max_position_embeddings": 8192, "tie_word_embeddings": True, "initializer_range": 576**-0.5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e5}, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2,
}  # fmt: skip
BYTE_LLAMA: dict[str, Any] = {
    "vocab_size": 259,  # bytes behind three special tokens
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # a small one of any number of layers


def write_random(directory, **shape):
    """bf16, as SmolLM2's checkpoint is, with a tokenizer of bytes."""
    import tokenizers
    import torch
    import transformers

    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**(SHAPE | shape)))
    model.to(torch.bfloat16).save_pretrained(directory)
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({piece: 3 + i for i, piece in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.save(str(Path(directory) / "tokenizer.json"))


def stored(directory):
    """The name of each tensor, with what reads it."""
    import safetensors

    for file in sorted(Path(directory).glob("*.safetensors")):
        with safetensors.safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                yield name, tensors.get_slice(name)


def vocabulary_of(directory):
    return json.loads((Path(directory) / "config.json").read_text())["vocab_size"]


def sizes_of(directory):
    """The parameters; the weights that writing a token reads, of all matrices but an embedding that is not the head, too; and
    those of the head."""
    shapes = {name: tensor.get_shape() for name, tensor in stored(directory)}
    tied = json.loads((Path(directory) / "config.json").read_text()).get("tie_word_embeddings", True)
    read = {name: math.prod(shape) for name, shape in shapes.items() if len(shape) == 2 and (tied or "embed" not in name)}
    head = sum(size for name, size in read.items() if "embed" in name or "head" in name)
    return sum(map(math.prod, shapes.values())), sum(read.values()), head


def pre_tokenizer_of(tokenizer):
    """llama.cpp's name of how a tokenizer.json cuts words; none: one that is not known here."""
    steps = tokenizer.get("pre_tokenizer") or {}
    steps = steps.get("pretokenizers", [steps])
    kinds = [step.get("type") for step in steps]
    if not steps or kinds[-1] != "ByteLevel" or not steps[-1].get("use_regex", True):
        return None
    if kinds == ["Digits", "ByteLevel"] and steps[0]["individual_digits"]:
        return "smollm"
    return "gpt-2" if kinds == ["ByteLevel"] else None


def add_tokenizer(writer, directory, config):
    """The model's own, or none, where it is no BPE of bytes that llama.cpp has a name for."""
    import gguf

    tokenizer = json.loads((Path(directory) / "tokenizer.json").read_text())
    pre = pre_tokenizer_of(tokenizer)
    if tokenizer["model"]["type"] != "BPE" or tokenizer.get("normalizer") or pre is None:
        writer.add_tokenizer_model("none")
        writer.add_vocab_size(config.vocab_size)
        return
    tokens = [f"<unused{place}>" for place in range(config.vocab_size)]
    types = [gguf.TokenType.UNUSED] * config.vocab_size
    for token, place in tokenizer["model"]["vocab"].items():
        tokens[place], types[place] = token, gguf.TokenType.NORMAL
    for added in tokenizer.get("added_tokens", []):
        tokens[added["id"]] = added["content"]
        types[added["id"]] = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
    merges = tokenizer["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_add_bos_token(False)
    for name in ("bos", "eos"):
        ids = getattr(config, f"{name}_token_id")
        if ids is not None:
            getattr(writer, f"add_{name}_token_id")(ids[0] if isinstance(ids, list) else ids)


def gguf_folder(directory, parent):
    """A folder below `parent` for the GGUF files of a model. Its name tells the model's files, as they are now, from all others."""
    model = Path(directory).resolve()
    patterns = ("*.safetensors", "config.json", "tokenizer.json")
    files = [(file, file.stat()) for pattern in patterns for file in sorted(model.glob(pattern))]
    facts = [(str(file), stat.st_size, stat.st_mtime_ns) for file, stat in files]
    return Path(parent) / f"{model.name}-{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]}"


def write_gguf(directory, file, quantization):
    """Matrices in `quantization`, q8_0 or f16, vectors in fp32, and the tokenizer."""
    import gguf
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(directory)
    rope = config.rope_parameters
    if config.model_type != "llama" or rope["rope_type"] != "default":
        raise SystemExit(f"generate: expected a llama without scaled positions for llama.cpp, got {config.model_type}, {rope}")
    kind = gguf.GGMLQuantizationType[quantization.upper()]
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{kind.name}"])
    add_tokenizer(writer, directory, config)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(rope["rope_theta"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in stored(directory):
        value = tensor[:].to(torch.float32)
        if (part := name.split(".")[-2]) in heads:  # GGUF rotates neighbours, Hugging Face the halves of a head
            value = value.unflatten(0, (heads[part], 2, -1)).transpose(1, 2).reshape(value.shape)
        to = kind if value.dim() == 2 else gguf.GGMLQuantizationType.F32
        data = gguf.quants.quantize(value.numpy(), to)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), data, raw_dtype=to)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
