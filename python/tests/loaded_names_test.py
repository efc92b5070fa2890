"""Objects of one name in two libraries: the loader gives both the first, whose size may be another."""

import subprocess
from pathlib import Path

import plimsoll
import pytest
import torch
from program import PROGRAM

TORCH = Path(torch.__file__).parent / "lib"
# cmake/PlimsollLibraries.cmake says why it comes before torch's in a program.
SHARED = {"FLAGS_minloglevel": "libsentencepiece.so.0"}


def lines_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def needed(binary):
    """Libraries in the order in which the loader looks for names."""
    return [line.split("[")[1].rstrip("]") for line in lines_of("readelf", "-d", str(binary)) if "(NEEDED)" in line]


def objects_of(library):
    """Names of its variables that other libraries see. Those of weak ones, templates', are meant to be one."""
    entries = [line.split() for line in lines_of("nm", "-D", "--defined-only", str(library))]
    return {name.split("@")[0] for _, kind, name in (entry for entry in entries if len(entry) == 3) if kind in "BDGRS"}


@pytest.mark.parametrize("binary", [PROGRAM, plimsoll._library.find() / "libplimsoll_python.so"], ids=["program", "library"])
def test_variables_that_two_libraries_define_are_known(binary):
    of_torch = objects_of(TORCH / "libtorch_cpu.so") | objects_of(TORCH / "libc10.so")
    places = dict(line.split(" => ") for line in lines_of("ldd", str(binary)) if " => /" in line)
    order = needed(binary)
    for name, path in places.items():
        library = name.strip()
        if library.startswith(("libtorch", "libc10")):
            continue
        for shared in objects_of(path.split()[0]) & of_torch:
            assert SHARED.get(shared) == library, f"{library} and torch's libraries define {shared}"
            assert order.index(library) < min(order.index("libtorch_cpu.so"), order.index("libc10.so"))
