"""KeyboardInterrupts in tight loops of scopes: whatever they strike, no scope stays open, and scales go on being updated."""

import contextlib
import gc
import signal
import sys

import common

common.use_library()

import plimsoll.pytorch as te  # noqa: E402
import torch  # noqa: E402
from plimsoll import amp  # noqa: E402
from plimsoll._scope import _scopes_of_thread  # noqa: E402
from plimsoll.amp.precision_switch import table_holds  # noqa: E402
from plimsoll.common import recipe  # noqa: E402
from plimsoll.pytorch.autocast import innermost_scope  # noqa: E402
from plimsoll.pytorch.quantized_init import weights_as_codes  # noqa: E402
from plimsoll.shard import activation_checkpoint, checkpoint_wrapper, disable_checkpointing  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

COUNT = 6000
MINUTES = 2.5
RULE = recipe.DelayedScaling()
LAYER = te.Linear(8, 8)
WRAPPED = checkpoint_wrapper(te.Linear(8, 8))
X = torch.ones(2, 8)
HELD_FP8, HELD_AMP = te.autocast(recipe=RULE), amp.autocast("cpu", torch.float16)


def fp8():
    with te.autocast(recipe=RULE):
        pass


def held_fp8():
    with HELD_FP8, HELD_FP8:
        pass


@te.autocast(recipe=RULE)
def decorated_fp8():
    pass


def autocast():
    with amp.autocast("cpu", torch.bfloat16, cache_enabled=False):
        pass


def held_autocast():
    with HELD_AMP, HELD_AMP:
        pass


@amp.autocast("cpu", torch.float16)
def decorated_autocast():
    pass


def training_step():
    with amp.autocast("cpu", torch.bfloat16), te.autocast(recipe=RULE), te.autocast(enabled=False):
        output = LAYER(X)
    output.sum().backward()


def exit_stack():
    with contextlib.ExitStack() as stack:
        stack.enter_context(te.autocast(recipe=RULE))
        stack.enter_context(amp.autocast("cpu", torch.float16))


def generator():
    def suspended():
        with te.autocast(recipe=RULE), amp.autocast("cpu", torch.float16):
            yield

    next(suspended())


def recompute():
    with te.autocast(recipe=RULE):
        output = te.checkpoint(LAYER, X)
    output.sum().backward()


def recompute_of_torch():
    with amp.autocast("cpu", torch.float16), te.autocast(recipe=RULE):
        output = checkpoint(LAYER, X, use_reentrant=False)
    output.sum().backward()


def recompute_of_wrapper():
    with te.autocast(recipe=RULE):
        output = WRAPPED(X)
    output.sum().backward()


def initialisation():
    with te.quantized_model_init():
        pass


def disabled_checkpoints():
    with disable_checkpointing():
        pass


LOOPS = [
    fp8, held_fp8, decorated_fp8, autocast, held_autocast, decorated_autocast, training_step, exit_stack, generator, recompute,
    recompute_of_torch, recompute_of_wrapper, initialisation, disabled_checkpoints,
]  # fmt: skip

# Loops of `with` alone, which has left the scopes when the handler begins. Others, of contextlib's generators and stacks, have
# when the traceback is gone and nothing holds the scope any more.
AT_ONCE = [fp8, held_fp8, decorated_fp8, autocast, held_autocast, decorated_autocast, training_step]


def open_scopes():
    """Scopes that are open and should not be."""
    found = {
        "scopes": _scopes_of_thread(),
        "fp8": innermost_scope() is not None,
        "autocast": torch.is_autocast_enabled("cpu"),
        "dtype": torch.get_autocast_dtype("cpu") != torch.bfloat16,
        "cache": not torch.is_autocast_cache_enabled(),
        "table": table_holds(),
        "codes": weights_as_codes() is not None,
        "checkpoints": activation_checkpoint._thread.disabled,
    }
    return {name: value for name, value in found.items() if value}


def updates_scales():
    step = LAYER.get_buffer("input_step")
    before = step.item()
    with te.autocast(recipe=RULE):
        LAYER(X)
    return step.item() == before + 1


def pop_hooks_of_torch():
    """torch's checkpoint leaves its hooks for saved tensors behind where it is struck; the next one would run under them."""
    while torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        torch._C._autograd._pop_saved_tensors_default_hooks()


def strike(loop, after):
    """Runs the loop until an interrupt comes, `after` so many seconds; what it has left open. A destructor may swallow one,
    so more follow."""
    try:
        signal.setitimer(signal.ITIMER_REAL, after, 0.05)
        while True:
            loop()
    except KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, 0)
        if loop in AT_ONCE and (left := open_scopes()):
            return left
    gc.collect()  # a stack that was struck is in a cycle with the exception
    pop_hooks_of_torch()
    return open_scopes()


def main():
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    attack = common.Attack("interrupts of scopes")
    sys.unraisablehook = lambda _: None  # an interrupt in a destructor
    for loop in LOOPS:
        loop()  # what the first call prepares is not what is struck
    gc.freeze()  # so that a collection looks only at what the loops made
    while attack.goes_on(COUNT):
        loop = LOOPS[attack.count % len(LOOPS)]
        attack.count += 1
        left = strike(loop, attack.random.uniform(5e-5, 1e-3))
        if left:
            attack.fail(f"{loop.__name__}: left open: {left}")
            break  # what follows would find the same
        if attack.count % 100 == 0 and not updates_scales():
            attack.fail(f"{loop.__name__}: scales are not updated any more")
            break
    sys.exit(attack.finish())


if __name__ == "__main__":
    main()
