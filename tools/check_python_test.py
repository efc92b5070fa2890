"""check_python on a small project with this one's rules: what is in order passes, each kind of fault is named."""

import importlib.util
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCRIPTS = [
    "bench/compare",
    *(f"tools/check_{name}" for name in ("cuda", "docs", "layers", "openmp", "weak_symbols")),
    *(f"tools/{name}" for name in ("draw_report", "fetch_tokenizers", "gpu_check", "import_gguf")),
]
MODULES = [
    "python/plimsoll/a.py",
    "python/tests/a_test.py",
    "tools/a_test.py",
    "bench/a.py",
    "tests/attack/a.py",
    "tests/gpu/a.py",
]
GOOD = '"""A module."""\n\n\ndef double(x: int) -> int:\n    return 2 * x\n'

pytestmark = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("ruff", "mypy"))), reason="ruff and mypy are not installed"
)


def run(root: pathlib.Path, files: dict[str, str]) -> subprocess.CompletedProcess[str]:
    for name in [*SCRIPTS, *MODULES]:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(files.get(name, GOOD))
    for name in ("pyproject.toml", "requirements.txt", "tools/check_python"):
        shutil.copy(ROOT / name, root / name)
    command = [str(root / "tools" / "check_python"), sys.executable]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_modules_in_order_pass(tmp_path: pathlib.Path) -> None:
    result = run(tmp_path, {})
    assert result.returncode == 0, result.stdout + result.stderr


def test_each_fault_is_named(tmp_path: pathlib.Path) -> None:
    untyped = GOOD + "\n\ndef untyped(x):\n    return x\n"
    bare = GOOD + '\n\nwrong: int = "text"  # type: ignore\n'
    files = {
        "python/plimsoll/a.py": untyped,
        "tools/a_test.py": bare,
        "tools/draw_report": "import os\n" + bare,
        "bench/a.py": '"""A module."""\n\nimport os\n\nx = [ 1 ]\n',
        "python/tests/a_test.py": GOOD + '\n\ndef untyped(x):\n    return double("text")\n',
        "tests/attack/a.py": GOOD + '\n\ndef untyped(x):\n    return double("text")\n',
        "tests/gpu/a.py": GOOD + '\n\ndef untyped(x):\n    return double("text")\n',
    }
    result = run(tmp_path, files)
    assert result.returncode == 1
    assert "bench/a.py:3:8: F401" in result.stdout
    assert "-x = [ 1 ]\n+x = [1]\n" in result.stdout
    assert "python/plimsoll/a.py:8: error: Function is missing a type annotation" in result.stdout
    assert "tools/draw_report:1:8: F401" in result.stdout
    assert 'tools/draw_report:9: error: "type: ignore" comment without error code' in result.stdout
    assert 'tools/a_test.py:8: error: "type: ignore" comment without error code' in result.stdout
    assert 'tests/attack/a.py:9: error: Argument 1 to "double" has incompatible type "str"' in result.stdout
    assert 'tests/gpu/a.py:9: error: Argument 1 to "double" has incompatible type "str"' in result.stdout
    assert 'python/tests/a_test.py:9: error: Argument 1 to "double" has incompatible type "str"' in result.stdout
