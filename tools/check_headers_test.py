"""The target `headers` (cmake/PlimsollHeaders.cmake) on small trees: a header that leans on what others include is named."""

import pathlib
import shutil
import subprocess

import pytest

pytestmark = pytest.mark.skipif(
    not (shutil.which("clang++-14") or shutil.which("clang++")), reason="no clang++, which tools/setup --check installs"
)

PROJECT = """
cmake_minimum_required(VERSION 3.24)
project(Small LANGUAGES CXX)
add_library(plimsoll_torch INTERFACE IMPORTED)
target_include_directories(plimsoll_torch INTERFACE ${{CMAKE_SOURCE_DIR}}/torch)
target_compile_definitions(plimsoll_torch INTERFACE TORCH)
add_library(plimsoll_cpp-httplib INTERFACE IMPORTED)
target_compile_definitions(plimsoll_cpp-httplib INTERFACE HTTPLIB)
set(PLIMSOLL_TORCH_PACKAGE ${{CMAKE_SOURCE_DIR}}/torch)
include({cmake}/PlimsollHeaders.cmake)
"""
CMAKE = pathlib.Path(__file__).resolve().parent.parent / "cmake"
GOOD = "#pragma once\n#include <vector>\nstd::vector<int> counts();\n"


def build(root: pathlib.Path, files: dict[str, str]) -> subprocess.CompletedProcess[str]:
    (root / "CMakeLists.txt").write_text(PROJECT.format(cmake=CMAKE))
    (root / "torch").mkdir(exist_ok=True)
    (root / "torch" / "version.py").touch()
    for name, text in files.items():
        path = root / "plimsoll" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    subprocess.run(["cmake", "-S", root, "-B", root / "build", "-G", "Ninja"], capture_output=True, check=True)
    return subprocess.run(["ninja", "-C", root / "build", "-k", "0", "headers"], capture_output=True, text=True, check=False)


def test_headers_that_include_what_they_use_pass(tmp_path: pathlib.Path) -> None:
    result = build(
        tmp_path, {"a/a.h": GOOD, "b/b.h": '#pragma once\n#include "plimsoll/a/a.h"\ninline auto n = counts().size();\n'}
    )
    assert result.returncode == 0, result.stdout


def test_a_header_that_leans_on_another_one_is_named(tmp_path: pathlib.Path) -> None:
    result = build(tmp_path, {"a/a.h": GOOD, "a/b.h": "#pragma once\nstd::vector<int> more();\n"})
    assert result.returncode != 0
    assert "plimsoll/a/b.h:2" in result.stdout
    assert "plimsoll/a/a.h" not in result.stdout


def test_headers_for_tests_alone_are_left_out(tmp_path: pathlib.Path) -> None:
    result = build(tmp_path, {"a/a.h": GOOD, "a/a_testing.h": "std::vector<int> more();\n"})
    assert result.returncode == 0, result.stdout


def test_a_header_is_checked_again_when_what_it_includes_changed(tmp_path: pathlib.Path) -> None:
    files = {"a/a.h": GOOD, "b/b.h": '#pragma once\n#include "plimsoll/a/a.h"\nstd::vector<int> more();\n'}
    assert build(tmp_path, files).returncode == 0
    assert "no work to do" in build(tmp_path, {}).stdout
    result = build(tmp_path, {"a/a.h": "#pragma once\n"})
    assert result.returncode != 0
    assert "plimsoll/b/b.h:3" in result.stdout


def test_a_precompiled_header_is_seen_by_those_alone_that_reach_it(tmp_path: pathlib.Path) -> None:
    files = {
        "a/a.h": "#pragma once\n#include <nlohmann/json.hpp>\n",
        "b/b.h": '#pragma once\n#include "plimsoll/a/a.h"\ninline nlohmann::json one;\n',
        "b/c.h": "#pragma once\ninline nlohmann::json two;\n",
    }
    result = build(tmp_path, files)
    assert result.returncode != 0
    assert "plimsoll/b/c.h:2" in result.stdout
    assert "plimsoll/b/b.h" not in result.stdout
