"""Ranks whose collectives differ: Gloo ends the process that gets more than it expects, which says what all must have alike."""

import os
import signal
import subprocess
import sys
from pathlib import Path

RANK = """
import datetime, sys
import torch, torch.distributed as dist
from plimsoll.shard.ranks import ranks_of
rank, limit = int(sys.argv[2]), datetime.timedelta(seconds=120)
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2, timeout=limit)
ranks_of(None).handle.broadcast([torch.zeros(100 - 99 * rank)])
"""


def test_a_process_that_gloo_ends_says_what_all_ranks_need(tmp_path):
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
    command = [sys.executable, "-c", RANK, tmp_path / "store"]
    ranks = [subprocess.Popen([*command, str(rank)], env=environment, stderr=subprocess.PIPE, text=True) for rank in range(2)]
    said = [process.communicate(timeout=300)[1] for process in ranks]
    assert ranks[1].returncode == -signal.SIGABRT, said
    assert "plimsoll: expected the same collectives on all ranks, got tensors of different sizes" in said[1], said
