"""Puts the package of this clone first. PLIMSOLL_BUILD: the build directory, if it is not build/."""
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import plimsoll  # noqa: E402, F401  registers the operators
import ranks  # noqa: E402


@pytest.fixture(scope="session")
def outcomes(request):
    """Of the cases that run on several ranks, in all test modules of this session."""
    modules = {item.module.__name__ for item in request.session.items}
    return ranks.run(sorted(name for name in modules if ranks.names(name)))
