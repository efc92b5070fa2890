"""A valid call of every method of our classes, for tests to spoil."""

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import hostile_t5
import torch
from hostile_arguments import Made, Planned
from plimsoll.autoscale.session import new_session

ops, classes = torch.ops.plimsoll, torch.classes.plimsoll
OWNER = 1 << 40  # of scopes: stands for the address of an object of Python


@cache
def folder():
    return Path(tempfile.mkdtemp(prefix="plimsoll-hostile-"))


def saved_checkpoint():
    run = folder() / "run"
    if not run.exists():
        saver = ops.checkpoint_saver(str(run), classes.Ranks(""), keep=2, asynchronous=False)
        saver.save(1, "{}", [("model", "w", torch.ones(3)), ("model", "w.values.0", torch.ones(3))], [])
    return next(path for path in run.iterdir() if path.is_dir())


def new_saver():
    return ops.checkpoint_saver("saved", classes.Ranks(""), keep=2, asynchronous=False)


def made_checkpoint():
    return ops.open_checkpoint(str(saved_checkpoint()))


def new_unit(ranks):
    options: dict[str, Any] = dict(compute_dtype=None, reduce_dtype=torch.float32, reshard_after_forward=True)
    options |= dict(disable_reshard_on_root=True, flatten_parameters=True, prefetch=True, gradient_predivide_factor=None)
    weight = torch.randn(3, 4, requires_grad=True)
    return ops.sharded_unit(
        ["weight"], [weight], [[]], gather=ranks, reduce=ranks, ordered_passes=0, offload_path=None, **options
    )


def new_controller():
    return ops.precision_controller("auto")


def new_schedule():
    """A schedule of one unit, in a forward pass of it."""
    schedule = classes.ShardSchedule([new_unit(classes.Ranks(GROUP))], [[]])
    schedule.before_forward(0)
    return schedule


GROUP = "hostile"  # the process group of this process alone
HOOKED = ["bf16", Made(lambda: classes.Ranks(GROUP)), ["w"], [3]]
# Name of the class: how one is made, its constructor's arguments, and those of each method.
METHODS: dict[str, tuple[Any, dict[str, list[Any]]]] = {
    "AutoscaleSession": (
        new_session,
        {
            "clear_counts": [],
            "count": ["aten::add"],
            "counts": [],
            "range": [],
            "set_gradient_exponent": [3],
            "start_inspection": [],
            "stop_inspection": [],
        },
    ),
    "ScaleTape": ([], {"enter_first_run": [OWNER], "enter_second_run": [OWNER]}),
    "CheckpointSaver": (new_saver, {"save": [1, "{}", [], []], "wait": []}),
    "HookedBuckets": (
        HOOKED,
        {
            "left_out": [],
            "restore": [Made(made_checkpoint), "model"],
            "sent_bytes": [],
            "start": [0, True, [0], [Planned((3,))]],
        },
    ),
    "Checkpoint": (
        made_checkpoint,
        {
            "check_files": [],
            "directory": [],
            "read": ["model", "w"],
            "read_range": ["model", "w", 0, 2],
            "refused": [],
            "state": [],
            "step": [],
            "tensors": [],
            "world_size": [],
        },
    ),
    "PrecisionController": (
        new_controller,
        {
            "abandon_step": [3],
            "end_step": [3, 10],
            "enter": [OWNER, None, 1, False],
            "load_state": ['{"step": 3, "formats": ["e4m3", "bf16"], "layers": [], "multiply_adds": [1, 0]}'],
            "measures": [],
            "products": [],
            "shares": [True],
            "state": [],
        },
    ),
    "ShardSchedule": (
        new_schedule,
        {
            "after_forward": [0, [Planned((3, 4), grad=True)]],
            "attach": [0],
            "before_forward": [0],
            "clip_grad_norm_": [1.0, 2.0],
            "in_backward": [],
            "phase": [0],
            "set_sync": [True],
        },
    ),
    **hostile_t5.METHODS,
}


def new(name):
    how = METHODS[name][0]
    if callable(how):
        return how()
    return getattr(classes, name)(*(each.make() if isinstance(each, Made) else each for each in how))


def method_calls():
    """Constructors and methods as calls, by names such as `CheckpointSaver.save`."""
    calls = {}
    for name, (how, methods) in METHODS.items():
        if not callable(how):
            calls[f"{name}.__init__"] = lambda draw, how=how: list(how)
        for method, arguments in methods.items():
            calls[f"{name}.{method}"] = lambda draw, arguments=arguments: list(arguments)
    return calls


def join_group():
    """Makes the process group."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    c10d: Any = torch._C._distributed_c10d
    c10d._register_process_group(GROUP, torch.distributed.group.WORLD)
