"""The project without its tests and benchmarks, as `make wheel` builds it: CMake takes what pyproject.toml says."""

import pathlib
import subprocess
import sys
import tomllib

import pytest
import torch

ROOT = pathlib.Path(__file__).parent.parent


BUILD = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["scikit-build"]


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("wheel")
    definitions = [f"-D{name}={value}" for name, value in BUILD["cmake"]["define"].items()]
    command = ["cmake", "-G", "Ninja", "-S", str(ROOT), "-B", str(folder), f"-DPLIMSOLL_PYTHON={sys.executable}", *definitions]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return folder


def ninja(folder: pathlib.Path, *words: str) -> str:
    return subprocess.run(["ninja", "-C", str(folder), "-t", *words], capture_output=True, text=True, check=True).stdout


def test_cmake_configures_what_the_wheel_builds(configured: pathlib.Path) -> None:
    targets = ninja(configured, "targets", "all")
    for target in BUILD["build"]["targets"]:
        assert f"\n{target}: phony\n" in targets
    assert "_test: " not in targets


def test_cmake_runs_again_when_another_torch_is_installed(configured: pathlib.Path) -> None:
    # CMake writes the version that the package compares with torch's own.
    inputs = ninja(configured, "query", "build.ninja").splitlines()
    assert any(line.endswith(f"{torch.__path__[0]}/version.py") for line in inputs)
