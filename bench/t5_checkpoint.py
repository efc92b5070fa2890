"""The checkpoint that t5.py times: flan-t5-base's shape with random weights from a seed, for Hugging Face and for CTranslate2."""

import json
from pathlib import Path
from typing import Any

SHAPE: dict[str, Any] = {
    "vocab_size": 32128, "d_model": 768, "d_kv": 64, "d_ff": 2048, "num_layers": 12, "num_decoder_layers": 12, "num_heads": 12,
    "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0,
}  # fmt: skip
# Read at each step of decoding: self-attention, queries and outputs of the other, the feed-forward blocks; the head.
WEIGHTS_OF_A_STEP = 12 * (4 * 768 * 768 + 2 * 768 * 768 + 3 * 768 * 2048) + 32128 * 768


def write_hugging_face(directory):
    """Returns the number of parameters. fp32, as Google's checkpoints are."""
    import torch
    import transformers

    torch.manual_seed(1)
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**SHAPE))
    with torch.no_grad():
        head = torch.nn.Linear(SHAPE["d_model"], SHAPE["vocab_size"], bias=False)
        head.weight.normal_()
        head.weight[SHAPE["eos_token_id"]] = 0  # never the likeliest, so that no text ends
        model.lm_head = head
    model.config.tie_word_embeddings = False
    model.save_pretrained(directory)
    return sum(parameter.numel() for parameter in model.parameters())


def write_ctranslate2(source, directory):
    """From write_hugging_face()'s directory, which gets a tokenizer of made-up words: the converter asks for one."""
    import ctranslate2.converters
    import tokenizers
    import transformers

    words = {"<pad>": 0, "</s>": 1, "<unk>": 2} | {f"w{i}": i for i in range(3, SHAPE["vocab_size"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", eos_token="</s>"
    ).save_pretrained(source)
    ctranslate2.converters.TransformersConverter(str(source)).convert(str(directory), force=True)


def write_inputs(path, texts):
    """For the commands: a line of ids for each text."""
    Path(path).write_text("".join(json.dumps({"input_ids": text}) + "\n" for text in texts))
