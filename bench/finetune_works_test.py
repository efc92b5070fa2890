"""Figures that finetune.py makes of its timings."""

import finetune
import gpt_step


def test_each_work_has_its_own_peer():
    seconds = {"full-bf16": 2.0, "full-hf-fp32-sdpa": 5.0, "full-hf-bf16-eager": 4.0, "lora-fp8": 1.0, "lora-hf-fp32-sdpa": 3.0}
    runners = [gpt_step.Runner(name, [], {}, restart=True, seconds=[value]) for name, value in seconds.items()]
    works = finetune.works_of(runners, tokens=100)
    assert {work: peer for work, (peer, _) in works.items()} == {"full": "full-hf-bf16-eager", "lora": "lora-hf-fp32-sdpa"}
    assert works["full"][1][0]["speed_over_peer"] == 2.0
    assert works["lora"][1][0]["speed_over_peer"] == 3.0
