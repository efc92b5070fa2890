"""plimsoll.models.AutoModelForCausalLM against transformers' models of the same files."""

import copy

import decoder_models
import pytest
import torch
import transformers
from plimsoll.common.recipe import Float8CurrentScaling
from plimsoll.models import AutoModelForCausalLM
from plimsoll.pytorch import fp8_autocast

# Relative L2 of FP32 logits to those of FP64, as docs/decoders.md promises.
LOGITS = 1e-6


@pytest.fixture(scope="module", params=list(decoder_models.CONFIGS))
def case(request, tmp_path_factory):
    """(transformers' model in FP32, its directory)"""
    theirs = decoder_models.make(request.param)
    return theirs, decoder_models.save(theirs, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module", params=["qwen2", "gpt2", "gpt_neox"])
def joined(request, tmp_path_factory):
    """One model of each kind of joined parameters: rows, transposed, heads in turn."""
    theirs = decoder_models.make(request.param)
    return theirs, decoder_models.save(theirs, tmp_path_factory.mktemp("model"))


def load(directory, **options):
    return AutoModelForCausalLM.from_pretrained(directory, **{"dtype": torch.float32, **options})


def relative(ours, expected):
    return ((ours.double() - expected.double()).norm() / expected.double().norm()).item()


def exact(theirs):
    again = type(theirs)(theirs.config).eval()
    again.load_state_dict(theirs.state_dict())
    return again.double()


def labels_of(ids):
    labels = ids.clone()
    labels[0, 3:7] = -100
    return labels


def test_parameters_and_state_dict_have_the_names_of_transformers(case):
    theirs, directory = case
    ours = load(directory)
    assert type(ours).__name__ == type(theirs).__name__
    assert {name for name, _ in ours.named_parameters()} == {name for name, _ in theirs.named_parameters()}
    expected, state = theirs.state_dict(), ours.state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in state.items())
    for name, parameter in theirs.named_parameters():
        assert isinstance(ours.get_parameter(name), torch.nn.Parameter)
        assert torch.equal(ours.get_parameter(name).reshape(parameter.shape), parameter)


def test_loss_and_logits_are_those_of_double(case):
    theirs, directory = case
    ids = decoder_models.tokens(2, 31)
    with torch.no_grad():
        expected = exact(theirs)(input_ids=ids, labels=labels_of(ids))
        output = load(directory)(input_ids=ids, labels=labels_of(ids))
    assert relative(output.logits, expected.logits) <= LOGITS
    # The loss moves by no more than the largest difference of a logit, twice: those of the target and of the others.
    bound = 2 * (output.logits - expected.logits).abs().max() + 2**-22 * expected.loss
    assert abs(output.loss - expected.loss) <= bound
    assert torch.equal(output[0], output.loss) and output.keys() == {"loss", "logits"}
    without = load(directory)(ids, return_dict=False)
    assert len(without) == 1 and torch.equal(without[0], output.logits)


def test_labels_of_padding_are_ignored(joined):
    _, directory = joined
    ours, ids = load(directory), decoder_models.tokens(2, 12)
    mask = torch.ones_like(ids)
    mask[0, :5], mask[1, 9:] = 0, 0
    marked = ids.masked_fill(mask == 0, -100)
    marked[0, 5] = -100  # nothing stands before it
    with torch.no_grad():
        assert torch.equal(ours(ids, mask, labels=ids).loss, ours(ids, mask, labels=marked).loss)


def gradients(model, ids):
    model.zero_grad()
    model(input_ids=ids, labels=labels_of(ids)).loss.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("checkpointed", [False, True])
def test_gradients_are_as_near_to_double_as_those_of_transformers(case, checkpointed):
    theirs, directory = case
    ids = decoder_models.tokens(2, 31)
    exactly, roughly, ours = gradients(exact(theirs), ids), gradients(theirs, ids), load(directory)
    if checkpointed:
        ours.gradient_checkpointing_enable()
    for name, gradient in gradients(ours, ids).items():
        reference = exactly[name]
        error = (gradient.double().reshape(reference.shape) - reference).norm()
        # Sums over other trees: up to four times the error of the same precision, or a rounding of each element.
        bound = 4 * (roughly[name].double() - reference).norm() + 2**-23 * reference.norm()
        assert error <= bound, (name, error / reference.norm(), bound / reference.norm())


def test_gradients_add_up_until_they_are_cleared(joined):
    _, directory = joined
    ours, ids = load(directory), decoder_models.tokens(1, 9)
    once = {name: gradient.clone() for name, gradient in gradients(ours, ids).items()}
    ours(input_ids=ids, labels=labels_of(ids)).loss.backward()
    assert all(torch.equal(parameter.grad, 2 * once[name]) for name, parameter in ours.named_parameters())
    again = gradients(ours, ids)
    assert all(torch.equal(gradient, once[name]) for name, gradient in again.items())


def test_frozen_parameters_get_no_gradient(joined):
    _, directory = joined
    ours, ids = load(directory), decoder_models.tokens(1, 9)
    every = gradients(ours, ids)
    frozen = {name for name in every if any(word in name for word in ("q_proj", "up_proj", "c_fc", "query_key_value"))}
    assert frozen
    for name in frozen:
        ours.get_parameter(name).requires_grad_(False)
    for name, gradient in gradients(ours, ids).items():
        assert (gradient is None) == (name in frozen)
        assert gradient is None or torch.equal(gradient, every[name])


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_optimizers_of_torch_lower_the_loss_and_the_cpp_model_sees_it(joined, optimizer):
    theirs, directory = joined
    ours, ids = load(directory), decoder_models.tokens(2, 20)
    steps = optimizer(ours.parameters(), lr=1e-3)
    losses = []
    for _ in range(5):
        steps.zero_grad()
        loss = ours(ids, labels=ids).loss
        loss.backward()
        losses.append(loss.item())
        steps.step()
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0]
    # transformers computes the same from the state dict, so every part was written where the model reads it.
    again = type(theirs)(theirs.config).eval()
    again.load_state_dict(ours.state_dict())
    with torch.no_grad():
        assert relative(ours(ids).logits, exact(again)(input_ids=ids).logits) <= LOGITS


def test_a_state_dict_of_transformers_is_loaded(joined):
    theirs, directory = joined
    ours, ids = load(directory), decoder_models.tokens(2, 20)
    other = decoder_models.make("other", theirs.config)
    assert ours.load_state_dict(other.state_dict()) == ([], [])
    with torch.no_grad():
        assert relative(ours(ids).logits, exact(other)(input_ids=ids).logits) <= LOGITS
    holder = torch.nn.ModuleDict({"model": ours})
    holder.load_state_dict({f"model.{name}": tensor for name, tensor in theirs.state_dict().items()})
    assert all(torch.equal(tensor, theirs.state_dict()[name[6:]]) for name, tensor in holder.state_dict().items())
    with pytest.raises(ValueError, match="expected assign=False"):
        ours.load_state_dict(other.state_dict(), assign=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_other_dtypes_are_the_same_by_to_and_by_loading(joined, dtype):
    _, directory = joined
    loaded, moved, ids = load(directory, dtype=dtype), load(directory).to(dtype), decoder_models.tokens(2, 20)
    assert loaded.dtype == moved.dtype == dtype
    assert all(torch.equal(tensor, moved.state_dict()[name]) for name, tensor in loaded.state_dict().items())
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, moved(ids).logits)
    for name, gradient in gradients(moved, ids).items():
        assert gradient.dtype == dtype, name
    before = moved(ids).logits
    with torch.no_grad():
        for parameter in moved.parameters():
            parameter.mul_(0.5)
    assert not torch.equal(before, moved(ids).logits)
    assert load(directory).half().dtype == torch.float16


def test_a_copy_is_a_model_of_its_own(joined):
    _, directory = joined
    ours, ids = load(directory), decoder_models.tokens(1, 9)
    again = copy.deepcopy(ours)
    before = ours(ids).logits
    assert torch.equal(again(ids).logits, before)
    with torch.no_grad():
        for parameter in again.parameters():
            parameter.zero_()
    assert torch.equal(ours(ids).logits, before) and not torch.equal(again(ids).logits, before)
    assert gradients(again, ids).keys() == gradients(ours, ids).keys()


def test_a_cache_gives_the_logits_of_the_whole_text(case):
    theirs, directory = case
    ours, ids = load(directory), decoder_models.tokens(2, 20)
    with torch.no_grad():
        first = ours(ids[:, :12], use_cache=True)
        rest = ours(ids[:, 12:], torch.ones_like(ids), past_key_values=first.past_key_values)
        expected = exact(theirs)(input_ids=ids).logits
    assert rest.past_key_values is first.past_key_values
    assert relative(torch.cat([first.logits, rest.logits], 1), expected) <= LOGITS
    with pytest.raises(ValueError, match="expected torch.no_grad"):
        ours(ids, use_cache=True)


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_row_of_a_cache_has_the_bits_that_it_has_alone(case, side):
    ours, ids, lengths = load(case[1]), decoder_models.tokens(3, 17), (11, 6, 9)
    mask = torch.stack([torch.arange(12) < length for length in lengths])
    padded = mask.flip(1) if side == "left" else mask
    texts = list(zip(ids, lengths, strict=True))
    prompt = torch.zeros(3, 12, dtype=torch.int64).masked_scatter(padded, torch.cat([row[:n] for row, n in texts]))
    more = torch.stack([row[n : n + 5] for row, n in texts])
    with torch.no_grad():
        first = ours(prompt, padded, use_cache=True)
        rest = [ours(part, past_key_values=first.past_key_values).logits for part in more.split([3, 1, 1], 1)]
        for row, length in enumerate(lengths):
            alone = ours(ids[row : row + 1, : length + 5]).logits
            together = torch.cat([first.logits[row][padded[row]], *(part[row] for part in rest)])
            assert torch.equal(together, alone[0])


PADDED = torch.tensor([[1] * 13, [0] * 4 + [1] * 9, [1] * 13, [0] * 12 + [1]])
RULES = [{}, {"repetition_penalty": 1.7}, {"no_repeat_ngram_size": 2, "repetition_penalty": 0.6}]


@pytest.mark.parametrize("rules", RULES, ids=["greedy", "penalty", "n-grams"])
def test_texts_of_a_padded_batch_are_those_of_transformers(case, rules):
    theirs, directory = case
    ids = decoder_models.tokens(4, 13).masked_fill(PADDED == 0, 0)
    options = {"max_new_tokens": 24, "do_sample": False, **rules}
    whole = theirs.generate(ids, attention_mask=PADDED, **options)
    assert torch.equal(load(directory).generate(ids, PADDED, **options), whole)
    ends = whole[:2, 20].tolist()  # where two texts now end early
    for end in (ends, ends[0]):
        expected = theirs.generate(ids, attention_mask=PADDED, eos_token_id=end, **options)
        assert torch.equal(load(directory).generate(ids, PADDED, eos_token_id=end, **options), expected)


class Stream:
    def __init__(self):
        self.pieces, self.ended = [], False

    def put(self, ids):
        self.pieces.append(ids.clone())

    def end(self):
        self.ended = True


def test_a_streamer_sees_the_prompt_and_each_token(joined):
    _, directory = joined
    ids, stream = decoder_models.tokens(1, 7), Stream()
    written = load(directory).generate(ids, max_new_tokens=9, streamer=stream)
    assert stream.ended and torch.equal(stream.pieces[0], ids)
    assert torch.equal(torch.cat([ids[0], *stream.pieces[1:]]), written[0])


def test_draws_follow_the_seed_and_the_options(joined):
    _, directory = joined
    ours, ids = load(directory), decoder_models.tokens(2, 7)

    def draw(seed, **options):
        torch.manual_seed(seed)
        return ours.generate(ids, max_new_tokens=12, do_sample=True, **options)

    assert torch.equal(draw(1), draw(1)) and not torch.equal(draw(1), draw(2))
    greedy = ours.generate(ids, max_new_tokens=12)
    assert torch.equal(draw(1, top_k=1), greedy)
    assert torch.equal(draw(1, top_p=1e-9), greedy)
    assert not torch.equal(draw(1, temperature=5.0), greedy)


def test_mistakes_are_named(joined):
    _, directory = joined
    ours, ids = load(directory), decoder_models.tokens(1, 7)
    with pytest.raises(
        ValueError, match="expected dtype float32, bfloat16 or float16, got 'fp8', .* plimsoll generate --dtype fp8"
    ):
        load(directory, dtype="fp8")
    with pytest.raises(TypeError, match="expected recipe a plimsoll.common.recipe.Recipe, got 'fp8'"):
        load(directory, recipe="fp8")
    with pytest.raises(ValueError, match="expected at most 160 tokens, as many as the model can see, got 7"):
        ours.generate(ids, max_new_tokens=155)
    with pytest.raises(ValueError, match="expected a token in each row, got none in row 0"):
        ours.generate(ids, torch.zeros_like(ids))
    with pytest.raises(ValueError, match="expected temperature >= 0"):
        ours.generate(ids, do_sample=True, temperature=-1.0)


def test_what_is_saved_is_loaded_by_transformers(case, tmp_path):
    theirs, directory = case
    ours = load(directory)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.mul_(0.5)
    ours.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert all(torch.equal(tensor, 0.5 * theirs.state_dict()[name]) for name, tensor in again.state_dict().items())
    assert all(torch.equal(tensor, ours.state_dict()[name]) for name, tensor in load(tmp_path).state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_recipe_is_in_force_as_in_a_scope(joined, dtype):
    _, directory = joined
    ids, recipe = decoder_models.tokens(2, 20), Float8CurrentScaling()
    ours, plain = load(directory, dtype=dtype, recipe=recipe), load(directory, dtype=dtype)
    with fp8_autocast(fp8_recipe=recipe):
        expected = plain(ids, labels=ids)
    got = ours(ids, labels=ids)
    assert torch.equal(got.logits, expected.logits) and not torch.equal(got.logits, plain(ids).logits)
    got.loss.backward()
    expected.loss.backward()
    assert all(torch.equal(parameter.grad, plain.get_parameter(name).grad) for name, parameter in ours.named_parameters())
    assert torch.equal(copy.deepcopy(ours)(ids).logits, expected.logits)


@pytest.fixture(scope="module")
def tokenizer():
    texts = ["The ship lies deep in the water.", "A line on its side says how deep.", "Deep water, deep ship."]
    tokenizers = pytest.importorskip("tokenizers")
    bpe = tokenizers.ByteLevelBPETokenizer()
    bpe.train_from_iterator(texts, vocab_size=400, special_tokens=["<pad>", "<s>", "</s>"])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=bpe._tokenizer, pad_token="<pad>", eos_token="</s>")


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_pipeline_writes_what_it_writes_with_the_model_of_transformers(joined, tokenizer, batch_size):
    theirs, directory = joined
    prompts = ["The ship", "A line on its side", "Deep"]
    written = [
        transformers.pipeline("text-generation", model=model, tokenizer=tokenizer, device="cpu")(
            prompts, batch_size=batch_size, max_new_tokens=12, do_sample=False
        )
        for model in (load(directory), theirs)
    ]
    assert written[0] == written[1] and len(written[0]) == 3
