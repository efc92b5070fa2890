"""gpu_check without a card: what is missing is one line, and no step costs what those before it found."""

import importlib.machinery
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import time
from typing import Any

import pytest

TOOL = pathlib.Path(__file__).with_name("gpu_check")
BENCHMARK = "import json, sys; json.dump({'kernels': [1]}, open(sys.argv[2], 'w'))"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(TOOL), *words], capture_output=True, text=True, check=False)


def test_a_folder_without_a_build_is_named(tmp_path: pathlib.Path) -> None:
    result = run(str(tmp_path))
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"gpu_check: expected bin/ptx_test in {tmp_path}; make CUDA=ON build makes it\n"


def test_a_machine_without_a_card_is_named(tmp_path: pathlib.Path) -> None:
    import torch

    for name in ("bin/ptx_test", "ptx/norm.ptx", "lib/libplimsoll_python.so"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    if torch.cuda.is_available():
        return
    result = run(str(tmp_path), "--out", str(tmp_path / "gpu.json"))
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "gpu_check: expected a card that torch sees, found none\n"
    assert not (tmp_path / "gpu.json").exists()


class Check:
    """gpu_check with programs of ours in the place of those of a card; each is a text of Python."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, out: pathlib.Path) -> None:
        loader = importlib.machinery.SourceFileLoader("gpu_check", str(TOOL))
        spec = importlib.util.spec_from_loader("gpu_check", loader)
        assert spec is not None
        self.module: Any = importlib.util.module_from_spec(spec)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        loader.exec_module(self.module)
        self.out = out

    def run(self, programs: dict[str, str], benchmark: str, limit: float = 60, seconds: float = 60) -> dict[str, Any]:
        checks = [(name, [sys.executable, "-ISu", "-c", text], limit) for name, text in programs.items()]
        self.module.checks_of = lambda build: checks
        self.module.BENCHMARK = ["-c", benchmark]
        environment = os.environ | {"OUT": str(self.out), "PYTHONUNBUFFERED": "1"}
        report = self.module.run_all({"card": "none"}, self.out.parent, environment, self.out, time.monotonic() + seconds)
        assert json.loads(self.out.read_text()) == report
        return dict(report)


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> Check:
    return Check(monkeypatch, tmp_path / "gpu.json")


def test_all_that_passes_is_a_passed_report(check: Check) -> None:
    report = check.run({"a": "print('fine')"}, BENCHMARK)
    assert (report["card"], report["passed"], report["benchmarks"]) == ("none", True, {"kernels": [1]})
    assert (report["checks"][0]["passed"], report["checks"][0]["last_line"]) == (True, "fine")


def test_the_report_is_written_after_each_step_and_not_passed_before_the_last(check: Check) -> None:
    read = "import os; print(open(os.environ['OUT']).read().replace(chr(10), ''))"
    report = check.run({"a": "print('fine')", "b": read}, BENCHMARK)
    before = json.loads(report["checks"][1]["last_line"])
    assert (before["passed"], before["checks"]) == (False, report["checks"][:1])


def test_a_late_check_shows_what_it_printed_and_the_next_one_runs(check: Check, capfd: pytest.CaptureFixture[str]) -> None:
    late = (
        "import subprocess, sys; print('half done'); subprocess.run([sys.executable, '-IS', '-c', 'import time; time.sleep(99)'])"
    )
    report = check.run({"late": late, "next": "print('fine')"}, BENCHMARK, limit=5)
    assert [result["passed"] for result in report["checks"]] == [False, True] and not report["passed"]
    assert report["checks"][0]["last_line"] == "not done after 5 seconds"
    assert "half done" in capfd.readouterr().out


def test_one_deadline_holds_for_all(check: Check) -> None:
    start = time.monotonic()
    report = check.run({"late": "import time; time.sleep(99)", "next": "print('fine')"}, BENCHMARK, seconds=1)
    assert time.monotonic() - start < 30
    assert [result["last_line"] for result in report["checks"]] == ["not done after 1 seconds", "no time was left for it"]
    assert not report["passed"] and report["benchmarks"] == {}


@pytest.mark.parametrize("benchmark", ("import sys; sys.exit(1)", "print('no rows')", BENCHMARK + "; sys.exit(1)"))
def test_a_benchmark_that_fails_is_not_passed(check: Check, benchmark: str) -> None:
    report = check.run({"a": "print('fine')"}, benchmark)
    assert report["checks"][0]["passed"] and not report["passed"]
    assert report["benchmarks"] == ({"kernels": [1]} if "json" in benchmark else {})


def test_a_late_benchmark_costs_no_check(check: Check) -> None:
    report = check.run({"a": "print('fine')"}, BENCHMARK + "; import time; time.sleep(99)", seconds=3)
    assert report["checks"][0]["passed"] and not report["passed"]


def test_a_program_that_is_not_there_is_named(check: Check) -> None:
    output, done = check.module.output_of(["compute-sanitizer-of-nobody", "--tool"], dict(os.environ), 5)
    assert (output, done) == ("compute-sanitizer-of-nobody: No such file or directory", False)
