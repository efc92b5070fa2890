"""FullyShardedDataParallel on a card: one rank over NCCL, and two ranks of one card over Gloo, which NCCL refuses to share."""

import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import plimsoll.pytorch as te
import pytest
import torch
import torch.distributed as dist
from plimsoll.common import recipe as recipes
from plimsoll.shard import FullyShardedDataParallel as Fsdp
from plimsoll.shard import parameter_device
from plimsoll.shard.ranks import ranks_of

RECIPES = {"none": None, "delayed": recipes.DelayedScaling(amax_history_len=4)}
OPTIONS: tuple[dict[str, Any], ...] = ({}, {"flatten_parameters": False}, {"reshard_after_forward": False, "ordered_passes": 1})
STEPS = 6


def layer():
    torch.manual_seed(2)
    return te.TransformerLayer(256, 512, 4, hidden_dropout=0.0, attention_dropout=0.0, device="cuda")


def losses(model, recipe, clip):
    """On all ranks of the same data, so that the average of their gradients is each one's, to the bit: two halves."""
    torch.manual_seed(3)
    x, target = torch.randn(32, 2, 256, device="cuda"), torch.randn(32, 2, 256, device="cuda")
    optimizer, seen = torch.optim.AdamW(model.parameters(), lr=1e-3), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        with te.fp8_autocast(enabled=recipe is not None, fp8_recipe=recipe):
            y = model(x)
        loss = (y - target).square().mean()
        loss.backward()
        clip(model)
        optimizer.step()
        seen.append(loss.item())
    return seen


def expect_the_losses_of_the_layer_alone(options, recipe):
    plain, inner = layer(), layer()
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), inner.parameters(), strict=True))
    alone = losses(plain, RECIPES[recipe], lambda model: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
    model = Fsdp(inner, **options)
    assert all(p.is_cuda for p in model.parameters()) and model.compute_device.type == "cuda"
    sharded = losses(model, RECIPES[recipe], lambda model: model.clip_grad_norm_(1.0))
    print(recipe, options, "same bits" if alone == sharded else f"{alone} {sharded}")
    assert alone[-1] < 0.9 * alone[0]
    # Products may sum in another order where a weight begins elsewhere: BF16's last place is far above that, and far below a step.
    assert max(abs(a - b) for a, b in zip(alone, sharded, strict=True)) <= 2.0**-8 * alone[0]
    whole = model.state_dict()
    assert whole.keys() == plain.state_dict().keys()
    layer().load_state_dict(whole)


@pytest.fixture
def one_rank(tmp_path):
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_one_rank_over_nccl_has_the_losses_of_the_layer_alone(one_rank, options, recipe):
    expect_the_losses_of_the_layer_alone(options, recipe)


def test_nccl_takes_tensors_of_the_card_and_of_the_cpu(one_rank):
    ranks = ranks_of(None)
    on_card, here = torch.arange(5, device="cuda"), torch.arange(5)
    ranks.handle.broadcast([on_card, here])
    assert on_card.tolist() == here.tolist() == list(range(5))
    assert ranks.gather({"a": 1}) == [{"a": 1}]


def test_gloo_alone_is_one_clear_error(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with pytest.raises(
            ValueError, match=r'expected a process group with a backend for parameters on cuda:0.*"cpu:gloo,cuda:gloo"'
        ):
            Fsdp(layer())
    finally:
        dist.destroy_process_group()


def test_two_ranks_of_one_card_have_the_losses_of_the_layer_alone(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2] / "python")}
    command = [sys.executable, __file__, str(tmp_path / "store")]
    said = [tmp_path / f"rank{rank}.txt" for rank in range(2)]
    ranks = []
    try:
        for rank, file in enumerate(said):
            with file.open("w") as output:
                ranks.append(subprocess.Popen([*command, str(rank)], env=environment, stdout=output, stderr=subprocess.STDOUT))
        codes = wait_for_all(ranks, seconds=120)
    finally:
        for each in ranks:
            each.kill()
            each.wait()
        print(*(file.read_text() for file in said if file.exists()), sep="\n")
    assert codes == [0, 0]


def wait_for_all(programs, seconds):
    """Their exit codes once all have ended, or one has failed, or it is late; None for one that still runs."""
    deadline = time.monotonic() + seconds
    while True:
        codes = [program.poll() for program in programs]
        if None not in codes or any(codes) or time.monotonic() > deadline:
            return codes
        time.sleep(0.1)


def run_rank(store, rank):
    torch.cuda.set_device(0)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=timedelta(seconds=60))
    parameter_device.expect_backend_for = lambda device, ranks: None  # Gloo copies to the CPU, which is right and slow
    for recipe in RECIPES:
        for options in OPTIONS:
            expect_the_losses_of_the_layer_alone(options, recipe)
    dist.destroy_process_group()


if __name__ == "__main__":
    run_rank(Path(sys.argv[1]), int(sys.argv[2]))
