"""Finds and loads the shared library that registers the operators."""

import os
from pathlib import Path

import torch
from torch.compiler import config

NAME = "libplimsoll_python.so"
PACKAGE = Path(__file__).resolve().parent


def folders() -> list[Path]:
    """Folders that may hold the library: $PLIMSOLL_BUILD/lib alone if that is set; else in the package, or in the clone's
    build."""
    if build := os.environ.get("PLIMSOLL_BUILD"):
        return [Path(build) / "lib"]
    return [PACKAGE, PACKAGE.parent.parent / "build" / "lib"]


def check_torch(folder: Path) -> None:
    """A library built for another torch would fail with an undefined symbol, or without one."""
    needed = (folder / "plimsoll_torch_version").read_text().strip()
    found = torch.__version__.split("+")[0]
    if found != needed:
        raise ImportError(
            f"plimsoll: expected torch {needed}, for which {folder / NAME} was built, got torch {torch.__version__} in "
            f"{Path(torch.__file__).parent}; install torch {needed}, or build Plimsoll with this Python: "
            "make build PYTHON=/path/to/python"
        )


def find() -> Path:
    """The folder that holds the library."""
    tried = folders()
    for folder in tried:
        if (folder / NAME).is_file():
            return folder
    places = " or ".join(str(folder) for folder in tried)
    raise ImportError(f"plimsoll: expected {NAME} in {places}, found none; run `make build`, or set PLIMSOLL_BUILD")


def program() -> Path:
    """The command, which may not be there: beside the library in a wheel, in bin/ of a build."""
    folder = find()
    return (folder if folder == PACKAGE else folder.parent) / "bin" / "plimsoll"


def mark_caches(library: Path) -> None:
    """torch.compile keeps what it made of our operators on disk, and would use it with another build of them."""
    built = library.stat()
    config.cache_key_tag += f" plimsoll {built.st_size} {built.st_mtime_ns}"


def _after_fork() -> None:
    """In a child whose pool is gone the library has set OpenMP to one thread; MKL has a number of its own, which torch sets."""
    if torch.get_num_threads() == 1:
        torch.set_num_threads(1)


def load() -> None:
    folder = find()
    check_torch(folder)
    torch.ops.load_library(folder / NAME)
    mark_caches(folder / NAME)
    os.register_at_fork(after_in_child=_after_fork)
