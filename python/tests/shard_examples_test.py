"""examples/shard: each runs on two processes, or alone, and reaches what it promises."""

import os
import pathlib
import subprocess
import sys

import launched_ranks
import plimsoll
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = plimsoll._library.find().parent / "bin"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def run(*command, **variables):
    path = os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
    environment = {**launched_ranks.environment(), "PYTHONPATH": path, **variables}
    said = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert said.returncode == 0, said.stdout + said.stderr
    assert said.stdout.count("loss") >= 1
    return said.stdout


def test_oss():
    assert "step 200 loaded" in run(*TORCHRUN, ROOT / "examples/shard/oss.py")


def test_fsdp():
    said = run(*TORCHRUN, ROOT / "examples/shard/fsdp.py")
    assert said.count("50% of the parameters here, step 150 loaded") == 2


@pytest.mark.parametrize("name", ["fsdp", "oss"])
def test_one_that_is_run_plainly_says_in_one_line_how_to_start_it(name):
    alone = {key: value for key, value in launched_ranks.environment().items() if key not in ("RANK", "WORLD_SIZE")}
    file = f"examples/shard/{name}.py"
    said = subprocess.run([sys.executable, ROOT / file], capture_output=True, text=True, timeout=300, env=alone, check=False)
    assert said.returncode == 1
    assert said.stderr == f"{name}: expected two processes: .venv/bin/torchrun --standalone --nproc-per-node 2 {file}\n"
    assert (ROOT / "examples/README.md").read_text().count(f"nproc-per-node 2 {file}") == (name == "fsdp")


def test_offload_model():
    run(sys.executable, ROOT / "examples/shard/offload_model.py")


@pytest.mark.skipif(not (PROGRAMS / "example_shard_zero").is_file(), reason="the examples are not built")
@pytest.mark.parametrize(("program", "what"), [("example_shard_zero", "zero2"), ("example_shard_fsdp", "fsdp")])
def test_in_cpp(tmp_path, program, what):
    assert run(*TORCHRUN, "--no-python", PROGRAMS / program, TMPDIR=str(tmp_path)).count(f"{what}: loss") == 1
