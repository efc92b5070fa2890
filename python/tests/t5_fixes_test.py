"""T5 in FP16: each switch of t5_fixes is what keeps some model right, and the outliers of trained models are survived."""

import pytest
import torch
from plimsoll.t5 import T5ForConditionalGeneration
from t5_models import inputs, make, relative, save
from t5_outliers import graft

SEED = {"downproject_scale": 8, "residual_fp32": True, "mask_scale": 0.75, "gelu_guard": 39, "no_dynamic_clamp": True}
ENCODER = {"d_model": 512, "d_kv": 64, "d_ff": 1024, "num_layers": 8, "num_decoder_layers": 1, "num_heads": 6}
AMAXES = [5.6e4, 1.2e5, 3.7e5, 7.5e5, 1.9e6]  # the second: FLAN-T5-XL's
# An encoder in FP16 that loses nothing is 1.6e-2 off at most (measured: the table of docs/t5.md). What loses something is off by
# several times that, or NaN. A gradient passes the layers twice, and sums over the tokens.
RIGHT = 2e-2
RIGHT_GRADIENT = 2.5 * RIGHT


def without(*switches):
    return {name: value for name, value in SEED.items() if name not in switches}


@pytest.fixture(scope="module")
def grafted(tmp_path_factory):
    """amax: (ids, the encoder's output, our model in FP16) for a model that reaches it."""
    result = {}
    for amax in AMAXES:
        theirs = make("v1.1", **ENCODER)
        ids, _ = inputs(theirs, [64])
        assert graft(theirs, ids, amax).reaches(amax)
        path = save(theirs, tmp_path_factory.mktemp("t5"))
        ours = T5ForConditionalGeneration.from_pretrained(path)
        with torch.no_grad():
            want = theirs.double().encoder(input_ids=ids).last_hidden_state
            assert relative(ours.encode(ids), want) < ENCODER["d_ff"] * 2.0**-24  # one chain of so many additions
        result[amax] = ids, want, T5ForConditionalGeneration.from_pretrained(path, torch.float16)
    return result


def error(case, fixes):
    ids, want, model = case
    model.t5_fixes = fixes
    with torch.no_grad():
        return relative(model.encode(ids), want)


def test_the_table_of_outliers(grafted):
    """Columns of docs/t5.md: plain FP16, with the clamp, the seed's switches. NaN compares false."""
    plain = {amax: error(case, {"no_dynamic_clamp": True}) for amax, case in grafted.items()}
    seed = {amax: error(case, SEED) for amax, case in grafted.items()}
    clamped = {amax: error(case, {}) for amax, case in grafted.items()}
    assert [amax for amax in AMAXES if plain[amax] < 1] == [5.6e4]
    assert [amax for amax in AMAXES if seed[amax] < RIGHT] == [5.6e4, 1.2e5, 3.7e5]  # a fixed 8 reaches 524,000
    assert clamped[5.6e4] == plain[5.6e4] and all(clamped[amax] > RIGHT_GRADIENT for amax in AMAXES[2:])


def test_the_default_is_the_seed(grafted):
    ids, want, model = grafted[1.2e5]
    model.t5_fixes = "seed"
    by_name = model.encode(ids)
    model.t5_fixes = SEED
    assert torch.equal(by_name, model.encode(ids)) and relative(by_name, want) < RIGHT


def test_downproject_scale(grafted):
    case = grafted[3.7e5]
    assert not error(case, without("downproject_scale")) < 1
    assert error(case, SEED) < RIGHT
    assert error(grafted[7.5e5], {**SEED, "downproject_scale": 16}) < RIGHT


def test_residual_fp32(grafted):
    case = grafted[3.7e5]
    assert not error(case, without("residual_fp32")) < 1
    assert error(case, SEED) < RIGHT


@pytest.fixture
def small(tmp_path):
    """A function from a change of Hugging Face's model to (it in FP32, ours in FP16)."""

    def build(change):
        theirs = make("v1.1")
        with torch.no_grad():
            change(theirs)
        path = save(theirs, tmp_path)
        return theirs, T5ForConditionalGeneration.from_pretrained(path, torch.float16)

    return build


def test_mask_scale(small):
    """A text without a token, and biases that take its masked scores below -65504: all are -Inf, and softmax is NaN."""

    def change(model):
        model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight.fill_(-40)

    theirs, ours = small(change)
    ids, mask = inputs(theirs, [9, 9])
    mask[1] = 0
    with torch.no_grad():
        want = theirs.encoder(input_ids=ids, attention_mask=mask).last_hidden_state[0]
        ours.t5_fixes = without("mask_scale")
        assert ours.encode(ids, mask)[1].isnan().any()
        ours.t5_fixes = SEED
        got = ours.encode(ids, mask)
    assert got.isfinite().all() and relative(got[0], want) < RIGHT


def test_gelu_guard(small):
    """Beyond |x| = 148 the gradient of x^3 is Inf in FP16, and that of tanh is 0."""

    def change(model):
        for stack in (model.encoder, model.decoder):
            for block in stack.block:
                dense = block.layer[-1].DenseReluDense
                dense.wi_0.weight.mul_(100)
                dense.wo.weight.mul_(0.01)

    theirs, ours = small(change)
    ids, _ = inputs(theirs, [9, 9])
    arguments = {"input_ids": ids, "labels": ids}
    theirs(**arguments).loss.backward()

    def gradients(fixes):
        ours.t5_fixes = fixes
        ours.zero_grad()
        output = ours(**arguments)
        assert output.logits.isfinite().all()  # tanh has absorbed the Inf
        output.loss.backward()
        return {name: parameter.grad for name, parameter in ours.named_parameters()}

    assert any(grad.isnan().any() for grad in gradients(without("gelu_guard")).values())
    kept = gradients(SEED)
    exact = dict(theirs.named_parameters())
    for name in ("encoder.block.0.layer.1.DenseReluDense.wi_1.weight", "decoder.block.1.layer.2.DenseReluDense.wo.weight"):
        assert relative(kept[name], exact[name].grad) < RIGHT_GRADIENT, name
    assert all(grad.isfinite().all() for grad in kept.values())


def test_no_dynamic_clamp(small):
    """One text that overflows changes another one of its batch: the clamp's bound is the batch's."""

    def change(model):
        model.shared.weight[5, 1] = 65000
        model.shared.weight[6, 0] = 65504
        model.encoder.block[0].layer[0].SelfAttention.o.weight[0] *= 3e4

    _, ours = small(change)
    calm, wild = torch.full((1, 4), 5), torch.full((1, 4), 6)
    both = torch.cat([calm, wild])
    ours.t5_fixes = {"no_dynamic_clamp": True}
    with torch.no_grad():
        for sign in (1, -1):
            ours.get_parameter("encoder.block.0.layer.0.SelfAttention.o.weight")[0] *= sign
            if not ours.encode(both).isfinite().all():
                break
        for clamps in (True, False):
            ours.t5_fixes = {"no_dynamic_clamp": not clamps}
            alone, together = ours.encode(calm)[0], ours.encode(both)
            assert alone.isfinite().all()
            assert torch.equal(together[0], alone) is not clamps
            assert bool(together[1].isfinite().all()) is clamps  # wrong, and nobody sees it


def test_gelu_guards_number_is_the_threshold(small):
    """From ten on GELU and ReLU are the same FP16 numbers, and so are all thresholds; below, ReLU shows."""
    theirs, ours = small(lambda model: [block.layer[-1].DenseReluDense.wi_0.weight.mul_(3) for block in model.encoder.block])
    ids, _ = inputs(theirs, [9])

    def encoded(guard):
        ours.t5_fixes = {**SEED, "gelu_guard": guard}
        return ours.encode(ids)

    with torch.no_grad():
        assert torch.equal(encoded(39), encoded(10)) and torch.equal(encoded(39), encoded(1e4))
        assert not torch.equal(encoded(39), encoded(1.0)) and not torch.equal(encoded(1.0), encoded(0.5))
        relu = make("v1.1", feed_forward_proj="gated-relu")
        relu.load_state_dict(theirs.state_dict())
        want = relu.encoder(input_ids=ids).last_hidden_state
        assert relative(encoded(1e-7), want) < RIGHT < relative(encoded(39), want)


def test_training_clamp_needs_no_condition_and_is_of_training_alone(tmp_path):
    """Overflows are clamped to 64504, whatever else the batch holds; evaluation is as without the switch."""
    theirs = make("v1.1", dropout_rate=0.0)
    with torch.no_grad():
        theirs.shared.weight[5, 1] = 65000
        theirs.shared.weight[6, 0] = 65504
        o = theirs.encoder.block[0].layer[0].SelfAttention.o.weight
        o[0] *= 3e4
        if (
            theirs.encoder.block[0].layer[0](torch.nn.functional.embedding(torch.full((1, 4), 6), theirs.shared.weight))[0][
                0, 0, 0
            ]
            < 65504
        ):
            o[0] *= -1
    ours = T5ForConditionalGeneration.from_pretrained(save(theirs, tmp_path), torch.float16)
    calm, wild = torch.full((1, 4), 5), torch.full((1, 4), 6)
    bound = torch.tensor(65504.0 - 1000).half()

    def states(ids, training, **fixes):
        ours.t5_fixes = {"no_dynamic_clamp": True, **fixes}
        ours.train(training)
        with torch.no_grad():
            output = ours(input_ids=ids, labels=torch.tensor([[5]] * len(ids)), output_hidden_states=True)
        return torch.stack(output.encoder_hidden_states[:-1])[1:]  # behind each block but the last

    assert not states(wild, True).isfinite().all()
    clamped = states(wild, True, training_clamp=True)
    assert clamped.abs().max() == bound
    assert not states(wild, False, training_clamp=True).isfinite().all()
    alone = states(calm, True, training_clamp=True)
    assert torch.equal(states(torch.cat([calm, wild]), True, training_clamp=True)[:, :1], alone)
    assert alone[..., 1].max() == bound  # 65000: below infinity, and clamped
    assert states(calm, True)[..., 1].max() > bound


@pytest.mark.parametrize(
    "fixes",
    [
        {"downproject_scale": 3},
        {"downproject_scale": 0.5},
        {"mask_scale": 0},
        {"mask_scale": 1.5},
        {"gelu_guard": -1},
        {"gelu_guard": float("inf")},
        {"gelu_guard": True},
    ],
)
def test_switches_out_of_range_are_named(small, fixes):
    _, ours = small(lambda model: None)
    with pytest.raises(ValueError, match=next(iter(fixes))):
        ours.t5_fixes = fixes


def test_unknown_switches_are_refused(small):
    _, ours = small(lambda model: None)
    for fixes in ("sead", {"mask": 1}, 8):
        with pytest.raises(ValueError, match="t5_fixes"):
            ours.t5_fixes = fixes
