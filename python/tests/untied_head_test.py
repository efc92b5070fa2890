"""A head that a file stores beside the embedding is read where the two differ, whatever tie_word_embeddings says."""

import json
from pathlib import Path

import decoder_models
import pytest
import safetensors.torch
import torch
import transformers
from plimsoll.models import AutoModelForCausalLM
from program import PROGRAM, done

# The name that files have for the embedding, and what config.json says: None is no word, which means true.
TIED = {
    "qwen2": ("model.embed_tokens.weight", True),
    "gemma3_text": ("model.embed_tokens.weight", None),
    "gpt2": ("transformer.wte.weight", None),
}


def rewritten(directory, head_of):
    """The tensors of the directory, into which a head is written that head_of() makes of the embedding."""
    file = Path(directory) / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    name = next(name for name, _ in TIED.values() if name in tensors)
    tensors["lm_head.weight"] = head_of(tensors[name]).contiguous()
    safetensors.torch.save_file(tensors, file, metadata={"format": "pt"})
    return tensors


@pytest.fixture(params=list(TIED))
def directory(request, tmp_path):
    decoder_models.make(request.param).save_pretrained(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config.pop("tie_word_embeddings", None)
    tied = TIED[request.param][1]
    if tied is not None:
        config["tie_word_embeddings"] = tied
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    return tmp_path / "model"


def logits_of(model):
    with torch.no_grad():
        return model(decoder_models.tokens(2, 20)).logits


def test_logits_are_those_of_transformers_and_what_is_saved_has_the_head(directory, tmp_path):
    head = rewritten(directory, lambda embedding: embedding.flip(0) * 0.1)["lm_head.weight"]
    theirs = transformers.AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager").eval().double()
    expected, ours = logits_of(theirs), AutoModelForCausalLM.from_pretrained(directory)
    assert (logits_of(ours).double() - expected).norm() <= 1e-6 * expected.norm()
    ours.save_pretrained(tmp_path / "saved")
    saved = safetensors.torch.load_file(tmp_path / "saved" / "model.safetensors")
    assert torch.equal(saved["lm_head.weight"], head)
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["tie_word_embeddings"] is False
    assert torch.equal(logits_of(AutoModelForCausalLM.from_pretrained(tmp_path / "saved")), logits_of(ours))


@pytest.mark.skipif(not PROGRAM.is_file(), reason="bin/plimsoll is not built")
@pytest.mark.parametrize("directory", ["qwen2", "gemma3_text"], indirect=True)
def test_quantize_keeps_the_head_that_differs(directory, tmp_path):
    head = rewritten(directory, lambda embedding: embedding.flip(0) * 0.1)["lm_head.weight"]
    done("quantize", "--model", directory, "--out", tmp_path / "codes", "--format", "fp8")
    kept = safetensors.torch.load_file(tmp_path / "codes" / "model.safetensors")["lm_head.weight"]
    assert torch.equal(kept, head.to(kept.dtype))
    assert json.loads((tmp_path / "codes" / "config.json").read_text())["tie_word_embeddings"] is False


def test_a_copy_of_the_embedding_is_a_tied_head(directory, tmp_path):
    before = logits_of(AutoModelForCausalLM.from_pretrained(directory))
    rewritten(directory, torch.Tensor.clone)
    ours = AutoModelForCausalLM.from_pretrained(directory)
    assert torch.equal(logits_of(ours), before)
    ours.save_pretrained(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["tie_word_embeddings"] is True
