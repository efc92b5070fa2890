"""Puts the package of this clone first. PLIMSOLL_BUILD: the build directory, if it is not build/."""

import fcntl
import json
import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import plimsoll  # noqa: F401  registers the operators
import ranks
import torch


@pytest.fixture(scope="module")
def one_thread():
    """For models that are too small for more, which would wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def outcomes(request, tmp_path_factory):
    """Outcomes of the cases that run on several ranks and belong to this session's tests. Of the processes that share a
    session the first that needs them runs all."""
    tests = [item.callspec.params for item in request.session.items if "outcomes" in getattr(item, "fixturenames", ())]
    names = sorted(parameters["name"] for parameters in tests)
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return ranks.run(names)
    file = tmp_path_factory.getbasetemp().parent / "outcomes.json"
    with open(file.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            file.write_text(json.dumps(ranks.run(names).errors))
        return ranks.Outcomes(json.loads(file.read_text()))
