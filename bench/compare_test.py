"""bench/compare on written results: what falls is found, what only runs on a slower clock is not."""

import json
import pathlib
import subprocess
import sys

COMPARE = pathlib.Path(__file__).parent / "compare"


def write(path, shares, limit=100.0, **context):
    rows = [
        {"name": f"{name}/manual_time", "GB/s": share * limit / 100, "limit": limit, "share_%": share}
        for name, share in shares.items()
    ]
    context = {"isa": "avx512", "matmul_isa": "avx512", "threads": "1", **context}
    path.write_text(json.dumps({"context": context, "benchmarks": rows}))
    return path


def compare(old, new, *options):
    return subprocess.run([sys.executable, COMPARE, old, new, *options], capture_output=True, text=True, check=False)


def test_a_slower_clock_is_no_regression(tmp_path):
    old = write(tmp_path / "old", {"norm/256": 80.0})
    new = write(tmp_path / "new", {"norm/256": 80.0}, limit=50.0)
    assert compare(old, new).returncode == 0


def test_what_fell_beyond_the_threshold_is_named(tmp_path):
    old = write(tmp_path / "old", {"norm/256": 80.0, "gemm/512": 90.0})
    new = write(tmp_path / "new", {"norm/256": 71.0, "gemm/512": 85.0})
    result = compare(old, new)
    assert result.returncode == 1
    assert "fell    norm/256" in result.stdout
    assert "gemm/512" not in result.stdout
    assert compare(old, new, "--threshold", "12").returncode == 0


def test_what_is_gone_or_no_number_counts_as_fallen(tmp_path):
    old = write(tmp_path / "old", {"norm/256": 80.0, "gemm/512": 90.0})
    gone = compare(old, write(tmp_path / "gone", {"norm/256": 80.0, "softmax/1": 5.0}))
    assert (gone.returncode, "gone    gemm/512" in gone.stdout, "new     softmax/1" in gone.stdout) == (1, True, True)
    assert compare(old, write(tmp_path / "nan", {"norm/256": 80.0, "gemm/512": float("nan")})).returncode == 1


def test_what_rose_is_listed_and_does_no_harm(tmp_path):
    old, new = write(tmp_path / "old", {"norm/256": 40.0}), write(tmp_path / "new", {"norm/256": 80.0})
    result = compare(old, new)
    assert (result.returncode, "rose    norm/256" in result.stdout) == (0, True)


def test_runs_that_do_not_compare_are_refused(tmp_path):
    old = write(tmp_path / "old", {"norm/256": 80.0})
    for context in ({"isa": "avx2"}, {"threads": "2"}):
        result = compare(old, write(tmp_path / "new", {"norm/256": 80.0}, **context))
        assert (result.returncode, result.stderr.count("\n")) == (2, 1)


def test_other_files_are_refused_in_one_line(tmp_path):
    old = write(tmp_path / "old", {"norm/256": 80.0})
    (tmp_path / "other").write_text('{"benchmarks": [{"name": "x"}]}')
    for bad in ("other", "missing"):
        result = compare(old, tmp_path / bad)
        assert (result.returncode, result.stderr.count("\n")) == (2, 1)
