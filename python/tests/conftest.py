"""Puts the package of this clone first. PLIMSOLL_BUILD: the build directory, if it is not build/."""

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
def outcomes(request):
    """Outcomes of the cases that run on several ranks and belong to this session's tests."""
    tests = [item.callspec.params for item in request.session.items if "outcomes" in getattr(item, "fixturenames", ())]
    return ranks.run(sorted(parameters["name"] for parameters in tests))
