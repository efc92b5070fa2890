"""Decoder-only models against transformers: logits, caches, padding, texts, gradients, files."""

import itertools
import json

import decoder_models
import pytest
import safetensors.torch
import torch
import transformers
from torch.nn import functional

# Relative L2 of FP32 logits to those of FP64, as docs/decoders.md promises.
LOGITS = 1e-6


@pytest.fixture(scope="module", params=list(decoder_models.CONFIGS))
def pair(request, tmp_path_factory):
    """(transformers' model in FP32, our model of its files, the directory)"""
    theirs = decoder_models.make(request.param)
    directory = decoder_models.save(theirs, tmp_path_factory.mktemp("model"))
    return theirs, decoder_models.load(directory), directory


def exact(theirs):
    copy = type(theirs)(theirs.config).eval()
    copy.load_state_dict(theirs.state_dict())
    return copy.double()


def relative(ours, expected):
    return ((ours.double() - expected).norm() / expected.norm()).item()


def test_logits_are_those_of_double(pair):
    theirs, ours, _ = pair
    ids = decoder_models.tokens(3, 57)
    with torch.no_grad():
        expected = exact(theirs)(input_ids=ids).logits
        got = ours.forward(ids, None)
    assert got.dtype == torch.float32
    assert relative(got, expected) <= LOGITS


def test_a_cache_gives_the_bits_of_the_whole_text(pair):
    _, ours, _ = pair
    ids = decoder_models.tokens(2, 41)
    past = ours.start()
    ends = [17, 23, *range(24, 42)]
    pieces = [ours.extend(ids[:, begin:end], None, past) for begin, end in itertools.pairwise([0, *ends])]
    assert past.length() == 41
    with torch.no_grad():
        assert torch.equal(torch.cat(pieces, 1), ours.forward(ids, None))


MASKS = {
    "left": [[0] * 9 + [1] * 14, [1] * 23, [0] * 22 + [1]],
    "right": [[1] * 14 + [0] * 9, [1] * 23, [1] + [0] * 22],
    "both": [[0, 0] + [1] * 12 + [0] * 9, [1] * 23, [0] * 5 + [1] * 17 + [0]],
}


@pytest.mark.parametrize("side", MASKS)
def test_padding_changes_no_bit_of_a_row(pair, side):
    theirs, ours, _ = pair
    ids, mask = decoder_models.tokens(3, 23), torch.tensor(MASKS[side])
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        got = ours.forward(ids, mask)
        theirs_too = theirs(input_ids=ids, attention_mask=mask, position_ids=positions).logits
        for row in range(3):
            kept = mask[row].bool()
            alone = ids[row : row + 1, kept]
            assert torch.equal(got[row, kept], ours.forward(alone, None)[0])
            assert relative(got[row, kept], exact(theirs)(input_ids=alone).logits[0]) <= LOGITS
    assert torch.equal(got[mask.bool()].argmax(-1), theirs_too[mask.bool()].argmax(-1))


def test_greedy_texts_are_equal_for_64_tokens(pair):
    theirs, ours, _ = pair
    ids = decoder_models.tokens(1, 9, seed=5)
    expected = theirs.generate(ids, max_new_tokens=64, min_new_tokens=64, do_sample=False, eos_token_id=None)
    past, text = ours.start(), ids
    logits = ours.extend(ids, None, past)
    for _ in range(64):
        token = logits[:, -1:].argmax(-1)
        text = torch.cat([text, token], 1)
        logits = ours.extend(token, None, past)
    assert torch.equal(text, expected)


def gradients(model, ids, targets):
    model.zero_grad()
    functional.cross_entropy(model(input_ids=ids).logits.flatten(0, 1), targets.flatten()).backward()
    return {name: parameter.grad.double() for name, parameter in model.named_parameters()}


def file_names(theirs, tensors):
    """As the files name them."""
    return {
        "embed_out.weight" if theirs.config.model_type == "gpt_neox" and name == "lm_head.weight" else name: tensor
        for name, tensor in tensors.items()
    }


@pytest.mark.parametrize("checkpointed", [False, True])
def test_gradients_of_the_loss_are_as_near_to_double_as_those_of_transformers(pair, checkpointed):
    theirs, ours, _ = pair
    ids, targets = decoder_models.tokens(2, 31), decoder_models.tokens(2, 31, seed=1)
    targets[:, :3] = -100
    exactly = file_names(theirs, gradients(exact(theirs), ids, targets))
    roughly = file_names(theirs, gradients(theirs, ids, targets))
    ours = ours.clone()
    ours.checkpoint_activations(checkpointed)
    parameters = ours.parameters()
    loss = ours.loss(ids, targets, None)
    loss.backward()
    with torch.no_grad():
        expected = functional.cross_entropy(exact(theirs)(input_ids=ids).logits.flatten(0, 1), targets.flatten())
    # Logits as above are off by LOGITS of their norm, hardly more than ten times that in any one of them.
    assert abs(loss.item() - expected.item()) <= 10 * LOGITS * abs(expected.item())
    got = ours.as_stored({name: parameter.grad for name, parameter in parameters.items()})
    assert got.keys() == exactly.keys()
    for name, gradient in got.items():
        reference = exactly[name]
        error = (gradient.double() - reference).norm()
        # Sums over other trees: up to four times the error of the same precision, or a rounding of each element.
        bound = 4 * (roughly[name] - reference).norm() + 2**-23 * reference.norm()
        assert error <= bound, (name, error / reference.norm(), bound / reference.norm())


def test_what_is_saved_is_loaded_by_transformers(pair, tmp_path):
    theirs, ours, directory = pair
    ours.save(str(tmp_path), directory)
    again, report = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    assert type(again) is type(theirs)
    state = theirs.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in again.state_dict().items())
    before, after = (json.loads((type(tmp_path)(path) / "config.json").read_text()) for path in (directory, tmp_path))
    assert before == after
    assert ours.config() == decoder_models.load(tmp_path).config()
    written = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert written.keys() == safetensors.torch.load_file(type(tmp_path)(directory) / "model.safetensors").keys()


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_narrow_weights_are_the_files_rounded_once(pair, dtype, tmp_path):
    theirs, _, directory = pair
    torch_dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    ours = decoder_models.load(directory, dtype)
    ours.save(str(tmp_path), directory)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto")
    assert again.dtype == torch_dtype
    state = theirs.state_dict()
    assert all(torch.equal(tensor, state[name].to(torch_dtype)) for name, tensor in again.state_dict().items())
    assert decoder_models.load(tmp_path, "stored").parameters()["token_embedding.weight"].dtype == torch_dtype
    ids = decoder_models.tokens(2, 33)
    with torch.no_grad():
        expected = exact(again.float())(input_ids=ids).logits
        got = ours.forward(ids, None)
        # transformers in the same dtype rounds at least as often.
        rounded = again.to(torch_dtype)(input_ids=ids).logits
    assert relative(got, expected) <= 4 * relative(rounded, expected)


def dequantized(weight):
    """Values of E4M3 codes with a scale a row."""
    scale = weight.abs().amax(1, keepdim=True) / 448
    return (weight / scale).to(torch.float8_e4m3fn).float() * scale


def with_codes(theirs):
    """The model whose blocks have the matrices of codes, and all else rounded to bf16."""
    config = type(theirs.config).from_dict({**theirs.config.to_dict(), "tie_word_embeddings": False})
    model = type(theirs)(config).eval()
    model.config._attn_implementation = "eager"
    state = theirs.state_dict()
    if "lm_head.weight" not in state:
        state["lm_head.weight"] = theirs.get_input_embeddings().weight.detach()
    for name, tensor in state.items():
        if tensor.dim() == 1 or not (".layers." in name or ".h." in name):
            state[name] = tensor.bfloat16().float()
        elif "c_" in name:  # GPT-2's [in, out]
            state[name] = dequantized(tensor.t()).t().contiguous()
        else:
            state[name] = dequantized(tensor)
    model.load_state_dict(state)
    return model


def test_codes_multiply_as_their_values(pair, tmp_path):
    theirs, _, directory = pair
    ours = decoder_models.load(directory, "fp8")
    values = with_codes(theirs)
    ids = decoder_models.tokens(2, 33)
    with torch.no_grad():
        expected = exact(values)(input_ids=ids).logits
        rounded = values.bfloat16()(input_ids=ids).logits
        got = ours.forward(ids, None)
        assert torch.equal(ours.clone().forward(ids, None), got)
    assert relative(got, expected) <= 4 * relative(rounded, expected)
    with pytest.raises(RuntimeError, match="expected weights, got FP8 codes"):
        ours.save(str(tmp_path), directory)
