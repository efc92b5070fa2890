"""The outliers of trained T5s, grafted onto random weights, which never overflow on their own."""
import contextlib

import torch

CHANNELS = 8
BLOCKS = (2, 5)


@contextlib.contextmanager
def hooks(handles):
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def down_projection(model, block):
    return model.encoder.block[block].layer[1].DenseReluDense.wo


def largest_output(model, ids):
    """The amax of the down-projections of BLOCKS."""
    seen = []
    handles = [down_projection(model, block).register_forward_hook(lambda _, __, y: seen.append(y.abs().max().item()))
               for block in BLOCKS]
    with hooks(handles), torch.no_grad():
        model.encoder(input_ids=ids)
    return max(seen)


def graft(model, ids, amax):
    """Lets some channels of the encoder's residual stream grow until a down-projection reaches `amax` on `ids`, and gives
    each later norm weights under which these channels and the others have unit rms: what the blocks compute stays small."""
    channels = torch.arange(CHANNELS) * (model.config.d_model // CHANNELS) + 3
    outlier = torch.zeros(model.config.d_model, dtype=torch.bool)
    outlier[channels] = True

    def level(norm, arguments):
        h = arguments[0].detach()
        y = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)
        for group in (outlier, ~outlier):
            norm.weight[group] = 1 / y[..., group].pow(2).mean().sqrt()

    def level_all():
        with hooks([norm.register_forward_pre_hook(level) for norm in later]), torch.no_grad():
            model.encoder(input_ids=ids)

    norms = [module for name, module in model.encoder.named_modules() if name.endswith("layer_norm")]
    after = 2 * BLOCKS[0] + 2  # two norms a block
    order = sorted(norms, key=lambda norm: norm is model.encoder.final_layer_norm)
    later = order[after:]
    with torch.no_grad():
        for _ in range(3):  # block 5 reads what block 2 has written, so one step does not reach the amax exactly
            factor = amax / largest_output(model, ids)
            for block in BLOCKS:
                down_projection(model, block).weight[channels] *= factor
            level_all()
    return model
