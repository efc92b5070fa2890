"""plimsoll shard-plan: a table of what each process would need."""

import json
import subprocess
from pathlib import Path

import plimsoll
import pytest

PROGRAM = plimsoll._library.find().parent / "bin" / "plimsoll"
pytestmark = pytest.mark.skipif(not PROGRAM.is_file(), reason="bin/plimsoll is not built")

GIVEN = ["--tokens-per-second", "3000", "--bandwidth", "1", "--model", "small", "--batch", "16"]


def plan(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, "shard-plan", *arguments], capture_output=True, text=True, timeout=300)


def test_the_table_and_the_file_say_the_same(tmp_path: Path) -> None:
    done = plan(*GIVEN, "--world", "1,4,100000", "--json", str(tmp_path / "plan.json"))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    written = json.loads((tmp_path / "plan.json").read_text())
    assert lines[0].startswith(f"{written['parameters']} parameters")
    assert [int(line.split()[0]) for line in lines[2:]] == [run["world"] for run in written["runs"]] == [1, 4, 100000]
    alone, four, _ = written["runs"]
    assert alone["memory_bytes"]["parameters"] == 4 * written["parameters"]
    assert four["memory_bytes"]["states"] == 2 * written["parameters"]
    assert 2900 < alone["tokens_per_second"] < 3000  # one process that shards copies its gradients, too
    assert 3000 < four["tokens_per_second"] <= 12000


def test_each_way_of_sharing_takes_less_memory_than_the_one_before(tmp_path: Path) -> None:
    totals = []
    for name in ("none", "zero1", "zero2", "fsdp"):
        few = [*GIVEN[:-1], "1"]  # with many texts activations are all that counts
        assert plan(*few, "--world", "64", "--shard", name, "--json", str(tmp_path / name)).returncode == 0
        totals.append(json.loads((tmp_path / name).read_text())["runs"][0]["memory_bytes"]["total"])
    assert totals == sorted(totals, reverse=True)
    assert len(set(totals)) == 4


def test_auto_is_planned_as_its_wide_format(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("auto", "bf16", "fp8")]
    for file in files:
        assert plan(*GIVEN, "--recipe", file.name, "--json", str(file)).returncode == 0
    auto, bf16, fp8 = (json.loads(file.read_text())["runs"] for file in files)
    assert auto == bf16 != fp8


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "expected --tokens-per-second X"),
        ([*GIVEN, "--world", "1,0"], "--world: expected an integer from 1 to 10000000, got '0'"),
        ([*GIVEN, "--world", "1,,2"], "--world: expected an integer from 1 to 10000000, got ''"),
        ([*GIVEN, "--bandwidth", "-1"], "--bandwidth: expected a number"),
        ([*GIVEN, "--memory-bandwidth", "0.1"], "--memory-bandwidth: expected an update in less than"),
        ([*GIVEN, "--heads", "7"], "expected heads that divide dim"),
        ([*GIVEN, "--shard", "zero3"], "--shard: expected"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], text: str) -> None:
    done = plan(*arguments)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert text in done.stderr
