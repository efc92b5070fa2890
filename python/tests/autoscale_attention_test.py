"""Attention on scaled tensors against torch's in double on the same values."""

import plimsoll.autoscale as autoscale
import pytest
import torch
import torch.nn.functional as F

# Operands are FP16, so are results: their own rounding, and that of the output in the gradients.
ROUNDING = 2.0**-11
SHAPE = (2, 3, 40, 16)


def operands():
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(SHAPE, generator=generator).half() for _ in range(4)]


def run(inputs, gradient, options):
    inputs = [x.detach().requires_grad_() for x in inputs]
    output = F.scaled_dot_product_attention(*inputs, **options)
    return [output, *torch.autograd.grad(output, inputs, gradient)]


def mask():
    hidden = torch.zeros(40, 40)
    hidden[:, 33:] = torch.finfo(torch.float32).min
    return hidden


OPTIONS = {"plain": lambda: {}, "causal": lambda: {"is_causal": True}, "mask": lambda: {"attn_mask": mask()}}


@pytest.mark.parametrize("option", OPTIONS)
# Exponents of query, key, value and the output's gradient.
@pytest.mark.parametrize("exponents", [(0, 0, 0, 0), (20, -20, 30, -30), (-3, 1, -25, 12), (-40, -10, 0, 0)])
def test_attention_and_its_gradients_are_those_of_the_values(option, exponents):
    data = operands()
    scaled = [autoscale.scaled_array(x, 2.0**e) for x, e in zip(data, exponents, strict=True)]
    exact = [x.double() * 2.0**e for x, e in zip(data, exponents, strict=True)]
    options = OPTIONS[option]()
    expected = run(exact[:3], exact[3], {k: v.double() if k == "attn_mask" else v for k, v in options.items()})
    results = run(scaled[:3], scaled[3], options)
    for got, right in zip(results, expected, strict=True):
        error = (autoscale.value(got).double() - right).norm() / right.norm()
        assert error < 4 * ROUNDING
    for seen in (results[0], scaled[3]):  # the sessions of the forward and of the backward call
        rows = [row for row in autoscale.report(seen).ops if "scaled_dot_product" in row.op]
        assert [row.storage for row in rows] == [1]


@pytest.mark.parametrize("keys", [24, 56])
def test_is_causal_counts_from_the_first_key_whatever_the_lengths(keys):
    query, key, value, gradient = operands()
    key, value = (torch.cat([x, x.flip(2)], 2)[:, :, :keys] for x in (key, value))
    scaled = [autoscale.scaled_array(x, 0.5) for x in (query, key, value, gradient)]
    exact = [x.double() * 0.5 for x in (query, key, value, gradient)]
    hidden = torch.ones(query.shape[2], keys, dtype=torch.bool).triu(1)
    expected = run(exact[:3], exact[3], {"attn_mask": ~hidden})
    results = run(scaled[:3], scaled[3], {"is_causal": True})
    for got, right in zip(results, expected, strict=True):
        assert (autoscale.value(got).double() - right).norm() / right.norm() < 4 * ROUNDING
    for seen in (results[0], scaled[3]):
        rows = [row for row in autoscale.report(seen).ops if "scaled_dot_product" in row.op]
        assert [row.storage for row in rows] == [1]


@pytest.mark.parametrize("groups", [3, 1])
def test_a_window_hides_what_lies_before_it(groups):
    query, key, value, gradient = operands()
    key, value = key[:, :groups], value[:, :groups]
    hidden = torch.ones(40, 40, dtype=torch.bool).triu(1) | torch.ones(40, 40, dtype=torch.bool).tril(-7)
    scaled = [autoscale.scaled_array(x, 0.5).detach().requires_grad_() for x in (query, key, value)]
    exact = [(x.double() * 0.5).requires_grad_() for x in (query, key, value)]
    output = torch.ops.plimsoll.attention(*scaled, mask_type="causal", window=7)
    got = [output, *torch.autograd.grad(output, scaled, autoscale.scaled_array(gradient, 0.5))]
    wanted = F.scaled_dot_product_attention(exact[0], exact[1], exact[2], attn_mask=~hidden, enable_gqa=True)
    expected = [wanted, *torch.autograd.grad(wanted, exact, gradient.double() * 0.5)]
    for ours, right in zip(got, expected, strict=True):
        assert (autoscale.value(ours).double() - right).norm() / right.norm() < 4 * ROUNDING


def test_heads_of_a_projection_are_read_where_they_lie():
    generator = torch.Generator().manual_seed(2)
    projected = torch.randn(2, 40, 3 * 48, generator=generator).half()

    def heads(x):
        return [part.view(2, 40, 3, 16).transpose(1, 2) for part in x.split(48, -1)]

    got = F.scaled_dot_product_attention(*heads(autoscale.scaled_array(projected, 0.5)))
    expected = F.scaled_dot_product_attention(*heads(projected.double() * 0.5))
    assert (autoscale.value(got).double() - expected).norm() / expected.norm() < 2 * ROUNDING
