"""generate() with transformers' rules: repetition_penalty, no_repeat_ngram_size, min_new_tokens, bad_words_ids; and what it
returns with return_dict_in_generate and output_scores."""

from typing import Any

import pytest
import torch
from plimsoll.t5 import T5ForConditionalGeneration
from rounding import approx, gamma
from t5_models import PATH, inputs, make, save

LENGTHS = [17, 9, 1, 30]
NEW_TOKENS = 24
ROUNDINGS = gamma(PATH)
RULES: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.7},
    "reward": {"repetition_penalty": 0.6},
    "n-grams of 1": {"no_repeat_ngram_size": 1},
    "n-grams of 2": {"no_repeat_ngram_size": 2},
    "n-grams of 3": {"no_repeat_ngram_size": 3},
    "least": {"min_new_tokens": 9},
    "least of all": {"min_new_tokens": NEW_TOKENS},
    "together": {"repetition_penalty": 1.2, "no_repeat_ngram_size": 2, "min_new_tokens": 5},
}
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beams": {"num_beams": 4},
    "several": {"num_beams": 4, "num_return_sequences": 3, "length_penalty": 2.0},
}


@pytest.fixture(scope="module", params=["v1.1", "silu, tied"])
def pair(request, tmp_path_factory):
    """Hugging Face's model, some of whose texts end, and ours of the same directory."""
    untied = request.param == "v1.1"
    theirs = make(request.param, seed=2, ends=4.0 if untied else 0.0)
    return theirs, T5ForConditionalGeneration.from_pretrained(save(theirs, tmp_path_factory.mktemp("t5")), torch.float32)


def write(model, theirs, **options):
    ids, mask = inputs(theirs, LENGTHS)
    if model is theirs:
        options = {"do_sample": False, **options}
    return model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=NEW_TOKENS, **options)


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("rule", RULES)
def test_each_rule_writes_transformers_ids(pair, rule, search):
    theirs, ours = pair
    options = {**RULES[rule], **SEARCHES[search]}
    assert torch.equal(write(ours, theirs, **options), write(theirs, theirs, **options))


def words_of(rows):
    """Tokens that were written at some places, as words of one, two and three tokens; the end alone, which is none."""
    tokens = [row[1:].tolist() for row in rows]
    return [[tokens[0][0]], tokens[1][2:4], tokens[3][1:4], [1], [5, 6, 7]]


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("more", [{}, RULES["together"]], ids=["alone", "together"])
def test_bad_words_are_not_written(pair, search, more):
    theirs, ours = pair
    options = {**more, **SEARCHES[search]}
    before = write(theirs, theirs, **options)
    words = words_of(before)
    after = write(ours, theirs, bad_words_ids=words, **options)
    assert torch.equal(after, write(theirs, theirs, bad_words_ids=words, **options))
    assert before.shape != after.shape or not torch.equal(before, after)


def test_each_rule_changes_what_is_written(pair):
    """The tests above would pass if neither library had the rule."""
    theirs, _ = pair
    plain = write(theirs, theirs)
    changed = [rule for rule in RULES if not torch.equal(write(theirs, theirs, **RULES[rule]), plain)]
    assert set(RULES) - set(changed) <= {"least", "least of all"}, changed
    if (plain[:, 1:5] == 1).any():
        assert "least" in changed


def close(ours, theirs):
    """Scores of one step: -Inf in the same places; elsewhere within rounding."""
    assert torch.equal(ours.isneginf(), theirs.isneginf())
    kept = theirs.isfinite()
    scale = theirs[kept].abs().max()
    return ((ours[kept] - theirs[kept]).abs().max() / scale).item() < ROUNDINGS


@pytest.mark.parametrize("rule", [{}, RULES["together"], {"bad_words_ids": [[7], [8, 9]]}], ids=["plain", "together", "words"])
def test_greedy_scores_are_those_of_transformers(pair, rule):
    theirs, ours = pair
    want, got = (write(model, theirs, return_dict_in_generate=True, output_scores=True, **rule) for model in (theirs, ours))
    assert torch.equal(got.sequences, want.sequences)
    assert len(got.scores) == len(want.scores)
    assert all(close(mine, other) for mine, other in zip(got.scores, want.scores, strict=True))
    for step, scores in enumerate(got.scores):
        running = ~(got.sequences[:, 1 : step + 1] == 1).any(1)
        assert torch.equal(scores.argmax(-1)[running], got.sequences[running, step + 1])


@pytest.mark.parametrize("options", [{}, {**RULES["together"], "num_return_sequences": 4, "early_stopping": True}])
def test_beam_outputs_are_those_of_transformers(pair, options):
    theirs, ours = pair
    want, got = (
        write(model, theirs, num_beams=4, return_dict_in_generate=True, output_scores=True, **options) for model in (theirs, ours)
    )
    assert torch.equal(got.sequences, want.sequences)
    assert torch.equal(got.beam_indices, want.beam_indices)
    assert got.beam_indices.dtype == want.beam_indices.dtype
    torch.testing.assert_close(got.sequences_scores, want.sequences_scores, rtol=ROUNDINGS, atol=0)
    assert len(got.scores) == len(want.scores)
    assert all(close(mine, other) for mine, other in zip(got.scores, want.scores, strict=True))
    # The score of a text is the sum of what its tokens were chosen by, over its length.
    rows = len(LENGTHS) * options.get("num_return_sequences", 1)
    for row in range(rows):
        origins = got.beam_indices[row][got.beam_indices[row] >= 0].tolist()
        chosen = [got.scores[step][beam, got.sequences[row, step + 1]] for step, beam in enumerate(origins)]
        assert (sum(chosen) / len(chosen)).item() == approx(got.sequences_scores[row].item(), NEW_TOKENS + 1)


def test_outputs_have_transformers_members(pair):
    theirs, ours = pair
    for options in ({}, {"num_beams": 2}):
        for scores in (False, True):
            want, got = (
                write(model, theirs, return_dict_in_generate=True, output_scores=scores, **options) for model in (theirs, ours)
            )
            assert type(got).__name__ == type(want).__name__
            assert set(got) == set(want) - {"past_key_values"}
            assert all(name in type(want).__annotations__ for name in type(got).__annotations__)
            assert got.scores is None or got["scores"] is got.scores
            assert got[0] is got.sequences and got.to_tuple()[0] is got.sequences
            with pytest.raises(AttributeError):
                got.sequence  # noqa: B018
    assert torch.is_tensor(write(ours, theirs, output_scores=True))  # as transformers: without a dict there are no scores


def test_draws_obey_the_rules_and_scores_say_what_could_be_drawn(pair):
    theirs, ours = pair
    torch.manual_seed(3)
    options = {"no_repeat_ngram_size": 1, "bad_words_ids": [[7], [8]], "min_new_tokens": 6, "top_k": 5, "temperature": 0.7}
    got = write(ours, theirs, do_sample=True, return_dict_in_generate=True, output_scores=True, **options)
    for row in got.sequences.tolist():
        text = row[1 : row.index(1) if 1 in row else None]
        assert len(text) == len(set(text)) >= 6 and not {0, 7, 8} & set(text)
    for step, scores in enumerate(got.scores):
        assert scores.isfinite().sum(1).tolist() == [5] * len(LENGTHS)
        running = ~(got.sequences[:, 1 : step + 1] == 1).any(1)
        drawn = scores.gather(1, got.sequences[:, step + 1 : step + 2])[:, 0]
        assert drawn[running].isfinite().all()


@pytest.mark.parametrize("options", [{}, {"top_k": 5}, {"top_p": 0.6}, {"temperature": 0.7, "top_k": 20, "top_p": 0.8}])
def test_scores_of_the_first_draw_are_those_of_transformers(pair, options):
    theirs, ours = pair
    options = {**RULES["together"], **options, "do_sample": True, "return_dict_in_generate": True, "output_scores": True}
    want, got = (write(model, theirs, **options) for model in (theirs, ours))
    assert close(got.scores[0], want.scores[0])


@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 0.0},
        {"repetition_penalty": -1.0},
        {"repetition_penalty": float("nan")},
        {"no_repeat_ngram_size": -1},
        {"min_new_tokens": -1},
        {"bad_words_ids": [[]]},
        {"bad_words_ids": [[-1]]},
        {"bad_words_ids": [[3], [130]]},
    ],
)
def test_mistakes_are_named(pair, options):
    theirs, ours = pair
    for search in ({}, {"num_beams": 2}):
        with pytest.raises(ValueError, match=f"generate: expected .*{next(iter(options))}"):
            write(ours, theirs, **options, **search)


@pytest.mark.parametrize("options", [{"no_repeat_ngram_size": 1.5}, {"bad_words_ids": [["a"]]}, {"max_new_tokens": 2.5}])
def test_numbers_that_are_no_integers_are_refused(pair, options):
    theirs, ours = pair
    with pytest.raises(TypeError):
        ours.generate(torch.tensor([[5, 1]]), **options)


@pytest.mark.parametrize("search", [{}, {"num_beams": 3}, {"do_sample": True}])
def test_logits_that_are_not_finite_are_an_error(tmp_path, search):
    ours = T5ForConditionalGeneration.from_pretrained(save(make("v1.1"), tmp_path))
    ids = torch.tensor([[5, 6, 1], [7, 8, 1]])
    ours.generate(ids, **search)
    with torch.no_grad():
        ours.get_parameter("shared.weight")[8] = torch.nan
    ours.generate(ids[:1], max_new_tokens=1, **search)
    with pytest.raises(RuntimeError, match="expected finite logits, got Inf or NaN for input 1"):
        ours.generate(ids, **search)
