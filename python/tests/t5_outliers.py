"""The outliers of trained T5s, grafted onto random weights, which never overflow on their own."""

import contextlib

import torch

CHANNELS = 8
BLOCKS = (2, 5)
NEAR = 0.05  # graft() comes as near to its amax: the amaxes that tests ask for are further apart than this


@contextlib.contextmanager
def hooks(handles):
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class Grafted:
    """A stack of `model`, "encoder" or "decoder", on these ids; `blocks` are those whose down-projections are to overflow."""

    def __init__(self, model, ids, decoder_ids=None, stack="encoder", blocks=BLOCKS):
        self.model, self.ids, self.decoder_ids, self.blocks = model, ids, decoder_ids, blocks
        self.stack = getattr(model, stack)

    def run(self):
        with torch.no_grad():
            if self.stack is self.model.encoder:
                self.stack(input_ids=self.ids)
            else:
                self.model(input_ids=self.ids, decoder_input_ids=self.decoder_ids)

    def down_projections(self):
        return [self.stack.block[block].layer[-1].DenseReluDense.wo for block in self.blocks]

    def outputs(self):
        """Outputs of each down-projection."""
        seen = []
        with hooks([wo.register_forward_hook(lambda _, __, y: seen.append(y)) for wo in self.down_projections()]):
            self.run()
        return seen

    def largest_output(self):
        return max(y.abs().max().item() for y in self.outputs())

    def reaches(self, amax):
        return abs(self.largest_output() / amax - 1) < NEAR

    def norms_behind(self):
        """In the order in which they run."""
        each = len(self.stack.block[0].layer)
        return [layer.layer_norm for block in self.stack.block for layer in block.layer][each * (self.blocks[0] + 1) :] + [
            self.stack.final_layer_norm
        ]


def graft(model, ids, amax, channels=CHANNELS, **where):
    """Lets some channels of a stack's residual stream grow until a down-projection reaches `amax` on `ids`, and gives each
    later norm weights under which these channels and the others have unit rms: what the blocks compute stays small."""
    grafted = Grafted(model, ids, **where)
    outlier = torch.zeros(model.config.d_model, dtype=torch.bool)
    outlier[torch.arange(channels) * (model.config.d_model // channels) + 3] = True

    def level(norm, arguments):
        h = arguments[0].detach()
        y = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)
        for group in (outlier, ~outlier):
            norm.weight[group] = 1 / y[..., group].pow(2).mean().sqrt()

    with torch.no_grad():
        for _ in range(3):  # a later block reads what an earlier one has written, so one step does not reach the amax exactly
            factor = amax / grafted.largest_output()
            for wo in grafted.down_projections():
                wo.weight[outlier] *= factor
            with hooks([norm.register_forward_pre_hook(level) for norm in grafted.norms_behind()]):
                grafted.run()
    return grafted
