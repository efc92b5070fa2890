"""The attacks on runs (tests/attack), each for some seconds; `make attack` gives them minutes."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from shard_command_test import pytestmark  # noqa: F401

ROOT = pathlib.Path(__file__).resolve().parents[2]
SECONDS = {"kills": "8", "writers": "8", "ranks": "7", "memory": "10"}


@pytest.mark.parametrize("name", SECONDS)
def test_attack_finds_nothing(tmp_path, name):
    attack, seconds = ROOT / "tests" / "attack" / f"{name}.py", SECONDS[name]
    command = [sys.executable, attack, "--seconds", seconds, "--json", tmp_path / "result"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=900, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "result").read_text())
    assert result["count"] > 0 and result["failures"] == []
