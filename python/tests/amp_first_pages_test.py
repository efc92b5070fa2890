"""Pages of torch on mixed precision run with the import changed, and leave the same bits in the weights."""

from types import ModuleType
from typing import Any

import plimsoll.amp
import pytest
import torch
from amp_models import net
from torch import nn
from torch.nn.functional import mse_loss

Weights = list[torch.Tensor]
STEPS = 6


pytestmark = pytest.mark.usefixtures("one_thread")


def batches(count=STEPS):
    generator = torch.Generator().manual_seed(2)
    return [(torch.randn(8, 16, generator=generator), torch.randn(8, 4, generator=generator)) for _ in range(count)]


def weights(*models: nn.Module) -> Weights:
    return [parameter.detach() for model in models for parameter in model.parameters()]


# The recipe: typical training, switched off by a flag; gradients that are looked at; saving and going on; inference.


def typical(amp: Any, use_amp: bool = True) -> Weights:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = amp.GradScaler("cpu", enabled=use_amp)
    for x, y in batches():
        with amp.autocast(device_type="cpu", dtype=torch.float16, enabled=use_amp):
            output = model(x)
            assert output.dtype is (torch.float16 if use_amp else torch.float32)
            loss = mse_loss(output, y)
            assert loss.dtype is torch.float32
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return weights(model)


def switched_off(amp: Any) -> Weights:
    return typical(amp, use_amp=False)


def clipping(amp: Any) -> Weights:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = amp.GradScaler("cpu")
    for x, y in batches():
        with amp.autocast("cpu", torch.float16):
            loss = mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.1)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return weights(model)


def saving(amp: Any) -> Weights:
    """Trained in two halves, the second by new objects that load what the first has saved."""
    saved: dict[str, Any] = {}
    for half in (batches()[: STEPS // 2], batches()[STEPS // 2 :]):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        scaler = amp.GradScaler("cpu", init_scale=2.0**18, growth_interval=2)
        for name, each in (("model", model), ("optimizer", optimizer), ("scaler", scaler)):
            if saved:
                each.load_state_dict(saved[name])
        for x, y in half:
            with amp.autocast("cpu", torch.float16):
                loss = mse_loss(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}
    return [*weights(model), torch.tensor(scaler.get_scale())]


def inference(amp: Any) -> Weights:
    model = net().eval()
    with torch.no_grad(), amp.autocast("cpu", torch.bfloat16):
        outputs = [model(x) for x, _ in batches()]
    assert all(output.dtype is torch.bfloat16 for output in outputs)
    return outputs


# The examples: accumulation, a penalty on gradients, several models, losses and optimizers, custom functions.


def accumulation(amp: Any) -> Weights:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = amp.GradScaler("cpu")
    for i, (x, y) in enumerate(batches()):
        with amp.autocast("cpu", torch.float16):
            loss = mse_loss(model(x), y) / 2
        scaler.scale(loss).backward()
        if i % 2:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return weights(model)


def penalty(amp: Any) -> Weights:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = amp.GradScaler("cpu")
    for x, y in batches():
        optimizer.zero_grad()
        with amp.autocast("cpu", torch.float16):
            loss = mse_loss(model(x), y)
        scaled = torch.autograd.grad(outputs=scaler.scale(loss), inputs=list(model.parameters()), create_graph=True)
        grads = [each * (1.0 / scaler.get_scale()) for each in scaled]
        with amp.autocast("cpu", torch.float16):
            norm = torch.stack([each.pow(2).sum() for each in grads]).sum().sqrt()
            loss = loss + norm
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return weights(model)


def several(amp: Any) -> Weights:
    models = [net(1), net(2)]
    optimizers = [torch.optim.SGD(models[0].parameters(), lr=0.001), torch.optim.AdamW(models[1].parameters(), lr=0.001)]
    scaler = amp.GradScaler("cpu", init_scale=2.0**18)
    for x, y in batches():
        for optimizer in optimizers:
            optimizer.zero_grad()
        with amp.autocast("cpu", torch.float16):
            first, second = (model(x) for model in models)
            losses = [mse_loss(2 * first + 3 * second, y), mse_loss(3 * first - 5 * second, y)]
        scaler.scale(losses[0]).backward(retain_graph=True)
        scaler.scale(losses[1]).backward()
        scaler.unscale_(optimizers[0])
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() < 2.0**18, "steps were skipped"
    return weights(*models)


def custom_functions(amp: Any) -> Weights:
    class Product(torch.autograd.Function):
        @staticmethod
        @amp.custom_fwd(device_type="cpu")
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return a.mm(b)

        @staticmethod
        @amp.custom_bwd(device_type="cpu")
        def backward(ctx, grad):
            a, b = ctx.saved_tensors
            return grad.mm(b.t()), a.t().mm(grad)

    class InFp32(torch.autograd.Function):
        @staticmethod
        @amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
        def forward(ctx, x):
            assert x.dtype is torch.float32
            ctx.save_for_backward(x)
            return x.square()

        @staticmethod
        @amp.custom_bwd(device_type="cpu")
        def backward(ctx, grad):
            return 2 * ctx.saved_tensors[0] * grad

    torch.manual_seed(3)
    weight = nn.Parameter(torch.randn(16, 4))
    optimizer = torch.optim.SGD([weight], lr=0.01)
    scaler = amp.GradScaler("cpu")
    for x, y in batches():
        with amp.autocast("cpu", torch.float16):
            loss = mse_loss(InFp32.apply(Product.apply(x, weight)), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return [weight.detach()]


@pytest.mark.parametrize(
    "page",
    [typical, switched_off, clipping, saving, inference, accumulation, penalty, several, custom_functions],
    ids=lambda page: page.__name__,
)
def test_the_page_runs_with_the_import_changed_and_has_the_same_bits(page):
    modules: list[ModuleType] = [plimsoll.amp, torch.amp]
    ours, theirs = (page(amp) for amp in modules)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    trained = page is not inference
    assert not trained or not torch.equal(ours[0], weights(net())[0]), "something was learnt"
