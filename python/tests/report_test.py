"""plimsoll.report: one page from the logs of training runs, and one clear line where a log is not one."""

import json
import pathlib
import re
from typing import Any

import plimsoll
import pytest
import torch
from plimsoll.report import command, curves, operands, precision, runs
from rounding import approx

plotly = pytest.importorskip("plotly")
ROOT = pathlib.Path(__file__).resolve().parents[2]


def slot(amax, scale, headroom, name="e4m3"):
    return {"format": name, "amax": amax, "scale": scale, "headroom_bits": headroom, "non_finite": 0}


def write_run(folder, steps=6, recipe="fp8", finished=True, scaled=True):
    folder.mkdir(parents=True)
    lines = []
    for step in range(1, steps + 1):
        line: dict[str, Any] = {
            "step": step,
            "loss": 5.0 / step,
            "val_loss": 5.0 / step + 0.1 if step % 3 == 0 else None,
            "tokens_per_s": 100.0 + step,
            "headroom_bits": 1.0 - step / 8 if scaled else None,
            "headroom_slot": "blocks.0.fc1/input" if scaled else "",
        }
        if scaled and step % 2 == 1:
            line["slots"] = {
                f"blocks.{layer}.fc1/{role}": slot(step, step / 448, layer / 4)
                for layer in (0, 2, 10)
                for role in ("input", "weight")
            }
            line["slots"]["blocks.0.fc1/output"] = slot(0.0, 1.0, None, "bf16")
        lines.append(line)
    if finished:
        lines.append(
            {
                "recipe": recipe,
                "steps": steps,
                "parameters": 1234567,
                "final_val_loss": 2.5,
                "tokens_per_s": 103.0,
                "saved_activation_bytes": 2_000_000,
                "peak_rss_bytes": 3_000_000,
            }
        )
    (folder / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def sections_of(page):
    found = re.search(r'<script type="application/json" id="sections">(.*?)</script>', page, re.DOTALL)
    assert found
    return {section["title"]: section for section in json.loads(found.group(1))}


def test_a_comparison_becomes_one_page_that_needs_no_network(tmp_path):
    write_run(tmp_path / "demo" / "fp8")
    write_run(tmp_path / "demo" / "fp32", recipe="fp32", scaled=False)
    path = plimsoll.report(tmp_path / "demo", tmp_path / "page.html")
    page = path.read_text()
    assert not re.search(r'<(script|link|img)[^>]+(src|href)="(?!data:)', page.replace("</script>", "\n"))
    assert "Plotly" in page and "1,234,567" in page
    found = sections_of(page)
    assert list(found) == ["Loss", "Speed and memory", "Headroom", "Amax and scale"]
    names = [trace["name"] for trace in found["Loss"]["figures"]["loss"]["data"]]
    assert names == ["fp32", "fp32, validation", "fp8", "fp8, validation"]
    (difference,) = found["Loss"]["figures"]["difference from fp32"]["data"]
    assert difference["name"] == "fp8" and difference["y"] == [0.0] * 6
    assert [bar["y"] for bar in found["Speed and memory"]["figures"]["bars"]["data"]] == [[103.0, 103.0], [2.0, 2.0], [3.0, 3.0]]
    for section in found.values():
        for figure in section["figures"].values():
            plotly.graph_objects.Figure(figure)  # every key and value is plotly's


def test_the_heat_map_is_layers_in_order_by_recorded_steps(tmp_path):
    run = runs.read_runs(write_run(tmp_path / "run"))
    figures = operands.headroom(run)
    assert list(figures) == ["run: input", "run: weight"]
    heat = figures["run: input"]["data"][0]
    assert heat["y"] == ["blocks.0.fc1", "blocks.2.fc1", "blocks.10.fc1"]
    assert heat["x"] == [1, 3, 5]
    assert heat["z"] == [[0.0] * 3, [0.5] * 3, [2.5] * 3]


def test_histories_have_amax_and_scale_of_each_operand(tmp_path):
    figures = operands.histories(runs.read_runs(write_run(tmp_path / "run")))
    assert list(figures) == ["blocks.0.fc1", "blocks.2.fc1", "blocks.10.fc1"]
    traces = {(trace["name"], trace.get("yaxis", "y")): trace["y"] for trace in figures["blocks.0.fc1"]["data"]}
    assert traces["run, input", "y"] == [1, 3, 5]
    assert traces["run, input", "y2"] == [step / 448 for step in (1, 3, 5)]
    assert traces["run, output", "y"] == [None] * 3  # 0 has no logarithm
    assert ("run, output", "y2") not in traces


def test_long_runs_are_thinned_to_means(tmp_path):
    (run,) = runs.read_runs(write_run(tmp_path / "run", steps=2 * curves.MOST_POINTS + 1, scaled=False))
    trace = curves.losses([run])["data"][0]
    assert len(trace["y"]) <= curves.MOST_POINTS and trace["x"][-1] == 2 * curves.MOST_POINTS + 1
    assert trace["y"][0] == approx((5 + 5 / 2 + 5 / 3) / 3, 8, torch.float64)


def test_a_run_that_goes_on_is_shown_so_far(tmp_path, capsys):
    log = write_run(tmp_path / "run", finished=False) / "train.jsonl"
    page = tmp_path / "page.html"
    assert command.main([str(log), "--out", str(page)]) == 0
    assert capsys.readouterr().out == f"report: {page}\n"
    assert "6, not finished" in page.read_text()
    assert sections_of(page.read_text())["Speed and memory"]["figures"]["bars"]["data"][0]["y"] == [103.5]


def test_a_page_takes_the_place_of_a_page_alone(tmp_path, capsys):
    log = write_run(tmp_path / "run") / "train.jsonl"
    before = log.read_bytes()
    assert command.main([str(log), "--out", str(log)]) == 1
    assert (
        capsys.readouterr().err
        == f"plimsoll: report: {log}: expected a new file or an earlier page of plimsoll report, got another file\n"
    )
    assert log.read_bytes() == before
    page = tmp_path / "page.html"
    page.touch()
    plimsoll.report(log, page)
    plimsoll.report([log, write_run(tmp_path / "other")], page)
    assert "other" in page.read_text()


def test_runs_of_one_name_are_told_apart(tmp_path):
    found = runs.read_runs([write_run(tmp_path / "a" / "fp8"), write_run(tmp_path / "b" / "fp8")])
    assert [run.label for run in found] == ["a/fp8", "b/fp8"]


def test_names_cannot_end_the_script(tmp_path):
    folder = write_run(tmp_path / "run")
    log = folder / "train.jsonl"
    log.write_text(log.read_text().replace("blocks.0.fc1", "</script><b>"))
    found = sections_of(plimsoll.report(folder, tmp_path / "page.html").read_text())
    assert "</script><b>" in found["Amax and scale"]["figures"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "train.jsonl: expected one step or more, got an empty log"),
        (
            '{"step": 1, "loss": 2.0}\n{"step": 2, "lo',
            'train.jsonl: expected a JSON object in line 2, got \'{"step": 2, "lo\' .*--resume',
        ),
        ("[1]\n", "expected a JSON object in line 1, got '\\[1\\]'"),
        ('{"name": "x"}\n', 'expected "step" and "loss", or the summary of a run, in line 1'),
        ('{"step": 1, "loss": "low"}\n', 'expected "step" and "loss"'),
        ('{"final_val_loss": 2.0}\n', "expected one step or more, got none"),
        ("[" * 100_000, "expected a JSON object in line 1"),
        (
            '{"step": 1, "loss": 2.0}\n{"final_val_loss": 2.0, "parameters": {}}\n',
            "expected numbers as final_val_loss, parameters, .* in line 2",
        ),
        ('{"step": 1, "loss": 2.0, "headroom_bits": "low"}\n', "expected numbers as .* in line 1"),
        ('{"step": 1, "loss": 2.0, "slots": {"a/input": 5}}\n', "expected slots of numbers in line 1"),
        ('{"step": 1, "loss": 2.0, "slots": {"a/input": {"amax": []}}}\n', "expected slots of numbers in line 1"),
    ],
)
def test_bad_logs_are_one_clear_line(tmp_path, capsys, text, message):
    (tmp_path / "train.jsonl").write_text(text)
    with pytest.raises(ValueError, match=message):
        plimsoll.report(tmp_path, tmp_path / "page.html")
    assert command.main([str(tmp_path), "--out", str(tmp_path / "page.html")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("plimsoll: report: ") and error.count("\n") == 1
    assert not (tmp_path / "page.html").exists()


def test_a_page_that_cannot_be_written_is_one_clear_line(tmp_path, capsys):
    (tmp_path / "train.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    assert command.main([str(tmp_path), "--out", str(tmp_path / "nowhere" / "page.html")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("plimsoll: report: ") and error.endswith("No such file or directory\n") and "Errno" not in error


VALUE = {"name": "x", "headroom_bits_before": 1.0, "headroom_bits": None}
CERTIFICATE = {
    "values": [VALUE],
    "exponents": {"residual": 0},
    "fp32": {"bit_identical": True},
    "fp16": {"logits_relative_l2": 0.1},
}


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("parity.json", {"dtypes": {"fp16": None}}),
        ("parity.json", {"dtypes": {"fp32": {"headroom_fp16": True}}}),
        ("parity.json", {"dtypes": {"fp16": {"headroom": {"x": "low"}}}}),
        ("parity.json", {"dtypes": {}, "reference": 5}),
        ("plimsoll_gauge.json", {**CERTIFICATE, "values": [5]}),
        ("plimsoll_gauge.json", {**CERTIFICATE, "values": [{**VALUE, "name": {}}]}),
        ("plimsoll_gauge.json", {**CERTIFICATE, "values": [{"name": "x"}]}),
        ("plimsoll_gauge.json", {**CERTIFICATE, "exponents": {}}),
        ("plimsoll_gauge.json", {**CERTIFICATE, "fp32": {}}),
        ("plimsoll_gauge.json", {**CERTIFICATE, "fp16": {"logits_relative_l2": "low"}}),
    ],
)
def test_results_whose_members_are_of_another_kind_are_one_clear_line(tmp_path, capsys, name, found):
    (tmp_path / name).write_text(json.dumps(found))
    assert command.main([str(tmp_path / name), "--out", str(tmp_path / "page.html")]) == 1
    error = capsys.readouterr().err
    assert f"{name}: expected " in error and error.count("\n") == 1


def test_values_with_names_of_no_model_are_shown(tmp_path):
    values = [{**VALUE, "name": name} for name in ("encoder.block.0.layer.1", "x", "x \u00b2", "\0")]
    (tmp_path / "plimsoll_gauge.json").write_text(json.dumps({**CERTIFICATE, "values": values}))
    plimsoll.report(tmp_path / "plimsoll_gauge.json", tmp_path / "page.html")
    assert "4 of 4 values beyond" in (tmp_path / "page.html").read_text()


def test_paths_without_logs_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere: expected a log or the directory of a run, found nothing"):
        plimsoll.report([tmp_path / "nowhere"])
    with pytest.raises(FileNotFoundError, match=r"expected train.jsonl in it, or in directories in it, found none"):
        plimsoll.report(tmp_path)
    with pytest.raises(ValueError, match="expected one run or more, got none"):
        plimsoll.report([])
    (tmp_path / "train.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="got a file that is not text"):
        plimsoll.report(tmp_path)


def test_values_that_are_not_finite_are_gaps(tmp_path):
    (tmp_path / "train.jsonl").write_text(
        '{"step": 1, "loss": null}\n{"step": 2, "loss": NaN, "speed": 1e999}\n{"step": 3, "loss": 1.0}\n'
    )
    (run,) = runs.read_runs(tmp_path)
    assert run.series("loss") == ([3], [1.0])
    plimsoll.report(tmp_path, tmp_path / "page.html")


def row_of(page, label):
    """Cells of the table's row that begins with the label."""
    found = re.search(rf"<tr><td>{label}</td>(.*?)</tr>", page)
    assert found
    return re.findall("<td>(.*?)</td>", found.group(1))


@pytest.mark.parametrize(
    ("members", "cells"),
    [
        ({"final_val_loss": None, "diverged": True}, ["NaN", "–"]),
        ({"final_val_loss": None, "diverged": False}, ["–", "–"]),
        ({"final_val_loss": 0.0}, ["0.0000", "-100.00 %"]),
        (None, ["0.9333", "-62.67 %"]),  # it goes on
    ],
)
def test_the_validation_loss_is_that_of_the_end(tmp_path, members, cells):
    write_run(tmp_path / "demo" / "fp32", recipe="fp32")
    log = write_run(tmp_path / "demo" / "fp8", finished=members is not None) / "train.jsonl"
    if members is not None:
        *steps, summary = log.read_text().splitlines()
        log.write_text("\n".join([*steps, json.dumps({**json.loads(summary), **members})]) + "\n")
    page = plimsoll.report(tmp_path / "demo", tmp_path / "page.html").read_text()
    assert row_of(page, "fp8")[3:5] == cells
    assert sections_of(page)["Loss"]["figures"]["loss"]["layout"]["yaxis"]["title"]["text"] == "loss, nats"


def test_parity_of_a_decoder_has_its_own_figures(tmp_path):
    entry = {"finite": True, "perplexity": 21.43219, "bytes_per_weight": 4.0, "tokens_per_s": 1234.4}
    kl = {"logits_kl": 0.0123, "logits_kl_p99": 0.1, "logits_kl_p999": None, "top1_agreement": 0.97, "top5_agreement": 0.99}
    path = tmp_path / "judged.json"
    found = {"tokens": 9, "dtypes": {"bf16": {**entry, **kl}}}
    path.write_text(json.dumps(found))
    page = plimsoll.report(path, tmp_path / "page.html").read_text()
    assert row_of(page, "bf16") == ["21.4322", "0.0123", "0.1", "NaN", "0.97", "0.99", "4", "1,234"]
    assert "headroom" not in page and "reference" not in page
    path.write_text(json.dumps({**found, "reference": entry, "model": "codes", "against": "<values>"}))
    page = plimsoll.report(path, tmp_path / "page.html").read_text()
    assert row_of(page, "reference") == ["21.4322", *["–"] * 5, "4", "1,234"]
    assert "codes against FP32 of &lt;values&gt;, the reference" in page


def change(layer, product, **more):
    return {
        "layer": layer,
        "product": product,
        "from": "e4m3",
        "to": "bf16",
        "reason": "error",
        "operand": "input",
        "error": 0.081,
        "bound": 0.049,
        **more,
    }


def write_auto_run(folder):
    """Twelve steps; blocks.0.fc1/output is promoted after the 4th and demoted after the 9th."""
    changes = {
        4: change("blocks.0.fc1", "output"),
        9: change("blocks.0.fc1", "output", **{"from": "bf16", "to": "e4m3", "reason": "quiet", "error": 0.6, "bound": 0.75}),
    }
    lines = []
    for step in range(1, 13):
        wide = 0.25 if 4 < step <= 9 else 0.0
        precision: dict[str, Any] = {"formats": ["e4m3", "bf16"], "share": [1 - wide, wide]}
        if step in changes:
            precision["changes"] = [changes[step]]
        if step == 1:
            precision["products"] = {f"blocks.{layer}.fc1/{name}": {} for layer in (10, 0) for name in ("output", "grad_input")}
        lines.append({"step": step, "loss": 1.0, "precision": precision})
    folder.mkdir(parents=True)
    (folder / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_a_run_that_chose_its_formats_shows_them_by_layer_and_step(tmp_path):
    page = plimsoll.report(write_auto_run(tmp_path / "run"), tmp_path / "page.html").read_text()
    figures = sections_of(page)["Formats"]["figures"]
    assert list(figures) == ["run: multiply-adds", "run: output", "run: grad_input"]
    (band,) = figures["run: output"]["data"]
    assert band["y"] == ["blocks.0.fc1", "blocks.10.fc1"]
    assert band["x"] == list(range(1, 13))
    assert band["z"] == [[0] * 4 + [1] * 5 + [0] * 3, [0] * 12]
    assert band["text"][0][4] == "bf16 since step 5: error of input 0.081 above 0.049"
    assert band["text"][0][3] == "e4m3 from the first step on"
    assert band["text"][0][11] == "e4m3 since step 10: quiet, mean load 0.6 below 0.75"
    assert figures["run: grad_input"]["data"][0]["z"] == [[0] * 12, [0] * 12]
    narrow, wide = figures["run: multiply-adds"]["data"]
    assert narrow["y"] == [100.0] * 4 + [75.0] * 5 + [100.0] * 3
    assert wide["y"] == [0.0] * 4 + [25.0] * 5 + [0.0] * 3
    for figure in figures.values():
        plotly.graph_objects.Figure(figure)
    assert "<td>blocks.0.fc1/output</td><td>e4m3 → bf16</td><td>error of input 0.081 above 0.049</td>" in page


def test_each_reason_of_a_change_has_words_of_its_own():
    rule = (ROOT / "plimsoll" / "recipe" / "automatic_rule.cpp").read_text()
    reasons = re.findall(r'case Reason::\w+:\s+return "([^"]+)";', rule)
    assert sorted(precision.REASONS) == sorted(reasons)
    words = {reason: precision.reason_of(change("fc1", "output", reason=reason, operand="weight")) for reason in reasons}
    assert words == {
        "not finite": "weight is not finite",
        "error": "error of weight 0.081 above 0.049",
        "flushed": "share of weight that became zero 0.081 above 0.049",
        "gradient": "|q(g) - g| / |g| 0.081 above 0.049",
        "quiet": "quiet, mean load 0.081 below 0.049",
    }


def test_a_reason_of_another_version_is_shown_as_it_stands():
    assert precision.reason_of(change("fc1", "output", reason="cold {error}")) == "cold {error}"


def test_formats_that_are_none_are_one_clear_error(tmp_path):
    some = {"formats": ["e4m3"], "share": [1]}
    for bad in (3, {}, {**some, "share": [1, 2]}, {**some, "share": ["all"]}, {**some, "changes": [{"layer": "x"}]}):
        log = tmp_path / "train.jsonl"
        log.write_text(json.dumps({"step": 1, "loss": 1.0, "precision": bad}) + "\n")
        with pytest.raises(ValueError, match='expected formats as "precision" in line 1'):
            plimsoll.report(log, tmp_path / "page.html")
