"""forward() as transformers' callers use it: embeddings, hidden states, past_key_values; and T5EncoderModel."""

import json

import pytest
import torch
import transformers
from plimsoll.t5 import BaseModelOutput, T5EncoderModel, T5ForConditionalGeneration
from rounding import gamma
from t5_models import KINDS, PATH, inputs, make, relative, save

LENGTHS = [17, 9, 30]
EXACT = gamma(PATH)


@pytest.fixture(scope="module", params=["v1.0", "v1.1", "UMT5"])
def case(request, tmp_path_factory):
    """(Hugging Face's model, ours of the same directory, ids, mask, ids of the decoder)."""
    theirs = make(request.param)
    ours = T5ForConditionalGeneration.from_pretrained(save(theirs, tmp_path_factory.mktemp("t5")), torch.float32)
    ids, mask = inputs(theirs, LENGTHS)
    decoder_ids = torch.randint(2, 130, (len(LENGTHS), 12), generator=torch.Generator().manual_seed(3))
    return theirs, ours, ids, mask, decoder_ids


def test_hidden_states_are_those_of_transformers(case):
    theirs, ours, ids, mask, decoder_ids = case
    arguments = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": decoder_ids, "output_hidden_states": True}
    with torch.no_grad():
        want, got = theirs(**arguments), ours(**arguments)
    visible = mask.bool()
    for mine, other in zip(got.encoder_hidden_states, want.encoder_hidden_states, strict=True):
        assert relative(mine[visible], other[visible]) < EXACT
    for mine, other in zip(got.decoder_hidden_states, want.decoder_hidden_states, strict=True):
        assert relative(mine, other) < EXACT
    assert torch.equal(got.encoder_hidden_states[-1], got.encoder_last_hidden_state)
    del arguments["output_hidden_states"]
    plain = ours(**arguments)
    assert plain.encoder_hidden_states is None and plain.decoder_hidden_states is None
    assert torch.equal(plain.logits, got.logits)


def test_outputs_are_named_and_numbered_as_in_transformers(case):
    theirs, ours, ids, mask, decoder_ids = case
    for more in ({}, {"labels": decoder_ids}, {"labels": decoder_ids, "output_hidden_states": True}):
        arguments = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": decoder_ids, "use_cache": False, **more}
        with torch.no_grad():
            want, got = theirs(**arguments), ours(**arguments)
            assert type(got).__name__ == type(want).__name__ and list(got) == list(want)
            assert got[0] is got[next(iter(want))] and len(got) == len(want)
            assert [type(value) for value in ours(**arguments, return_dict=False)] == [type(value) for value in want.to_tuple()]


def test_embeddings_stand_for_ids(case):
    theirs, ours, ids, mask, decoder_ids = case
    table = ours.get_parameter("shared.weight")
    arguments = {"attention_mask": mask, "inputs_embeds": table[ids], "decoder_inputs_embeds": table[decoder_ids]}
    by_ids = ours(input_ids=ids, attention_mask=mask, decoder_input_ids=decoder_ids)
    by_embeds = ours(**arguments)
    assert torch.equal(by_embeds.logits, by_ids.logits)
    labelled = ours(input_ids=ids, labels=decoder_ids, decoder_inputs_embeds=table[decoder_ids])
    assert labelled.loss.item() == ours(input_ids=ids, labels=decoder_ids, decoder_input_ids=decoder_ids).loss.item()
    for refused in (
        {"input_ids": ids, "inputs_embeds": table[ids], "labels": decoder_ids},
        {"inputs_embeds": table, "labels": decoder_ids},
    ):
        with pytest.raises(ValueError, match="input_ids"):
            ours(**refused)


def test_gradients_reach_the_embeddings(case):
    theirs, ours, ids, mask, decoder_ids = case
    table = theirs.shared.weight.detach()
    gradients = []
    for model in (theirs, ours):
        embeds, decoder_embeds = (table[some].clone().requires_grad_() for some in (ids, decoder_ids))
        loss = model(
            attention_mask=mask,
            inputs_embeds=embeds,
            decoder_inputs_embeds=decoder_embeds,
            labels=decoder_ids,
            output_hidden_states=True,
        ).loss
        gradients.append(torch.autograd.grad(loss, [embeds, decoder_embeds]))
    for want, got in zip(*gradients, strict=True):
        assert relative(got, want) < EXACT


def test_past_key_values_go_on_where_the_tokens_before_ended(case):
    theirs, ours, ids, mask, decoder_ids = case
    with torch.no_grad():
        whole = theirs(input_ids=ids, attention_mask=mask, decoder_input_ids=decoder_ids)
        first = ours(input_ids=ids, attention_mask=mask, decoder_input_ids=decoder_ids[:, :4], use_cache=True)
        past, logits = first.past_key_values, [first.logits]
        assert past.get_seq_length() == 4
        for begin, end in ((4, 5), (5, 6), (6, 10), (10, 12)):
            output = ours(
                decoder_input_ids=decoder_ids[:, begin:end],
                past_key_values=past,
                encoder_outputs=(first.encoder_last_hidden_state,),
                attention_mask=mask,
                output_hidden_states=begin == 6,
            )
            logits.append(output.logits)
            assert torch.equal(output.encoder_last_hidden_state, first.encoder_last_hidden_state)
            assert output.past_key_values is past and past.get_seq_length() == end
    assert relative(torch.cat(logits, 1), whole.logits) < EXACT


def test_a_loop_over_past_key_values_writes_what_generate_writes(case):
    theirs, ours, ids, mask, _ = case
    new_tokens = 70  # beyond the room that a cache starts with, twice
    want = ours.generate(ids, mask, max_new_tokens=new_tokens)
    with torch.no_grad():
        output = ours(input_ids=ids, attention_mask=mask, decoder_input_ids=want[:, :1], use_cache=True)
        rows = [want[:, 0]]
        for _ in range(want.shape[1] - 1):
            rows.append(output.logits[:, -1].argmax(-1))
            output = ours(decoder_input_ids=rows[-1][:, None], past_key_values=output.past_key_values)
    got = torch.stack(rows, 1)
    ended = (want == 1).cumsum(1) - (want == 1).long() > 0
    assert torch.equal(got.masked_fill(ended, 0), want)


def test_what_a_cache_cannot_do_is_refused(case):
    theirs, ours, ids, mask, decoder_ids = case
    arguments = {"input_ids": ids, "decoder_input_ids": decoder_ids, "use_cache": True}
    with pytest.raises(ValueError, match="no gradients"):
        ours(**arguments)
    with torch.no_grad():
        for more in ({"labels": decoder_ids}, {"decoder_attention_mask": torch.ones_like(decoder_ids)}):
            with pytest.raises(ValueError, match="no labels and no decoder_attention_mask"):
                ours(**arguments, **more)
        with pytest.raises(ValueError, match="past_key_values: expected .* got DynamicCache"):
            ours(decoder_input_ids=decoder_ids, past_key_values=transformers.DynamicCache())
        past = ours(**arguments).past_key_values
        with pytest.raises(ValueError, match="as many as past_key_values has"):
            ours(decoder_input_ids=decoder_ids[:1], past_key_values=past)


@pytest.mark.parametrize("form", ["a tensor", "a tuple", "transformers' output"])
def test_encoder_outputs_are_not_computed_again(case, form):
    theirs, ours, ids, mask, decoder_ids = case
    with torch.no_grad():
        encoded = theirs.encoder(input_ids=ids, attention_mask=mask, output_hidden_states=True)
        given = {"a tensor": encoded[0], "a tuple": (encoded[0],), "transformers' output": encoded}[form]
        want = theirs(encoder_outputs=encoded, attention_mask=mask, decoder_input_ids=decoder_ids)
        got = ours(encoder_outputs=given, attention_mask=mask, decoder_input_ids=decoder_ids)
    assert relative(got.logits, want.logits) < EXACT
    assert (got.encoder_hidden_states is not None) is (form == "transformers' output")


@pytest.mark.parametrize("kind", ["v1.1", "mT5", "UMT5"])
@pytest.mark.parametrize("full", [True, False], ids=["full", "encoder alone"])
def test_encoder_models_read_both_kinds_of_checkpoints(kind, full, tmp_path):
    model = make(kind)
    prefix = KINDS[kind][1].__name__.removesuffix("ForConditionalGeneration")
    theirs = getattr(transformers, f"{prefix}EncoderModel")(model.config).eval()
    theirs.load_state_dict(model.state_dict(), strict=False)
    ours = T5EncoderModel.from_pretrained(save(model if full else theirs, tmp_path / "source"), torch.float32)
    assert {name for name, _ in ours.named_parameters()} == {name for name, _ in theirs.named_parameters()}
    ids, mask = inputs(model, LENGTHS)
    with torch.no_grad():
        want = theirs(input_ids=ids, attention_mask=mask, output_hidden_states=True)
        got = ours(input_ids=ids, attention_mask=mask, output_hidden_states=True)
        assert isinstance(got, BaseModelOutput) and list(got) == list(want)
        visible = mask.bool()
        assert got.hidden_states is not None
        for mine, other in zip(got.hidden_states, want.hidden_states, strict=True):
            assert relative(mine[visible], other[visible]) < EXACT
        embeds = ours.get_parameter("shared.weight")[ids]
        assert torch.equal(ours(inputs_embeds=embeds, attention_mask=mask)[0], got.last_hidden_state)
        assert torch.equal(ours(ids, mask, return_dict=False)[0], got.last_hidden_state)
    ours.save_pretrained(tmp_path / "saved")
    again = getattr(transformers, f"{prefix}EncoderModel").from_pretrained(tmp_path / "saved").eval()
    with torch.no_grad():
        assert relative(again(input_ids=ids, attention_mask=mask)[0][visible], want.last_hidden_state[visible]) < EXACT
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["architectures"] == [f"{prefix}EncoderModel"]
    assert not hasattr(ours, "generate")


def test_an_encoder_model_trains(tmp_path):
    ours = T5EncoderModel.from_pretrained(save(make("v1.1"), tmp_path)).train()
    ids = torch.tensor([[5, 6, 1]])
    ours(input_ids=ids).last_hidden_state.square().mean().backward()
    assert all(parameter.grad is not None for parameter in ours.parameters())
