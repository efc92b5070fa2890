"""check_weak_symbols and check_openmp on small programs, good and bad."""

import pathlib
import subprocess
import sys

import pytest

TOOLS = pathlib.Path(__file__).parent


def run(tool: str, *arguments: pathlib.Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOLS / tool), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def compile_source(directory: pathlib.Path, output: str, source: str, *options: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    command = ["g++", "-x", "c++", "-", "-x", "none", "-o", str(directory / output), *options]
    subprocess.run(command, input=source, text=True, check=True)


def test_functions_with_internal_linkage_pass(tmp_path: pathlib.Path) -> None:
    source = "namespace { int twice(int x) { return 2 * x; } }\nint entry(int x) { return twice(x); }\n"
    compile_source(tmp_path, "sum_avx512.cpp.o", source, "-c")
    result = run("check_weak_symbols", tmp_path)
    assert (result.returncode, result.stdout) == (0, "weak symbols: ok (1 objects)\n")


def test_an_inline_function_in_an_isa_file_is_named(tmp_path: pathlib.Path) -> None:
    source = "inline int twice(int x) { return 2 * x; }\nint entry(int x) { return twice(x); }\n"
    compile_source(tmp_path, "sum_avx512_bf16.cpp.o", source, "-c")
    compile_source(tmp_path, "sum_cpu.cpp.o", source, "-c")
    result = run("check_weak_symbols", tmp_path)
    assert result.returncode == 1
    assert "sum_avx512_bf16.cpp.o: weak function twice(int): expected internal linkage" in result.stdout
    assert result.stdout.endswith("weak symbols: 1 violations\n")


def test_a_build_without_isa_objects_fails(tmp_path: pathlib.Path) -> None:
    assert run("check_weak_symbols", tmp_path).returncode == 1


PROJECT = """
cmake_minimum_required(VERSION 3.24)
project(Small LANGUAGES CXX)
option(PLIMSOLL_PCH "" OFF)
include({cmake}/PlimsollTargets.cmake)
plimsoll_library(sum SOURCES sum_cpu.cpp ISA_AVX512 {name})
"""


@pytest.mark.parametrize("name, passes", [("sum_few_avx512.cpp", True), ("sum_amx.cpp", True), ("sum_avx512_few.cpp", False)])
def test_a_source_whose_object_would_not_be_looked_at_is_named(tmp_path: pathlib.Path, name: str, passes: bool) -> None:
    (tmp_path / "CMakeLists.txt").write_text(PROJECT.format(cmake=TOOLS.parent / "cmake", name=name))
    for source in ("sum_cpu.cpp", name):
        (tmp_path / source).touch()
    command = ["cmake", "-S", str(tmp_path), "-B", str(tmp_path / "build"), "-G", "Ninja"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if passes:
        assert result.returncode == 0, result.stderr
    else:
        assert f"_avx512_bf16 or _amx, got {name}" in " ".join(result.stderr.split())


def link_with(directory: pathlib.Path, program: str, *runtimes: str) -> None:
    """A program that loads an empty library under each of the names."""
    for runtime in runtimes:
        compile_source(directory, runtime, "", "-shared", f"-Wl,-soname,{runtime}")
    libraries = [str(directory / runtime) for runtime in runtimes]
    compile_source(directory / "bin", program, "int main() {}\n", "-Wl,--no-as-needed", *libraries, f"-Wl,-rpath,{directory}")


def test_one_openmp_runtime_passes(tmp_path: pathlib.Path) -> None:
    link_with(tmp_path, "first", "libgomp.so.1")
    link_with(tmp_path, "second", "libgomp.so.1")
    link_with(tmp_path, "third")
    result = run("check_openmp", tmp_path)
    assert (result.returncode, result.stdout) == (0, "openmp: ok (3 programs, libgomp.so.1)\n")


def test_two_openmp_runtimes_fail(tmp_path: pathlib.Path) -> None:
    link_with(tmp_path, "program", "libgomp-a34b3233.so.1", "libiomp5.so")
    result = run("check_openmp", tmp_path)
    assert result.returncode == 1
    assert result.stdout.endswith("openmp: expected one runtime, got 2\n")


def test_no_openmp_runtime_at_all_fails(tmp_path: pathlib.Path) -> None:
    link_with(tmp_path, "program")
    assert run("check_openmp", tmp_path).stdout.endswith("openmp: expected one runtime, got 0\n")
