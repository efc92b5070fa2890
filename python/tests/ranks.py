"""Functions that run in several processes with Gloo groups between them. Starting processes costs most, so one set of them
runs the cases of all test modules.

    @ranks.case(2)
    def sums_are_equal(group):  # on the ranks of `group`, which are 0 and 1
        ...

    @pytest.mark.parametrize("name", ranks.names(__name__))
    def test_on_ranks(outcomes, name):
        outcomes.check(name)
"""

import datetime
import importlib
import json
import pathlib
import subprocess
import sys
import tempfile
import traceback
from typing import Any

import launched_ranks
import torch
import torch.distributed as dist

WORLD = 8
LIMIT = datetime.timedelta(seconds=120)  # of a collective
LIMIT_OF_ALL = 1800  # seconds; two minutes on two cores that do nothing else
CASES: dict[str, tuple[int, Any]] = {}  # "module.function" -> (ranks, function)


def case(ranks):
    def register(function):
        CASES[f"{function.__module__}.{function.__name__}"] = (ranks, function)
        return function

    return register


def names(module):
    return [name for name in CASES if name.startswith(module + ".")]


def gathered(group, value):
    """Values of all ranks, in order."""
    values = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


def shared_folder(group):
    """A new one that all ranks see."""
    return pathlib.Path(gathered(group, tempfile.mkdtemp() if dist.get_rank(group) == 0 else None)[0])


def assert_same_bits(group, named):
    """named: {name: tensor}, the same on each rank."""
    mine = {name: tensor.detach().numpy().tobytes() for name, tensor in named.items()}
    for rank, theirs in enumerate(gathered(group, mine)):
        assert theirs.keys() == mine.keys()
        different = [name for name in mine if theirs[name] != mine[name]]
        assert not different, f"rank {rank} has other bits of {different}"


class Outcomes:
    def __init__(self, errors):
        self.errors = errors  # one {case: traceback} for each rank

    def check(self, name):
        ranks, _ = CASES[name]
        found = {rank: errors.get(name, "did not run") for rank, errors in enumerate(self.errors[:ranks])}
        failed = {rank: error for rank, error in found.items() if error}
        assert not failed, "\n".join(f"rank {rank}: {error}" for rank, error in failed.items())


def run(names):
    """Outcomes of these cases; a process that ends early leaves out those that it has not run."""
    with tempfile.TemporaryDirectory() as folder:
        environment = launched_ranks.environment()
        pathlib.Path(folder, "names.json").write_text(json.dumps(names))
        command = [sys.executable, __file__, folder]
        processes = [
            subprocess.Popen([*command, str(rank)], env=environment, stderr=subprocess.PIPE, text=True) for rank in range(WORLD)
        ]
        said = [process.communicate(timeout=LIMIT_OF_ALL)[1] for process in processes]
        errors = []
        for rank, process in enumerate(processes):
            file = pathlib.Path(folder, f"{rank}.json")
            found = json.loads(file.read_text()) if file.exists() else {}
            if process.returncode:
                found = {name: found.get(name, f"ended with {process.returncode}: {said[rank][-2000:]}") for name in CASES}
            errors.append(found)
        return Outcomes(errors)


def _run_rank(folder, rank):
    tests = pathlib.Path(__file__).resolve().parent
    sys.path[:0] = [str(tests.parent), str(tests)]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD, timeout=LIMIT)
    names = json.loads(pathlib.Path(folder, "names.json").read_text())
    for module in sorted({name.partition(".")[0] for name in names}):
        importlib.import_module(module)
    # The largest groups first: nobody waits for ranks that are still at a case of fewer.
    registered = sys.modules["ranks"].CASES
    cases = {name: registered[name] for name in sorted(names, key=lambda name: -registered[name][0])}
    # One for each, because a case that fails on one rank may leave its group out of step.
    groups = {name: dist.new_group(list(range(size)), timeout=LIMIT) for name, (size, _) in cases.items()}
    errors = {}
    for name, (size, function) in cases.items():
        if rank >= size:
            continue
        try:
            function(groups[name])
            errors[name] = ""
        except BaseException:
            errors[name] = traceback.format_exc()
        pathlib.Path(folder, f"{rank}.json").write_text(json.dumps(errors))
    dist.destroy_process_group()


if __name__ == "__main__":
    _run_rank(sys.argv[1], int(sys.argv[2]))
