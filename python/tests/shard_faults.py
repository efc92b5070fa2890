"""Three ranks of FullyShardedDataParallel that save after each step, one of which is killed or stopped in a phase of one.

    python shard_faults.py FOLDER

prints what became of each case, as JSON. Processes are forked from one that has imported everything.
"""

import contextlib
import json
import os
import pathlib
import signal
import sys
import time
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import datetime

import shard_models as models
import torch
import torch.distributed as dist
from launched_ranks import reserved_port
from plimsoll.shard import CheckpointSaver, open_latest_checkpoint

RANKS = 3
STEPS = 4
FAULT_STEP = 2
# Seconds after which a rank that stands still is missed, in which the others must do their part of a step. One that is killed is
# missed at once.
DEADLINES = {"STOP": 12.0, "KILL": 120.0}
AT_ONCE = 6  # all that are stopped, whose deadlines pass together
PHASES = ("gather", "forward", "backward", "reduce", "clip", "step", "save", "writing")
# signal, phase, rank
CASES = [("KILL", phase, 1) for phase in PHASES]
CASES += [("KILL", "backward", 0), ("KILL", "save", 0)]
CASES += [("STOP", phase, 1) for phase in ("gather", "reduce", "clip", "save")]
# Rank 0 holds the store, which then answers nobody.
CASES += [("STOP", phase, 0) for phase in ("reduce", "save")]


class Fault:
    """Fault of the victim; the others pass by."""

    def __init__(self, folder, case, rank):
        self.folder = folder
        self.case: Any = case if case is not None and case[2] == rank else None
        self.step = 0

    def at(self, phase):
        if self.case is None or self.step != FAULT_STEP or self.case[1] != phase.replace("written", "writing"):
            return
        if phase == "writing":
            self._watch(os.getpid())
        elif phase == "written":
            time.sleep(2 * DEADLINES["KILL"])  # what watches this process ends it, now if not before
        else:
            self._strike(os.getpid())

    def _strike(self, pid):
        (self.folder / "fault").write_text(str(time.monotonic()))
        os.kill(pid, getattr(signal, "SIG" + self.case[0]))

    def _watch(self, pid):
        """From another process: as soon as this one has begun to write."""
        mine, written = f"*.partial/*rank-{self.case[2]:05}*", f"run/step-{FAULT_STEP + 1:08}"
        if os.fork() == 0:
            while not any(self.folder.glob("run/" + mine)) and not (self.folder / written).exists() and os.getppid() == pid:
                pass
            if os.getppid() == pid:
                self._strike(pid)
            os._exit(0)


def watch_gradient(output, fault):
    output.register_hook(lambda grad: fault.at("backward"))


def make(fault):
    torch.manual_seed(0)
    model = models.wrapped(models.blocks_net(), dist.group.WORLD)
    middle = model.module.blocks[1]
    middle.module.register_forward_hook(lambda *_: fault.at("forward"))
    middle.register_forward_hook(lambda module, inputs, output: watch_gradient(output, fault))
    model.module.first.weight.register_hook(lambda grad: fault.at("reduce"))
    return model


def train(folder, fault, rank):
    run = folder / "run"
    model = make(fault)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    saver = CheckpointSaver(run, keep=2)
    latest: Any = open_latest_checkpoint(run)
    if latest is not None:
        model.load_sharded_state_dict(latest)
        model.load_sharded_optim_state_dict(optimizer, latest)
    for step in range(0 if latest is None else latest.step, STEPS):
        fault.step = step
        optimizer.zero_grad()
        fault.at("gather")
        models.backward(model, *models.part(models.batch(step), rank, RANKS))
        fault.at("clip")
        model.clip_grad_norm_(0.5)
        fault.at("step")
        optimizer.step()
        fault.at("save")
        fault.at("writing")
        saver.save(step + 1, {"model": model.sharded_state_dict(), "optimizer": model.sharded_optim_state_dict(optimizer)})
        fault.at("written")
    if rank == 0:
        latest = 0 if latest is None else latest.step
        (folder / "done").write_text(json.dumps({"from": latest, "weights": str(run / f"step-{STEPS:08}")}))


def run_rank(folder, port, case, rank):
    address = f"tcp://127.0.0.1:{port}"
    limit = datetime.timedelta(seconds=DEADLINES[case[0] if case else "KILL"])
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=RANKS, timeout=limit)
    try:
        train(folder, Fault(folder, case, rank), rank)
        status = 0
    except Exception as error:
        seconds = time.monotonic() - float((folder / "fault").read_text()) if case else 0
        (folder / f"error-{rank}").write_text(json.dumps({"seconds": seconds, "error": str(error)}))
        status = 1
    os._exit(status)


def start(folder, case, ports):
    """ports: held until the ranks have ended."""
    folder.mkdir(parents=True, exist_ok=True)
    port = ports.enter_context(reserved_port())
    pids = []
    for rank in range(RANKS):
        pid = os.fork()
        if pid == 0:
            run_rank(folder, port, case, rank)
        pids.append(pid)
    return pids


def end(pids, case):
    """Exit codes of the ranks; the victim's is its signal's number, negative."""
    codes = {}
    for rank, pid in enumerate(pids):
        if case is None or rank != case[2]:
            codes[rank] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if case is not None:
        os.kill(pids[case[2]], signal.SIGKILL)
        codes[case[2]] = os.waitstatus_to_exitcode(os.waitpid(pids[case[2]], 0)[1])
    return [codes[rank] for rank in range(RANKS)]


def weights(folder):
    from plimsoll.shard import open_checkpoint

    done = json.loads((folder / "done").read_text())
    section = open_checkpoint(done["weights"]).section("model")
    return done["from"], {name: tensor.numpy().tobytes().hex() for name, tensor in section.items()}


def run_cases(folder, cases):
    """After a fault the run goes on, as the same three ranks."""
    places = [folder / "-".join(map(str, case)) for case in cases]
    with contextlib.ExitStack() as ports:
        started = [start(place, case, ports) for place, case in zip(places, cases, strict=False)]
        codes = [end(pids, case) for pids, case in zip(started, cases, strict=False)]
        errors = [[json.loads(file.read_text()) for file in sorted(place.glob("error-*"))] for place in places]
        again = [end(start(place, None, ports), None) for place in places]
    return [
        {
            "codes": codes[i],
            "errors": errors[i],
            "resumed": again[i],
            "outcome": weights(places[i]) if not any(again[i]) else None,
        }
        for i in range(len(cases))
    ]


def import_all():
    """Imports what the first step of an optimizer does, which takes a second."""
    parameter = torch.nn.Parameter(torch.ones(1))
    parameter.grad = torch.ones(1)
    torch.optim.AdamW([parameter]).step()


def main():
    folder = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    import_all()
    whole = folder / "whole"
    with contextlib.ExitStack() as ports:
        if any(end(start(whole, None, ports), None)):
            sys.exit("the run without a fault failed: " + " ".join(file.read_text() for file in whole.glob("error-*")))
    results = {"whole": weights(whole)[1]}
    in_order = sorted(CASES, reverse=True)  # those that are stopped come first
    for first in range(0, len(in_order), AT_ONCE):
        some = in_order[first : first + AT_ONCE]
        results.update(zip(map("-".join, ([str(x) for x in case] for case in some)), run_cases(folder, some), strict=False))
    print(json.dumps(results))


if __name__ == "__main__":
    main()
