"""Verdicts of auto_outliers.py and auto_cost.py, and the outliers of the former."""

import auto_cost
import auto_outliers
import pytest
import torch
import transformers


def run(loss, narrow=None, changes=()):
    """Lines of a run's log."""
    lines = [{"step": 1, "loss": 2.0, "precision": {"changes": list(changes)}}, {"final_val_loss": loss}]
    if narrow is not None:
        lines[-1]["precision"] = {"formats": ["e4m3", "bf16"], "share": [narrow, 1 - narrow]}
    return lines


def verdict(fp8=(1.1, 1.1), auto=(1.002, 0.999), narrow=(0.9, 0.8)):
    return auto_outliers.table(
        {
            "bf16": [run(1.0), run(1.0)],
            "fp8": [run(loss) for loss in fp8],
            "auto": [run(*both) for both in zip(auto, narrow, strict=True)],
        }
    )


def test_auto_beside_bf16_where_fp8_fails_is_good():
    lines, good = verdict()
    assert good
    assert [line.split() for line in lines[1:]] == [
        ["fp8", "+10.00%", "+10.00%", "+10.00%"],
        ["auto", "+0.20%", "-0.10%", "+0.05%"],
        ["in", "e4m3", "90.0%", "80.0%"],
        ["in", "bf16", "10.0%", "20.0%"],
    ]


@pytest.mark.parametrize("loss", [None, float("nan"), float("inf")])
def test_a_run_that_diverges_loses_more_than_any_number(loss):
    assert verdict(fp8=(loss, 1.1))[1]
    assert not verdict(auto=(loss, 1.0))[1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"fp8": (1.019, 1.019)}, "these outliers show nothing"),
        ({"auto": (1.0031, 1.0031)}, "auto is +0.31 % off"),
        ({"auto": (0.9969, 0.9969)}, "auto is -0.31 % off"),
        ({"narrow": (0.9, 0.79)}, "79.0 % of the multiply-adds"),
    ],
)
def test_each_bar_is_held(change, words):
    lines, good = verdict(**change)
    assert not good and words in lines[-1]


def test_changes_of_several_runs_are_counted():
    change = {"layer": "blocks.1", "product": "output", "from": "e4m3", "to": "bf16", "reason": "error", "operand": "input"}
    numbers = [{**change, "error": error, "bound": 0.049} for error in (0.5, 0.6)]
    back = {**change, "from": "bf16", "to": "e4m3", "reason": "quiet", "error": 0.02, "bound": 0.049}
    assert auto_outliers.counted_changes([run(1.0, 0.9, numbers[:1]), run(1.0, 0.9, [numbers[1], back])]) == [
        "  blocks.1 output: e4m3 -> bf16 after step 1, error of input, bound 0.049, measured 0.6, in 2 of 2 runs",
        "  blocks.1 output: bf16 -> e4m3 after step 1, quiet of input, bound 0.049, measured 0.02, in 1 of 2 runs",
    ]


def model_of_two_blocks():
    torch.manual_seed(0)
    shape = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape, num_key_value_heads=2)).eval()


def test_grafted_outliers_stand_in_the_hidden_channels_and_change_no_bit_of_the_function():
    source, grafted = model_of_two_blocks(), model_of_two_blocks()
    auto_outliers.graft(grafted, [1], [3, 17], 14)
    auto_outliers.check_same_function(grafted, source)
    hidden = []
    for model in (source, grafted):
        with torch.no_grad():
            model.model.layers[1].mlp.down_proj.register_forward_hook(lambda _, arguments, output: hidden.append(arguments[0]))
            model(torch.arange(64)[None])
    factor = torch.ones(32)
    factor[[3, 17]] = 2.0**14
    assert torch.equal(hidden[1], hidden[0] * factor)


def test_another_function_is_an_error():
    source, changed = model_of_two_blocks(), model_of_two_blocks()
    with torch.no_grad():
        changed.model.layers[1].mlp.up_proj.weight[3] *= 2
    with pytest.raises(SystemExit, match="expected the same logits"):
        auto_outliers.check_same_function(changed, source)


def log(measured, other, steps=48):
    """measured, other: seconds of a step."""
    return [{"step": step, "cpu_s": measured if auto_cost.is_measured(step) else other} for step in range(1, steps + 1)]


def test_a_step_is_the_mean_of_a_cycle():
    assert auto_cost.step_seconds(log(3.0, 1.0)) == {"step": (3.0 + 15 * 1.0) / 16, "measured": 3.0, "other": 1.0}


def test_a_product_in_another_format_ends_the_comparison():
    with pytest.raises(ValueError, match="got 1 changes"):
        auto_cost.step_seconds([*log(1.0, 1.0), {"step": 49, "cpu_s": 1.0, "precision": {"changes": [{}]}}])


def cost(*steps):
    """steps: of auto, each of a round in which a step of the others takes one second."""
    base = auto_cost.step_seconds(log(1.0, 1.0))
    return auto_cost.report([{"e4m3": base, "fp8": base, "auto": auto_cost.step_seconds(log(step, step))} for step in steps])


def test_the_median_of_the_pairs_is_held():
    assert cost(1.01, 1.5, 1.0)[1]
    lines, good = cost(1.03, 1.5, 1.0)
    assert not good and "+3.00%" in lines[1] and "beyond the limit" in lines[1]
    assert not cost(float("nan"))[1]
