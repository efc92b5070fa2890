"""Hugging Face's T5s with seeded random weights, small enough for tests, as directories that both libraries load."""

import copy
from typing import Any

import torch
import transformers

SMALL = {
    "vocab_size": 130,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 6,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
    "dropout_rate": 0.1,
}
KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "v1.0": (transformers.T5Config, transformers.T5ForConditionalGeneration, {"feed_forward_proj": "relu"}),
    "v1.1": (
        transformers.T5Config,
        transformers.T5ForConditionalGeneration,
        {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "silu, tied": (transformers.T5Config, transformers.T5ForConditionalGeneration, {"feed_forward_proj": "gated-silu"}),
    "few buckets": (
        transformers.T5Config,
        transformers.T5ForConditionalGeneration,
        {"relative_attention_num_buckets": 12, "relative_attention_max_distance": 20},
    ),
    "mT5": (
        transformers.MT5Config,
        transformers.MT5ForConditionalGeneration,
        {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "mT5, tied": (transformers.MT5Config, transformers.MT5ForConditionalGeneration, {"feed_forward_proj": "gated-gelu"}),
    "UMT5": (transformers.UMT5Config, transformers.UMT5ForConditionalGeneration, {"feed_forward_proj": "gated-gelu"}),
    "UMT5, untied": (
        transformers.UMT5Config,
        transformers.UMT5ForConditionalGeneration,
        {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
}


def make(kind, seed=7, ends=0.0, **changes):
    """In eval mode. ends: a factor of the logit of </s>, so that some texts end."""
    config_class, model_class, options = KINDS[kind]
    torch.manual_seed(seed)
    untied = options.get("tie_word_embeddings") is False
    model = model_class(config_class(**{**SMALL, **options, **changes})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "layer_norm" in name:
                parameter.uniform_(0.5, 1.5)
            if "relative_attention_bias" in name:
                parameter.normal_(0, 1)
        if untied:
            untie(model)
        if ends:
            model.lm_head.weight[1] *= ends  # larger logits, either way
    return model


def untie(model):
    """A head of its own, which Hugging Face's configs refuse since version 5: the flag stays set, as in what it saves of
    a checkpoint that has a head."""
    head = torch.nn.Linear(model.config.d_model, model.config.vocab_size, bias=False)
    head.weight.copy_(torch.randn_like(head.weight))
    model.lm_head = head


def save(model, path, **options):
    model.save_pretrained(path, **options)
    return path


def train_tokenizer(folder, texts, pieces, **options):
    """A unigram model as T5's, with pad 0, </s> 1 and <unk> 2, at folder / "spiece.model"."""
    import sentencepiece  # which models without a tokenizer do without

    (folder / "text").write_text("\n".join(texts))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text"),
        model_prefix=str(folder / "spiece"),
        vocab_size=pieces,
        model_type="unigram",
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )


def inputs(model, lengths, seed=11):
    """input_ids and attention_mask of random texts of these lengths, padded on the right."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, model.config.vocab_size, (len(lengths), max(lengths)), generator=generator)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    ids = ids.masked_fill(~mask, 0)
    for row, length in enumerate(lengths):
        ids[row, length - 1] = 1
    return ids, mask.long()


# A result in FP32 is a path of sums in another order: of 48 terms at most, in the five layers of three parts that SMALL has.
PATH = 48 * 5 * 3


def relative(ours, theirs):
    return ((ours.double() - theirs.double()).norm() / theirs.double().norm()).item()


def exact(model):
    """The model in double, but for its norms' variances and its softmax, which Hugging Face computes in FP32."""
    return copy.deepcopy(model).double()
