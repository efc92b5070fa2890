"""plimsoll gauge on a directory of each family: transformers loads what it writes, with the same bits in FP32, and FP16 holds it."""

import copy

import decoder_models
import pytest
import torch
import transformers
from gauge_program import PROGRAM, gauge, write_ids
from program import interrupted

pytestmark = pytest.mark.skipif(not PROGRAM.is_file(), reason="bin/plimsoll is not built")

LARGE = 2.0**17  # twice FP16's range
# Weights whose outputs are added to the residual stream.
WRITE_STREAM = ("mlp.down_proj", "mlp.c_proj", "mlp.dense_4h_to_h")


def overflowing(name):
    """A model whose residual stream passes FP16's range in each block, and where it is gated one of the hidden values, too."""
    model = decoder_models.make(name)
    for path, parameter in model.named_parameters():
        with torch.no_grad():
            if "gemma" in name and "post_" in path:  # norms what is added; exact at every exponent that is a few bits
                parameter.copy_((parameter * 256).round() / 256)
                parameter[5] = LARGE
            elif "gemma" not in name and any(part in path for part in WRITE_STREAM):
                parameter *= LARGE
            if "mlp.up_proj" in path:
                parameter[3] *= LARGE
            if "mlp.down_proj.weight" in path:
                parameter[:, 3] /= LARGE
    return model


def directory(model, tmp_path):
    """The model's directory, and inputs to calibrate on."""
    torch.manual_seed(0)
    ids = torch.randint(3, decoder_models.VOCABULARY, (4, 40))
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model", ids, write_ids(tmp_path / "ids.jsonl", *({"input_ids": row.tolist()} for row in ids))


def loaded(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()


def logits(model, ids):
    with torch.inference_mode():
        return model(ids).logits.float()


def distance(found, expected):
    return ((found - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("name", sorted(decoder_models.CONFIGS))
def test_a_gauged_directory_keeps_the_bits_of_fp32_and_fits_fp16(name, tmp_path):
    model = overflowing(name)
    folder, ids, inputs = directory(model, tmp_path)
    certificate = gauge(folder, tmp_path / "gauged", "--calibrate", inputs)
    assert certificate["fp32"]["bit_identical"] and certificate["fp16"]["finite"] and certificate["below_headroom"] == []
    assert certificate["exponents"]["residual"] < 0
    # The hidden channel that `overflowing` has enlarged, in every layer where up and down can take it back.
    channels = {pair: found for pair, found in certificate["exponents"]["channels"].items() if pair.endswith(".up")}
    layers = len(model.model.layers) if any("mlp.up_proj" in path for path, _ in model.named_parameters()) else 0
    assert [found.keys() for found in channels.values()] == [{"3"}] * layers
    assert all(abs(found["3"] + 17) <= 1 for found in channels.values())
    gauged, expected = loaded(tmp_path / "gauged"), logits(model, ids)
    assert torch.equal(logits(gauged, ids), expected)
    assert not logits(copy.deepcopy(model).half(), ids).isfinite().all()
    # A product in FP16 rounds its weights, what it reads and what it writes: sqrt(3) of what the weights cost alone.
    rounded = distance(logits(copy.deepcopy(gauged).half().float(), ids), expected)
    assert max(certificate["fp16"]["logits_relative_l2"], distance(logits(gauged.half(), ids), expected)) < 2 * rounded


def test_an_interrupted_gauge_leaves_nothing(tmp_path):
    folder, _, inputs = directory(overflowing("llama"), tmp_path)
    words = ["gauge", "--model", folder, "--calibrate", inputs, "--out", tmp_path / "out"]
    output, error, code = interrupted(words, (tmp_path / "out.partial").exists)
    assert output == "" or output.startswith("measuring ")
    assert (error, code) == ("plimsoll: gauge: interrupted, nothing is written\n", 130)
    assert sorted(tmp_path.iterdir()) == [inputs, folder]


def test_a_directory_that_fits_stays_as_it_is(tmp_path):
    model = decoder_models.make("gemma3_text")
    folder, _, inputs = directory(model, tmp_path)
    certificate = gauge(folder, tmp_path / "gauged", "--calibrate", inputs, "--headroom-bits", 0)
    assert certificate["exponents"]["residual"] == 0 and certificate["fp32"]["bit_identical"]
    after = loaded(tmp_path / "gauged").state_dict()
    assert all(torch.equal(weight, after[name]) for name, weight in model.state_dict().items() if "norm" in name)


def test_norms_that_fp32_cannot_hold_at_the_exponent_are_named_with_their_error(tmp_path):
    model = overflowing("gemma3_text")
    norm = model.model.layers[1].post_feedforward_layernorm.weight
    with torch.no_grad():
        norm[:2] = torch.tensor([2.0**-20, -(2.0**-20)])
    folder, ids, inputs = directory(model, tmp_path)
    certificate = gauge(folder, tmp_path / "gauged", "--calibrate", inputs)
    assert not certificate["fp32"]["bit_identical"] and certificate["fp16"]["finite"]
    exponent = certificate["exponents"]["residual"]
    # 2^r (1 + w) - 1 is a multiple of 2^-24, half of that from the exact one, and 1 + w is nearly 1.
    (rounded,) = certificate["fp32"]["rounded_weights"].values()
    assert rounded["elements"] == 2 and 0 < rounded["relative_error"] <= 2.0 ** (-25 - exponent) * (1 + 2.0**-19)
    assert logits(loaded(tmp_path / "gauged"), ids).isfinite().all()


def test_a_model_of_zeros_is_finite_and_has_no_error(tmp_path):
    model = decoder_models.make("llama")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    folder, _, inputs = directory(model, tmp_path)
    certificate = gauge(folder, tmp_path / "gauged", "--calibrate", inputs)
    assert certificate["fp16"] == {"finite": True, "logits_relative_l2": 0.0}
    assert certificate["exponents"]["residual"] == 0 and certificate["exponents"]["channels"] == {}
