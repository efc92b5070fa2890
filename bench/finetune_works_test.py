"""Figures that finetune.py makes of its timings, and what its contestants do before the first."""

import io
import json
import runpy
import sys
import types
from pathlib import Path

import finetune
import gpt_step
import torch


def test_each_work_has_its_own_peer():
    seconds = {"full-bf16": 2.0, "full-hf-fp32-sdpa": 5.0, "full-hf-bf16-eager": 4.0, "lora-fp8": 1.0, "lora-hf-fp32-sdpa": 3.0}
    runners = [gpt_step.Runner(name, [], {}, restart=True, seconds=[value]) for name, value in seconds.items()]
    works = finetune.works_of(runners, tokens=100)
    assert {work: peer for work, (peer, _) in works.items()} == {"full": "full-hf-bf16-eager", "lora": "lora-hf-fp32-sdpa"}
    assert works["full"][1][0]["speed_over_peer"] == 2.0
    assert works["lora"][1][0]["speed_over_peer"] == 3.0


class OneWeight(torch.nn.Module):
    """In the place of a model of transformers; counts its passes."""

    config = types.SimpleNamespace(vocab_size=9)
    passes = 0

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(self, input_ids, **_):
        self.passes += 1
        return types.SimpleNamespace(loss=(self.weight * input_ids).mean())


def test_theirs_count_saved_bytes_in_a_pass_before_the_first_step_as_ours_do(monkeypatch, capsys):
    model = OneWeight()
    from_pretrained = lambda *_, **__: model
    loader = types.SimpleNamespace(from_pretrained=from_pretrained)
    monkeypatch.setitem(sys.modules, "transformers", types.SimpleNamespace(AutoModelForCausalLM=loader, __version__="0"))
    monkeypatch.setitem(sys.modules, "peft", types.SimpleNamespace(__version__="0"))
    words = "worker --model=here --dtype=fp32 --attention=sdpa --lora-rank=0 --context=8 --batch=1"
    monkeypatch.setattr(sys, "argv", [*words.split(), f"--threads={torch.get_num_threads()}"])
    monkeypatch.setattr(sys, "stdin", io.StringIO("step\n"))
    runpy.run_path(str(Path(finetune.__file__).with_name("finetune_worker.py")), run_name="__main__")
    ready, answer = map(json.loads, capsys.readouterr().out.splitlines())
    assert ready["saved_bytes"] == 9 * 8 and answer["seconds"] > 0
    assert model.passes == 3  # the one that counts, a step, and the step that is timed
