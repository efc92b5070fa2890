"""The first example of Transformer Engine's users, as printed, on the CPU."""

from typing import Any

import torch


def test_it_runs_and_trains_in_fp8():
    import plimsoll.pytorch as te
    from plimsoll.common import recipe

    in_features = 768
    out_features = 3072
    hidden_size = 2048

    model: Any = te.Linear(in_features, out_features, use_bias=True)
    inp = torch.randn(hidden_size, in_features, device="cpu")

    fp8_recipe = recipe.DelayedScaling(margin=0, interval=1, fp8_format=recipe.Format.E4M3)

    with te.fp8_autocast(enabled=True, fp8_recipe=fp8_recipe):
        out = model(inp)

    loss = out.sum()
    loss.backward()

    assert out.shape == (hidden_size, out_features) and torch.isfinite(loss)
    exact = inp.double() @ model.weight.double().t() + model.bias.double()
    error = (out.double() - exact).norm() / exact.norm()
    # Each factor rounds once to 3 bits: between none of that and 2^-4 each, of random sign.
    assert 2.0**-10 < error < 2.0**-4
    assert torch.equal(model.bias.grad, torch.full((out_features,), float(hidden_size)))
    assert model.input_step.item() == 1 and model.grad_output_step.item() == 1
