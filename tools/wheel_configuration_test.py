"""The project without its tests and benchmarks, as `make wheel` builds it: CMake takes what pyproject.toml says."""

import pathlib
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).parent.parent


def test_cmake_configures_what_the_wheel_builds(tmp_path: pathlib.Path) -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["scikit-build"]
    definitions = [f"-D{name}={value}" for name, value in build["cmake"]["define"].items()]
    command = ["cmake", "-G", "Ninja", "-S", str(ROOT), "-B", str(tmp_path), f"-DPLIMSOLL_PYTHON={sys.executable}", *definitions]
    configured = subprocess.run(command, capture_output=True, text=True, check=False)
    assert configured.returncode == 0, configured.stderr
    targets = subprocess.run(
        ["ninja", "-C", str(tmp_path), "-t", "targets", "all"], capture_output=True, text=True, check=True
    ).stdout
    for target in build["build"]["targets"]:
        assert f"\n{target}: phony\n" in targets
    assert "_test: " not in targets
