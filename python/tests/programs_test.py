"""Programs that users run: the tutorial, `python -m plimsoll`, and wrappers of torch around our modules."""

import copy
import os
import pathlib
import subprocess
import sys
from typing import Any

import plimsoll
import plimsoll.pytorch as te
import pytest
import torch
import torch.distributed.fsdp

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(*command):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=300, check=False, env=environment)


def test_the_tutorial_trains_in_fp8_as_in_fp32():
    done = run(ROOT / "examples" / "te_tutorial.py", "--steps", "6")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "loss over the last tenth" in done.stdout


def test_the_module_is_the_command():
    program = plimsoll._library.program()
    done = run("-m", "plimsoll", "--help")
    if program.is_file():
        assert done.returncode == 0 and "train" in done.stdout
    else:
        assert done.returncode == 1 and str(program) in done.stderr


@pytest.fixture
def process_group(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def sharded(module):
    return torch.distributed.fsdp.fully_shard(module, mesh=torch.distributed.device_mesh.init_device_mesh("cpu", (1,)))


@pytest.mark.parametrize("wrap", [torch.nn.parallel.DistributedDataParallel, sharded])
def test_data_parallelism_wraps_without_special_code(process_group, wrap):
    torch.manual_seed(5)
    layer: Any = te.TransformerLayer(32, 64, 4, hidden_dropout=0.0, attention_dropout=0.0)
    alone: Any = copy.deepcopy(layer)
    wrapped = wrap(layer)
    for _ in range(2):
        x = torch.randn(5, 2, 32)
        for module in (wrapped, alone):
            with te.fp8_autocast(fp8_group=torch.distributed.group.WORLD):
                output = module(x)
            output.sum().backward()
    for (name, mine), other in zip(layer.named_parameters(), alone.parameters(), strict=True):
        grad: Any = mine.grad.full_tensor() if hasattr(mine.grad, "full_tensor") else mine.grad
        assert torch.equal(grad, other.grad), name
    for (name, mine), other in zip(layer.named_buffers(), alone.named_buffers(), strict=True):
        assert torch.equal(mine, other[1]), name
