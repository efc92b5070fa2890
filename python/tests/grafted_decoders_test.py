"""Formats that outliers break by themselves in decoders of each family, where BF16 bears them and the plain model bears all."""

import json
import random

import decoder_models
import decoder_parts
import grafted_decoders
import pytest
import tiny_llama
import tokenizer_texts
from line_models import config_of, soft, spread, spreads_of, write
from program import PROGRAM, plimsoll

pytestmark = pytest.mark.skipif(not PROGRAM.is_file(), reason="bin/plimsoll is not built")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return tiny_llama.write(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def measure(tokenizer, tmp_path_factory):
    """Figures of plimsoll parity, by dtype, of a model."""
    root = tmp_path_factory.mktemp("grafted")
    text = root / "text.txt"
    text.write_text(tokenizer_texts.python_source())

    def figures(model, *dtypes):
        folder = write(soft(model), tokenizer, root / "model")
        words = ("--context", 48, "--tokens", 192, "--dtypes", ",".join(dtypes), "--json", root / "json")
        result = plimsoll("parity", "--model", folder, "--data", text, *words)
        found = json.loads((root / "json").read_text())["dtypes"]
        assert (result.returncode == 0) == all(entry["finite"] for entry in found.values()), result.stderr
        return found

    return figures


@pytest.fixture(scope="module")
def make(tokenizer):
    """A model of the family with outliers in these parts."""

    def model(family, parts=()):
        return grafted_decoders.make(family, decoder_models.tokens(8, 48), config_of(family, tokenizer), parts)

    return model


def spread_in_all_blocks(model, part):
    for block in range(len(decoder_parts.blocks(model))):
        spread(model, block, part, random.Random(1))
    return model


@pytest.mark.parametrize("family", grafted_decoders.MODELS)
def test_fp16_overflows_with_outliers_in_any_part(family, make, measure):
    assert measure(make(family), "fp16")["fp16"]["finite"]
    for part in grafted_decoders.MODELS[family]:
        found = measure(make(family, (part,)), "fp16", "bf16")
        assert not found["fp16"]["finite"] and found["bf16"]["finite"], part


@pytest.mark.parametrize("family", grafted_decoders.MODELS)
def test_codes_lose_what_stands_beside_large_columns(family, make, measure):
    plain = measure(make(family), "bf16", "fp8", "nvfp4", "mxfp4")
    # Gemma's norms store w of 1 + w, which BF16 rounds to -1 where 1 + w is small.
    parts = [
        part for part in spreads_of(make(family)) if part != "keys" and (family != "gemma3_text" or part in ("values", "hidden"))
    ]
    for part in parts:
        found = measure(spread_in_all_blocks(make(family), part), "bf16", "fp8", "nvfp4", "mxfp4")
        assert found["bf16"]["logits_kl"] == plain["bf16"]["logits_kl"], part
        for dtype, least in (("fp8", 2), ("nvfp4", 1.25), ("mxfp4", 2)):
            assert found[dtype]["logits_kl"] > least * plain[dtype]["logits_kl"], (part, dtype)
        if part == "values":  # most of what the product has
            assert found["fp8"]["logits_kl"] > 5 * plain["fp8"]["logits_kl"]
            assert found["nvfp4"]["logits_kl"] > 3 * plain["nvfp4"]["logits_kl"]


@pytest.mark.parametrize("family", [family for family in grafted_decoders.MODELS if family not in ("qwen3", "gemma3_text")])
def test_large_rows_cost_nothing_but_where_a_tensor_has_one_scale(family, make, measure):
    plain = measure(make(family), "fp8", "nvfp4", "mxfp4")
    found = measure(spread_in_all_blocks(make(family), "keys"), "fp8", "nvfp4", "mxfp4")
    assert all(found[dtype]["logits_kl"] == plain[dtype]["logits_kl"] for dtype in ("fp8", "mxfp4"))
    # The scales of NVFP4's blocks are E4M3 numbers times one of the tensor: keys of the other heads, and queries, lie below them.
    assert found["nvfp4"]["logits_kl"] > 1.2 * plain["nvfp4"]["logits_kl"]
