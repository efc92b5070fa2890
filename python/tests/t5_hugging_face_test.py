"""plimsoll.t5 is Hugging Face's T5: logits, ids, loss and gradients."""

import copy
import json
import os
from typing import Any

import pytest
import torch
import transformers
from plimsoll.t5 import T5ForConditionalGeneration
from rounding import approx, gamma, rounds_alike
from t5_models import KINDS, SMALL, exact, inputs, make, relative, save

LENGTHS = [17, 9, 1, 30]


@pytest.fixture(scope="module", params=KINDS)
def pair(request, tmp_path_factory):
    """Hugging Face's model, and ours of the same directory."""
    theirs = make(request.param)
    return theirs, T5ForConditionalGeneration.from_pretrained(save(theirs, tmp_path_factory.mktemp("t5")), torch.float32)


def targets(model, rows, length, seed=13):
    return torch.randint(2, model.config.vocab_size, (rows, length), generator=torch.Generator().manual_seed(seed))


def test_logits_are_those_of_hugging_face(pair):
    theirs, ours = pair
    ids, mask = inputs(theirs, LENGTHS)
    decoder_ids = targets(theirs, len(LENGTHS), 25)
    decoder_mask = torch.ones_like(decoder_ids)
    decoder_mask[1, 20:] = 0
    with torch.no_grad():
        for masks in ({}, {"attention_mask": mask}, {"attention_mask": mask, "decoder_attention_mask": decoder_mask}):
            want = theirs(input_ids=ids, decoder_input_ids=decoder_ids, **masks)
            got = ours(input_ids=ids, decoder_input_ids=decoder_ids, **masks)
            wide = exact(theirs)(input_ids=ids, decoder_input_ids=decoder_ids, **masks)
            for name in ("logits", "encoder_last_hidden_state"):
                assert rounds_alike(got[name] if isinstance(got, dict) else getattr(got, name), want[name], wide[name]), name


def factor_of_logits(folder):
    """d_model^-0.5, or 1: the logits of a directory over those of the same hidden states without a factor."""
    ours = T5ForConditionalGeneration.from_pretrained(folder, torch.float32)
    state = ours.state_dict()
    head = state.get("lm_head.weight", state["shared.weight"])
    state["decoder.final_layer_norm.weight"].fill_(1)
    for name, tensor in state.items():
        if name.endswith((".o.weight", ".wo.weight")) and name.startswith("decoder."):
            tensor.zero_()  # what is left is the start token's embedding
    with torch.no_grad():
        logits = ours(input_ids=torch.tensor([[5, 1]]), decoder_input_ids=torch.tensor([[0]])).logits[0, 0]
    start = state["shared.weight"][0]
    plain = head @ (start / start.square().mean().add(1e-6).sqrt())
    return (logits @ plain / (plain @ plain)).item()


@pytest.mark.parametrize(
    ("kind", "changes", "scaled"),
    [
        ("mT5", {}, False),
        ("mT5, tied", {}, False),
        ("mT5, tied", {"scale_decoder_outputs": True}, False),
        ("mT5", {"tie_word_embeddings": False}, False),
        ("UMT5", {}, True),
        ("UMT5", {"tie_word_embeddings": None}, True),
        ("UMT5", {"scale_decoder_outputs": False}, True),
        ("UMT5, untied", {}, True),
        ("UMT5, untied", {"tie_word_embeddings": False}, False),
        ("v1.0", {}, True),
        ("v1.1", {}, False),
        ("v1.1", {"scale_decoder_outputs": None}, True),
        ("v1.1", {"scale_decoder_outputs": None, "tie_word_embeddings": False}, False),
    ],
)
def test_each_family_has_its_own_rule_for_the_factor_of_the_logits(kind, changes, scaled, tmp_path):
    config = json.loads((save(make(kind), tmp_path) / "config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    # Sums of d_model terms: two norms', the logits' and the reference's, and that over the vocabulary.
    terms = int(4 * SMALL["d_model"] + SMALL["vocab_size"])
    assert factor_of_logits(tmp_path) == approx(SMALL["d_model"] ** -0.5 if scaled else 1, terms)


def test_texts_longer_than_the_last_bucket(pair):
    theirs, ours = pair
    ids, _ = inputs(theirs, [150])
    decoder_ids = targets(theirs, 1, 160)
    with torch.no_grad():
        want = theirs(input_ids=ids, decoder_input_ids=decoder_ids).logits
        wide = exact(theirs)(input_ids=ids, decoder_input_ids=decoder_ids).logits
        assert rounds_alike(ours(input_ids=ids, decoder_input_ids=decoder_ids).logits, want, wide)


def test_a_mask_with_holes(pair):
    theirs, ours = pair
    ids, mask = inputs(theirs, [12, 12])
    mask[0, 3] = mask[1, :5] = 0
    decoder_ids = targets(theirs, 2, 4)
    with torch.no_grad():
        want = theirs(input_ids=ids, attention_mask=mask, decoder_input_ids=decoder_ids).logits
        got = ours(input_ids=ids, attention_mask=mask, decoder_input_ids=decoder_ids).logits
        wide = exact(theirs)(input_ids=ids, attention_mask=mask, decoder_input_ids=decoder_ids).logits
    assert rounds_alike(got, want, wide)


def test_loss_and_gradients(pair):
    theirs, ours = pair
    ids, mask = inputs(theirs, LENGTHS)
    labels = targets(theirs, len(LENGTHS), 11)
    labels[0, 5:] = labels[2, :3] = -100
    theirs.zero_grad()
    want = theirs(input_ids=ids, attention_mask=mask, labels=labels)
    want.loss.backward()
    ours.zero_grad()
    got = ours(input_ids=ids, attention_mask=mask, labels=labels)
    got.loss.backward()
    wide = exact(theirs)
    wide.zero_grad()
    exact_loss = wide(input_ids=ids, attention_mask=mask, labels=labels).loss
    exact_loss.backward()
    # One rounding of the loss beside its terms', whose errors cancel by chance.
    rounding = gamma(1) * exact_loss.abs()
    assert (got.loss - exact_loss).abs() <= 4 * (want.loss - exact_loss).abs() + rounding
    exact_gradients = {name: parameter.grad for name, parameter in wide.named_parameters()}
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    names = [name for name, _ in ours.named_parameters()]
    assert sorted(names) == sorted(gradients)
    for name, parameter in ours.named_parameters():
        assert rounds_alike(parameter.grad, gradients[name], exact_gradients[name]), name


def greedy(model, ids, mask, **options):
    return model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=64, **options)


def until_end(row):
    ids = row.tolist()
    return ids[: ids.index(1)] if 1 in ids else ids


def test_greedy_ids_of_64_tokens(pair):
    theirs, ours = pair
    ids, mask = inputs(theirs, LENGTHS)
    assert torch.equal(greedy(ours, ids, mask), greedy(theirs, ids, mask, do_sample=False))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"length_penalty": 0.4, "early_stopping": True},
        {"length_penalty": 2.0, "early_stopping": "never", "num_return_sequences": 3},
    ],
)
def test_beam_4_ids_of_64_tokens(pair, options):
    theirs, ours = pair
    ids, mask = inputs(theirs, LENGTHS)
    assert torch.equal(greedy(ours, ids, mask, num_beams=4, **options), greedy(theirs, ids, mask, num_beams=4, **options))


@pytest.mark.parametrize("options", [{}, {"early_stopping": True}, {"early_stopping": "never", "length_penalty": 1.5}])
def test_beams_that_end(tmp_path, options):
    ended = 0
    for seed in range(6):
        theirs = make("v1.1", seed=seed, ends=4.0)
        ours: Any = T5ForConditionalGeneration.from_pretrained(save(theirs, tmp_path / str(seed)))
        ids, mask = inputs(theirs, LENGTHS, seed)
        want = theirs.generate(input_ids=ids, attention_mask=mask, max_new_tokens=12, num_beams=3, **options)
        got = ours.generate(input_ids=ids, attention_mask=mask, max_new_tokens=12, num_beams=3, **options)
        assert torch.equal(got, want), seed
        greedily = theirs.generate(input_ids=ids, attention_mask=mask, max_new_tokens=12, do_sample=False)
        assert torch.equal(ours.generate(input_ids=ids, attention_mask=mask, max_new_tokens=12), greedily), seed
        ended += int((want[:, :-1] == 1).any())
    assert ended  # some text ends before the last place


@pytest.mark.parametrize("beams", [1, 4])
def test_a_padded_batch_writes_what_each_text_writes_alone(pair, beams):
    theirs, ours = pair
    ids, mask = inputs(theirs, LENGTHS)
    together = greedy(ours, ids, mask, num_beams=beams)
    for row, length in enumerate(LENGTHS):
        alone = greedy(ours, ids[row : row + 1, :length], None, num_beams=beams)[0]
        assert until_end(together[row]) == until_end(alone), row


def test_default_arguments_are_those_of_hugging_face(pair):
    theirs, ours = pair
    ids, _ = inputs(theirs, LENGTHS)
    assert torch.equal(ours.generate(ids), theirs.generate(ids, do_sample=False))


def test_draws_follow_the_seed_and_come_from_the_likeliest(pair):
    theirs, ours = pair
    ids, mask = inputs(theirs, [12])

    def draw(**options):
        torch.manual_seed(3)
        return ours.generate(ids, mask, max_new_tokens=8, do_sample=True, num_return_sequences=5, **options)

    assert torch.equal(draw(top_k=0), draw(top_k=0))
    assert len({tuple(row.tolist()) for row in draw(top_k=0, temperature=3.0)}) > 1
    likeliest = greedy(ours, ids, mask)[:, :9].expand(5, -1)
    assert torch.equal(draw(top_k=1), likeliest)
    assert torch.equal(draw(top_p=0.0), likeliest)


def test_a_streamer_gets_each_token(pair):
    theirs, ours = pair
    ids, mask = inputs(theirs, [12])

    class Streamer:
        def __init__(self):
            self.tokens, self.ended = [], False

        def put(self, tokens):
            self.tokens.append(tokens)

        def end(self):
            self.ended = True

    streamer = Streamer()
    whole = ours.generate(ids, mask, max_new_tokens=10, streamer=streamer)
    assert streamer.ended and torch.equal(torch.stack(streamer.tokens, 1), whole)


def test_training_lowers_the_loss_and_saves(tmp_path):
    theirs = make("v1.1")
    ours = T5ForConditionalGeneration.from_pretrained(save(theirs, tmp_path / "a"))
    ids, mask = inputs(theirs, LENGTHS)
    labels = targets(theirs, len(LENGTHS), 8)
    ours.train()
    optimizer = torch.optim.AdamW(ours.parameters(), lr=3e-3)
    losses = []
    for _ in range(25):
        optimizer.zero_grad()
        loss = ours(input_ids=ids, attention_mask=mask, labels=labels).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    ours.eval()
    ours.save_pretrained(tmp_path / "b")
    again = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "b").eval()
    with torch.no_grad():
        got, want, wide = (
            model(input_ids=ids, attention_mask=mask, labels=labels).logits for model in (ours, again, exact(again))
        )
        assert rounds_alike(got, want, wide)
    # The file that it was loaded from is as it was.
    fresh = T5ForConditionalGeneration.from_pretrained(tmp_path / "a")
    assert torch.equal(fresh.get_parameter("shared.weight"), theirs.shared.weight)


def test_shards_and_copies(tmp_path):
    theirs = make("v1.1")
    whole = T5ForConditionalGeneration.from_pretrained(save(theirs, tmp_path / "whole"))
    parts = T5ForConditionalGeneration.from_pretrained(save(theirs, tmp_path / "parts", max_shard_size="20KB"))
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 2
    state = whole.state_dict()
    for name, tensor in parts.state_dict().items():
        assert torch.equal(tensor, state[name]), name
    twin = copy.deepcopy(whole)
    with torch.no_grad():
        twin.get_parameter("shared.weight").zero_()
    assert torch.equal(whole.get_parameter("shared.weight"), theirs.shared.weight)
    ids, mask = inputs(theirs, LENGTHS)
    twin.load_state_dict(state)
    assert torch.equal(greedy(twin, ids, mask), greedy(whole, ids, mask))


def test_an_encoder_alone_loads(tmp_path):
    theirs = make("v1.1")
    encoder = transformers.T5EncoderModel(theirs.config).eval()
    encoder.load_state_dict(theirs.state_dict(), strict=False)
    ours = T5ForConditionalGeneration.from_pretrained(save(encoder, tmp_path))
    ids, mask = inputs(theirs, LENGTHS)
    with torch.no_grad():
        want, wide = (model(input_ids=ids, attention_mask=mask).last_hidden_state for model in (encoder, exact(encoder)))
        assert rounds_alike(ours.encode(ids, mask), want, wide)
    with pytest.raises(RuntimeError, match="expected a model with a decoder"):
        ours.generate(ids, mask)


def dequantized(model):
    """The same model with each product's weights as E4M3 codes with a scale a row hold them."""
    quantize, dequantize = torch.ops.plimsoll.quantize_blocks, torch.ops.plimsoll.dequantize
    other = copy.deepcopy(model)
    for module in other.modules():
        if isinstance(module, torch.nn.Linear):
            codes, scale, _ = quantize(module.weight.detach(), "e4m3", (1, 0))
            module.weight = torch.nn.Parameter(dequantize(codes, scale, "e4m3", (1, 0), torch.float32))
    return other


@pytest.mark.parametrize("kind", ["v1.0", "v1.1", "UMT5"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, "fp8"])
def test_narrow_weights_are_as_exact_as_hugging_faces(kind, dtype, tmp_path):
    exact = make(kind)
    ours = T5ForConditionalGeneration.from_pretrained(save(exact, tmp_path), dtype, t5_fixes=None)
    if dtype == "fp8":
        exact = dequantized(exact)
    narrow = copy.deepcopy(exact).to(torch.bfloat16 if dtype == "fp8" else dtype)
    ids, mask = inputs(exact, LENGTHS)
    decoder_ids = targets(exact, len(LENGTHS), 12)
    with torch.no_grad():
        arguments = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": decoder_ids}
        want = exact(**arguments).logits
        error, allowed = relative(ours(**arguments).logits, want), 2 * relative(narrow(**arguments).logits, want)
    assert error < allowed
    assert greedy(ours, ids, mask).shape[0] == len(LENGTHS)


@pytest.mark.skipif(not os.environ.get("PLIMSOLL_NIGHTLY"), reason="takes a minute: PLIMSOLL_NIGHTLY is not set")
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("proj", ["relu", "gated-gelu"])
def test_base_shape(proj, tied, tmp_path):
    base = {
        "vocab_size": 32128,
        "d_model": 768,
        "d_kv": 64,
        "d_ff": 2048,
        "num_layers": 12,
        "num_decoder_layers": 12,
        "num_heads": 12,
    }
    theirs = make("v1.0" if tied else "v1.1", **base, feed_forward_proj=proj)
    assert ("lm_head.weight" in dict(theirs.named_parameters())) is not tied
    ours = T5ForConditionalGeneration.from_pretrained(save(theirs, tmp_path))
    ids, mask = inputs(theirs, [40, 12])
    decoder_ids = targets(theirs, 2, 10)
    with torch.no_grad():
        want = theirs(input_ids=ids, attention_mask=mask, decoder_input_ids=decoder_ids).logits
        wide = exact(theirs)(input_ids=ids, attention_mask=mask, decoder_input_ids=decoder_ids).logits
        assert rounds_alike(ours(input_ids=ids, attention_mask=mask, decoder_input_ids=decoder_ids).logits, want, wide)
    assert torch.equal(greedy(ours, ids, mask), greedy(theirs, ids, mask, do_sample=False))
    assert torch.equal(greedy(ours, ids, mask, num_beams=4), greedy(theirs, ids, mask, num_beams=4))
