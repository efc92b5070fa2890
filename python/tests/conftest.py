"""Puts the package of this clone first. PLIMSOLL_BUILD: the build directory, if it is not build/."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import plimsoll  # noqa: E402, F401  registers the operators
