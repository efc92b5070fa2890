"""examples/shard: each runs on two processes, or alone, and reaches what it promises."""
import os
import pathlib
import subprocess
import sys

import plimsoll
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
ZERO = plimsoll._library.find().parent / "bin" / "example_shard_zero"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def run(*command, **variables):
    path = os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": path, **variables}
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert said.returncode == 0, said.stdout + said.stderr
    assert said.stdout.count("loss") >= 1
    return said.stdout


def test_oss():
    assert "step 200 loaded" in run(*TORCHRUN, ROOT / "examples/shard/oss.py")


def test_offload_model():
    run(sys.executable, ROOT / "examples/shard/offload_model.py")


@pytest.mark.skipif(not ZERO.is_file(), reason="bin/example_shard_zero is not built")
def test_zero_in_cpp(tmp_path):
    assert run(*TORCHRUN, "--no-python", ZERO, TMPDIR=str(tmp_path)).count("zero2: loss") == 1
