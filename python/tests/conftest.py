"""Loads the operators. PLIMSOLL_BUILD: the build directory, if it is not build/."""
import os
import pathlib

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
torch.ops.load_library(pathlib.Path(os.environ.get("PLIMSOLL_BUILD", ROOT / "build")) / "lib" / "libplimsoll_python.so")
