"""Our modules against compositions of torch's own functions in double."""

import torch
from torch.nn import functional

# FP32 against exact: norms of the difference over norms of the value. docs/python.md states it.
FP32 = 1e-6


def assert_close(ours, exact, what, bound=FP32):
    assert ours.shape == exact.shape, what
    error = (ours.double() - exact).norm() / exact.norm().clamp_min(2.0**-1000)
    assert error <= bound, f"{what}: relative error {error:.2e}, bound {bound:.0e}"


def gradients_of(composition, parameters, inputs, seed, dtype):
    """{name: value} of the output and all gradients, computed in dtype."""
    leaves = [x.detach().to(dtype).requires_grad_() for x in inputs]
    named = {name: p.detach().to(dtype).requires_grad_() for name, p in parameters.items()}
    output = composition(named, *leaves)
    output.backward(seed.to(dtype))
    return collect(output, leaves, named)


def collect(output, inputs, parameters):
    results = {"output": output.detach()}
    results |= {f"gradient of input {number}": x.grad for number, x in enumerate(inputs)}
    return results | {f"gradient of {name}": p.grad for name, p in parameters.items()}


def check(module, composition, *inputs, forward=None, cancelled=None):
    """composition(parameters, *inputs) in torch's functions; the output and the gradients of inputs and parameters are
    compared. Where terms cancel, FP32 is allowed one rounding of the largest value, or four times what torch itself makes
    of it in FP32; and what cancelled(seed, *inputs), in double, says of a value: {name: norm that rounded terms may leave}."""
    parameters = dict(module.named_parameters())
    leaves = [x.clone().requires_grad_() for x in inputs]
    output = (forward or module)(*leaves)
    seed = torch.randn(output.shape)
    module.zero_grad()
    output.backward(seed)
    ours = collect(output, leaves, parameters)
    exact = gradients_of(composition, parameters, inputs, seed, torch.double)
    torchs = gradients_of(composition, parameters, inputs, seed, torch.float32)
    largest = max(value.norm() for value in exact.values())
    left = cancelled(seed.double(), *(x.double() for x in inputs)) if cancelled else {}
    for what, value in exact.items():
        assert ours[what].shape == value.shape, what
        bound = FP32 * value.norm() + 4 * (torchs[what].double() - value).norm() + 2.0**-24 * largest + left.get(what, 0)
        error = (ours[what].double() - value).norm()
        assert error <= bound, f"{what}: error {error:.2e}, bound {bound:.2e}"


def randomize(module):
    """Norms and biases away from the values at which they have no effect, weights large enough to matter."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(0, parameter.shape[1] ** -0.5)
    return module


def norm(x, weight, bias, kind, zero_centered=False, eps=1e-5):
    if zero_centered:
        weight = 1 + weight
    if kind == "RMSNorm":
        return functional.rms_norm(x, x.shape[-1:], weight, eps)
    return functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


CURVES = {
    "gelu": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "relu": functional.relu,
    "srelu": lambda x: functional.relu(x).square(),
    "qgelu": lambda x: x * torch.sigmoid(1.702 * x),
    "gelu_erf": functional.gelu,
}
GATES = {
    "geglu": CURVES["gelu"],
    "swiglu": CURVES["silu"],
    "reglu": CURVES["relu"],
    "sreglu": CURVES["srelu"],
    "qgeglu": CURVES["qgelu"],
    "glu": torch.sigmoid,
}
CLAMP = {"limit": 7.0, "alpha": 1.702, "glu_linear_offset": 1.0}


def activate(x, kind, params=None):
    if kind in CURVES:
        return CURVES[kind](x)
    gate, linear = x.chunk(2, -1)
    if kind == "clamped_swiglu":
        clamp = {**CLAMP, **(params or {})}
        gate, linear = gate.clamp(max=clamp["limit"]), linear.clamp(-clamp["limit"], clamp["limit"])
        return gate * torch.sigmoid(clamp["alpha"] * gate) * (linear + clamp["glu_linear_offset"])
    return GATES[kind](gate) * linear
